use serde_json::json;

use super::*;
use crate::fixtures::{mono_vertex_json, pipeline_json, settings};

const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;
const EDGES: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]},
    {"from": "infer", "toMonoVertex": "mono", "networks": ["rdma-a"]}]"#;

fn run(documents: &[Value]) -> Result<Vec<Value>> {
    let text = injected(documents.to_vec(), &settings())?;
    Ok(parse(&text)?)
}

#[test]
fn pipelines_and_mono_vertices_are_printed_with_everything_and_their_services() {
    let documents = run(&[pipeline_json(EDGES), mono_vertex_json()]).unwrap();
    let names: Vec<String> = documents
        .iter()
        .map(|it| format!("{} {}", it["kind"], it["metadata"]["name"]).replace('"', ""))
        .collect();
    assert_eq!(
        names,
        [
            "Pipeline frames",
            "MultiNetworkService frames-decode",
            "MultiNetworkService frames-infer",
            "MonoVertex mono",
            "MultiNetworkService mono"
        ]
    );
    let [pipeline, service, ..] = &documents[..] else { panic!("{names:?}") };
    assert_eq!((&pipeline["metadata"]["annotations"], &pipeline["status"]), (&Value::Null, &Value::Null));
    let decode = &pipeline["spec"]["vertices"][1];
    assert!(
        decode["udf"]["container"]["env"]
            .to_string()
            .contains("infer.frames.vision.vertexdomain.local.:18515")
    );
    // A stamp would look like the webhook's, and a label like a service of the program in the
    // cluster, which removes what it has not planned.
    assert!(!pipeline.to_string().contains("multinetwork.numaproj.io"), "{pipeline}");
    assert_eq!(service["metadata"]["ownerReferences"], Value::Null);
    assert!(!service.to_string().contains("managed-by"));
    let untouched = &pipeline_json("")["spec"]["vertices"][0];
    assert_eq!(pipeline["spec"]["vertices"][0], *untouched);
    let source = &documents[3]["spec"]["source"]["udsource"]["container"];
    assert!(source["env"].to_string().contains("MULTINET_SOURCES"));
    // What is printed has no edges, so that a second run changes nothing.
    let printed: Vec<Value> =
        documents.iter().filter(|it| it["kind"] != "MultiNetworkService").cloned().collect();
    assert_eq!(run(&printed).unwrap(), printed);
}

#[test]
fn a_pipeline_without_namespace_is_named_for_the_default_one() {
    let mut pipeline = pipeline_json(EDGE);
    pipeline["metadata"].as_object_mut().unwrap().remove("namespace");
    let documents = run(&[pipeline]).unwrap();
    assert!(documents[0].to_string().contains("infer.frames.default.vertexdomain.local."));
    assert_eq!(documents[1]["metadata"]["namespace"], Value::Null);
}

#[test]
fn fields_of_the_template_of_all_vertices_are_kept() {
    let mut pipeline = pipeline_json(EDGE);
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
    let annotations = json!({MULTUS_NETWORKS: "storage", "other": "x"});
    pipeline["spec"]["templates"] =
        json!({"vertex": {"metadata": {"annotations": annotations}, "resourceClaims": claims}});
    pipeline["spec"]["vertices"][1].as_object_mut().unwrap().remove("metadata");
    let documents = run(&[pipeline]).unwrap();
    let [_, decode, infer] = &documents[0]["spec"]["vertices"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(decode["metadata"]["annotations"], json!({MULTUS_NETWORKS: "storage,rdma-a"}));
    assert_eq!(decode["resourceClaims"], claims);
    // Numaflow does not look at the template for this annotation of infer.
    assert_eq!(infer["metadata"]["annotations"][MULTUS_NETWORKS], "rdma-a");
}

/// The values are those of sigs.k8s.io/yaml, which kubectl and the API server use.
#[test]
fn scalars_are_read_and_printed_as_kubernetes_reads_them() {
    for (text, value) in [
        ("0440", json!(288)),
        ("0777", json!(511)),
        ("-0440", json!(-288)),
        ("+0440", json!(288)),
        ("0o440", json!(288)),
        ("01_7", json!(15)),
        ("0_1", json!(1)),
        ("0", json!(0)),
        ("00", json!(0)),
        ("1_000", json!(1000)),
        ("0x1F", json!(31)),
        ("0b11", json!(3)),
        ("-0x1f", json!(-31)),
        ("09", json!(9.0)),
        ("00.5", json!(0.5)),
        ("1e3", json!(1000.0)),
        ("12345678901234567890", json!(12_345_678_901_234_567_890_u64)),
        ("on", json!(true)),
        ("n", json!(false)),
        ("~", json!(null)),
        ("1:30", json!("1:30")),
        ("_1", json!("_1")),
        ("0440a", json!("0440a")),
    ] {
        let document = json!({"quoted": text, "plain": value});
        let read = parse(&format!("plain: {text}\nquoted: '{text}'")).unwrap();
        assert_eq!(read, std::slice::from_ref(&document), "{text}");
        let mut printed = String::new();
        append(&mut printed, &document).unwrap();
        assert_eq!(parse(&printed).unwrap(), [document], "{printed}");
    }
}

#[test]
fn a_wrong_file_is_refused_as_a_whole() {
    let wrong = pipeline_json(r#"[{"from": "decode", "to": "infer", "networks": ["A"]}]"#);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
    let mut mistyped = pipeline_json("");
    mistyped["spec"]["vertices"] = json!(7);
    let taken = EDGES.replace("mono", "frames-decode");
    let mut mono = mono_vertex_json();
    mono["metadata"]["name"] = json!("frames-decode");
    for (documents, message) in [
        (vec![pipeline_json(EDGES)], "the namespace has no MonoVertex mono yet"),
        (vec![pipeline_json(&taken), mono], "two ends of edges have the MultiNetworkService frames-decode"),
        (vec![pipeline_json(EDGES), wrong], "Pipeline frames: direct-edges[0].networks[0].name: must be"),
        (vec![service], "Service a: is not a Pipeline or MonoVertex"),
        (vec![json!(7)], "is not a Pipeline"),
        (vec![mistyped], "Pipeline frames: spec.vertices: invalid type"),
        (vec![], "the files have no Pipeline"),
    ] {
        let error = format!("{:#}", run(&documents).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn files_are_read_up_to_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let error = |room| format!("{:#}", read(&file, room).unwrap_err());
    assert!(error(7).contains("a.yaml: cannot be read"));
    fs::write(&file, "12345678").unwrap();
    assert!(error(7).contains("more than 16 MiB"));
    assert_eq!(read(&file, 8).unwrap(), "12345678");
}

/// Edges in documentation and examples are right, and give each end an environment.
#[test]
fn shown_pipelines_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/numaflow.md")).unwrap();
    let shown = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut texts: Vec<String> =
        shown.filter(|text| text.contains("kind: Pipeline")).map(str::to_owned).collect();
    for variant in ["multus/3-pipeline.yaml", "dra/3-pipeline.yaml", "boundary/3-pipelines.yaml"] {
        let file = root.join("deploy/examples/numaflow").join(variant);
        texts.push(fs::read_to_string(file).unwrap());
    }
    assert_eq!(texts.len(), 4);
    for text in texts {
        let documents = parse(&text).unwrap();
        let out = injected(documents, &settings()).unwrap();
        for part in ["MULTINET_TARGETS", "MULTINET_SOURCES", "kind: MultiNetworkService"] {
            assert!(out.contains(part), "{out}");
        }
    }
}
