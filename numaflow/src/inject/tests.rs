use multinet_crds::NetworkReference;

use super::*;
use crate::fixtures::{mono_vertex_json, settings, spec};

fn network(kind: NetworkKind, name: &str) -> NetworkReference {
    NetworkReference { kind, name: name.to_owned(), ..NetworkReference::default() }
}

/// Returns the end of an edge on one network, which both sends and receives.
fn end() -> End {
    End {
        networks: vec![network(NetworkKind::NetworkAttachmentDefinition, "rdma-a")],
        ports: vec![18515],
        resources: [("rdma/hca".to_owned(), 1)].into(),
        targets: vec!["b.p.vision.vertexdomain.local.:18515".to_owned()],
        sources: vec!["a.p.vision.vertexdomain.local.:18515".to_owned()],
        ..End::default()
    }
}

/// Returns the spec of a real Vertex after the webhook.
fn patched(name: &str, end: Option<&End>) -> JsonObject {
    let mut spec = spec(name);
    spec.extend(changes("vision", &spec, end, &settings()));
    spec
}

#[test]
fn a_vertex_gets_networks_devices_and_environment() {
    let (end, settings) = (end(), settings());
    let (clean, spec) = (spec("decode"), patched("decode", Some(&end)));
    assert_eq!(
        spec["metadata"],
        json!({
            "annotations": {MULTUS_NETWORKS: "rdma-a", PLAN: end.stamp(&settings)},
            "labels": {"team": "vision"},
        })
    );
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let container = json!({
        "image": "registry.example.com/vision/decode:1.0",
        "env": [
            {"name": "NEXT_VERTEX", "value": "infer.vision.svc.multinet"},
            {"name": "MULTINET_TARGETS", "value": "b.p.vision.vertexdomain.local.:18515"},
            {"name": "VERTEX_DOMAIN_TARGETS", "value": "b.p.vision.vertexdomain.local.:18515"},
            {"name": "MULTINET_SOURCES", "value": "a.p.vision.vertexdomain.local.:18515"},
            {"name": "MULTINET_NETWORK", "value": "rdma-a"},
            {"name": "MULTINET_POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "MULTINET_POD_UID", "valueFrom": field("metadata.uid")},
            {"name": "MULTINET_NODE_NAME", "valueFrom": field("spec.nodeName")},
            {"name": "MULTINET_ZONE_NAME", "valueFrom": field("metadata.labels['topology.kubernetes.io/zone']")},
        ],
        "resources": {"limits": {"rdma/hca": "1"}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    });
    assert_eq!(spec["udf"]["container"], container);
    // Everything else is as Numaflow wrote it.
    for (field, value) in &clean {
        assert!(["metadata", "udf"].contains(&field.as_str()) || spec[field] == *value, "{field}");
    }
    assert_eq!(clean.len(), spec.len());
}

#[test]
fn a_receiver_is_never_scaled_to_zero_unless_its_author_says_so() {
    let mut vertex = spec("decode");
    vertex.insert("scale".to_owned(), json!({}));
    inject("vision", &mut vertex, &end(), &settings());
    assert_eq!(vertex["scale"], json!({"min": 1}));
    assert_eq!(patched("decode", Some(&end()))["scale"], json!({"max": 4, "min": 2}));

    vertex.insert("scale".to_owned(), json!({}));
    inject("vision", &mut vertex, &End { sources: Vec::new(), ..end() }, &settings());
    assert_eq!(vertex["scale"], json!({}));
}

#[test]
fn a_container_is_found_in_functions_sinks_and_sources() {
    assert!(patched("infer", Some(&end()))["sink"]["udsink"]["container"]["env"].is_array());
    let mut mono = mono_vertex_json()["spec"].as_object().unwrap().clone();
    let sink = mono["sink"].clone();
    inject("vision", &mut mono, &end(), &settings());
    assert!(mono["source"]["udsource"]["container"]["env"].is_array());
    assert_eq!(mono["sink"], sink);
}

#[test]
fn claims_from_templates_reach_pod_and_container() {
    let claims =
        vec![network(NetworkKind::ResourceClaimTemplate, "rail0"), network(NetworkKind::DeviceClass, "nic")];
    let end = End { networks: claims, resources: [].into(), ..end() };
    let spec = patched("infer", Some(&end));
    assert_eq!(spec["resourceClaims"], json!([{"name": "rail0", "resourceClaimTemplateName": "rail0"}]));
    let container = &spec["sink"]["udsink"]["container"];
    assert_eq!(container["resources"], json!({"claims": [{"name": "rail0"}]}));
    assert!(!container["env"].to_string().contains("MULTINET_NETWORK"), "two networks");

    // A claim of the author's from the same template is used, one of the same name is left alone.
    let mut vertex = crate::fixtures::spec("infer");
    vertex
        .insert("resourceClaims".to_owned(), json!([{"name": "mine", "resourceClaimTemplateName": "rail0"}]));
    inject("vision", &mut vertex, &end, &settings());
    assert_eq!(vertex["resourceClaims"].as_array().unwrap().len(), 1);
    assert_eq!(vertex["sink"]["udsink"]["container"]["resources"], json!({"claims": [{"name": "mine"}]}));
    vertex.insert("resourceClaims".to_owned(), json!([{"name": "rail0", "resourceClaimName": "shared"}]));
    inject("vision", &mut vertex, &end, &settings());
    assert_eq!(vertex["resourceClaims"].as_array().unwrap().len(), 1);
}

#[test]
fn the_author_wins() {
    let mut vertex = spec("decode");
    let container = json!({
        "env": [{"name": "MULTINET_TARGETS", "value": "mine:1"}, {"name": "MULTINET_NODE_NAME", "value": "n"}],
        "resources": {"requests": {"rdma/hca": "2"}, "limits": {"rdma/hca": "2"}},
        "securityContext": {"privileged": false, "capabilities": {"drop": ["IPC_LOCK"]}},
    });
    vertex.insert("udf".to_owned(), json!({"container": container}));
    inject("vision", &mut vertex, &end(), &settings());
    let merged = &vertex["udf"]["container"];
    let env = merged["env"].as_array().unwrap();
    assert_eq!(env[..2], *container["env"].as_array().unwrap());
    let names: Vec<_> = env.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), unique.len()), (8, 8));
    assert_eq!(
        (&merged["resources"], &merged["securityContext"]),
        (&container["resources"], &container["securityContext"])
    );

    for (capabilities, wanted) in [
        (json!({"add": ["ALL"]}), json!({"add": ["ALL"]})),
        (json!({"drop": ["ALL"]}), json!({"drop": ["ALL"], "add": ["IPC_LOCK"]})),
        (json!({"add": ["SYS_NICE"]}), json!({"add": ["SYS_NICE", "IPC_LOCK"]})),
    ] {
        vertex["udf"]["container"]["securityContext"]["capabilities"] = capabilities;
        inject("vision", &mut vertex, &end(), &settings());
        assert_eq!(vertex["udf"]["container"]["securityContext"]["capabilities"], wanted);
    }
}

#[test]
fn side_inputs_sidecars_and_unknown_fields_pass_unread() {
    let mut spec = spec("infer");
    let others =
        json!({"sideInputs": ["model"], "sidecars": [{"name": "s"}], "volumes": [], "new": {"x": 1}});
    spec.extend(others.as_object().unwrap().clone());
    let changes = changes("vision", &spec, Some(&end()), &settings());
    // The fixture has its `scale.min` already.
    assert!(changes.keys().eq(["metadata", "sink"]), "{changes:?}");
}

#[test]
fn requested_networks_are_merged_as_multus_reads_them() {
    let ours = |namespace: Option<&str>| NetworkReference {
        namespace: namespace.map(str::to_owned),
        ..network(NetworkKind::NetworkAttachmentDefinition, "rdma-a")
    };
    for (text, namespace, wanted) in [
        ("", None, "rdma-a"),
        ("", Some("infra"), "infra/rdma-a"),
        (" storage , rdma-a@net7", None, "storage,rdma-a@net7"),
        ("vision/rdma-a", None, "vision/rdma-a"),
        ("rdma-a", Some("vision"), "rdma-a"),
        ("infra/rdma-a", None, "infra/rdma-a,rdma-a"),
        (r#"[{"name":"rdma-a","interface":"net7"}]"#, None, r#"[{"interface":"net7","name":"rdma-a"}]"#),
        (r#"[{"name":"a"}]"#, Some("infra"), r#"[{"name":"a"},{"name":"rdma-a","namespace":"infra"}]"#),
        (r#"[{"name":"rdma-a","namespace":""}]"#, None, r#"[{"name":"rdma-a","namespace":""}]"#),
        // Multus reports such a text for the pod.
        ("[", None, "["),
        (r#"{"name":"a"}"#, None, r#"{"name":"a"}"#),
    ] {
        let mut vertex = spec("decode");
        vertex.insert("metadata".to_owned(), json!({"annotations": {MULTUS_NETWORKS: text}}));
        inject("vision", &mut vertex, &End { networks: vec![ours(namespace)], ..end() }, &settings());
        assert_eq!(vertex["metadata"]["annotations"][MULTUS_NETWORKS], wanted, "{text}");
    }
}

/// Multus takes only DNS labels in a list with commas.
#[test]
fn a_network_whose_name_has_a_dot_is_requested_in_json() {
    let ours = network(NetworkKind::NetworkAttachmentDefinition, "rdma.a");
    for (text, wanted) in [
        ("", r#"[{"name":"rdma.a"}]"#),
        (
            "storage, infra/b@net7",
            r#"[{"name":"storage"},{"interface":"net7","name":"b","namespace":"infra"},{"name":"rdma.a"}]"#,
        ),
        (r#"[{"name":"rdma.a"}]"#, r#"[{"name":"rdma.a"}]"#),
    ] {
        let mut vertex = spec("decode");
        vertex.insert("metadata".to_owned(), json!({"annotations": {MULTUS_NETWORKS: text}}));
        inject("vision", &mut vertex, &End { networks: vec![ours.clone()], ..end() }, &settings());
        assert_eq!(vertex["metadata"]["annotations"][MULTUS_NETWORKS], wanted, "{text}");
    }
}

#[test]
fn a_vertex_that_has_its_plan_is_not_changed() {
    let spec = patched("decode", Some(&end()));
    assert_eq!(changes("vision", &spec, Some(&end()), &settings()), JsonObject::new());
    assert_eq!(changes("vision", &crate::fixtures::spec("in"), None, &settings()), JsonObject::new());
    // A stamp without a plan is the author's, and would look like an injection.
    let changes = changes("vision", &spec, None, &settings());
    assert_eq!(changes.len(), 1);
    assert_eq!(changes["metadata"]["annotations"], json!({MULTUS_NETWORKS: "rdma-a"}));
}

#[test]
fn fields_of_other_types_are_left_alone() {
    let odd = [json!(7), json!("x"), json!([]), json!({}), json!(null), json!([null, 7, {"name": 7}])];
    let paths: [&[&str]; 8] = [
        &["metadata"],
        &["metadata", "annotations"],
        &["scale"],
        &["resourceClaims"],
        &["udf", "container"],
        &["udf", "container", "env"],
        &["udf", "container", "resources"],
        &["udf", "container", "securityContext"],
    ];
    let mut end = end();
    end.networks.push(network(NetworkKind::ResourceClaimTemplate, "rail0"));
    for path in paths {
        for value in &odd {
            let mut vertex = Value::Object(spec("decode"));
            let mut at = &mut vertex;
            for field in path {
                at = &mut at[*field];
            }
            *at = value.clone();
            let spec = vertex.as_object().unwrap();
            let mut once = spec.clone();
            once.extend(changes("vision", spec, Some(&end), &settings()));
            assert_eq!(
                changes("vision", &once, Some(&end), &settings()),
                JsonObject::new(),
                "{path:?} {value}"
            );
        }
    }
}
