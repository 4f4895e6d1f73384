use serde_json::json;

use super::*;
use crate::fixtures::pipeline;

fn declared(edges: &str) -> Declared {
    Declared::of(&pipeline(edges))
}

/// Returns the only edge of an annotation, which must be valid.
fn edge(edge: &str) -> Edge {
    let mut declared = declared(&format!("[{edge}]"));
    assert_eq!(declared.problems, Vec::<String>::new(), "{edge}");
    declared.edges.remove(0)
}

#[test]
fn edges_have_networks_of_each_kind_and_defaults() {
    let parsed = edge(
        r#"{"from": "decode", "to": "infer", "resources": {"rdma/hca": 1}, "networks": ["rdma-a", "infra/rdma-b",
            {"name": "c", "namespace": "infra", "alias": "rail2"}, {"kind": "ResourceClaimTemplate", "name": "rail3"},
            {"kind": "DeviceClass", "name": "nic.example.com", "alias": "rail4"}]}"#,
    );
    assert_eq!((parsed.from.as_str(), parsed.port), ("decode", 18515));
    assert_eq!(parsed.to, Receiver::Vertex { pipeline: None, vertex: "infer".to_owned() });
    assert_eq!(parsed.resources, [("rdma/hca".to_owned(), 1)].into());
    let network = |kind, name: &str, namespace: Option<&str>, alias: Option<&str>| NetworkReference {
        kind,
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        alias: alias.map(str::to_owned),
    };
    let nad = NetworkKind::NetworkAttachmentDefinition;
    assert_eq!(
        parsed.networks,
        [
            network(nad, "rdma-a", None, None),
            network(nad, "rdma-b", Some("infra"), None),
            network(nad, "c", Some("infra"), Some("rail2")),
            network(NetworkKind::ResourceClaimTemplate, "rail3", None, None),
            network(NetworkKind::DeviceClass, "nic.example.com", None, Some("rail4")),
        ]
    );

    let other = edge(r#"{"from": "infer", "to": "a", "toPipeline": "b", "networks": ["n"], "port": 1}"#);
    assert_eq!(other.to, Receiver::Vertex { pipeline: Some("b".to_owned()), vertex: "a".to_owned() });
    assert_eq!(other.port, 1);
    let mono = edge(r#"{"from": "infer", "toMonoVertex": "store", "networks": ["n"]}"#);
    assert_eq!(mono.to, Receiver::MonoVertex("store".to_owned()));
}

#[test]
fn a_wrong_edge_is_a_problem_that_names_field_and_remedy() {
    for (edge, message) in [
        (r#"7"#, "direct-edges[0]: invalid type: integer `7`"),
        (r#"{"from": "decode", "to": "infer"}"#, "direct-edges[0]: missing field `networks`"),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a"], "prot": 1}"#,
            "unknown field `prot`, expected one of `from`, `to`, `toPipeline`, `toMonoVertex`, `networks`",
        ),
        (r#"{"from": "decode", "networks": ["a"]}"#, "direct-edges[0]: must have to, to with toPipeline"),
        (r#"{"from": "decode", "to": "infer", "toMonoVertex": "x", "networks": ["a"]}"#, "must have to"),
        (r#"{"from": "decode", "toPipeline": "b", "networks": ["a"]}"#, "must have to"),
        (r#"{"from": "decode", "to": "a,b", "toPipeline": "b", "networks": ["a"]}"#, "a,b is not"),
        (r#"{"from": "decode", "to": "a", "toPipeline": "B", "networks": ["a"]}"#, "B is not"),
        (
            r#"{"from": "decode", "to": "infr", "networks": ["a"]}"#,
            "direct-edges[0].to: the Pipeline has no vertex infr; its vertices are decode, in, infer",
        ),
        (
            r#"{"from": "in", "to": "infer", "networks": ["a"]}"#,
            "direct-edges[0].from: vertex in has no container",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": []}"#,
            "direct-edges[0].networks: must have 1 to 16",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["A"]}"#,
            "direct-edges[0].networks[0].name: must be",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a/b/c"]}"#,
            "direct-edges[0].networks[0].name: must be",
        ),
        (r#"{"from": "decode", "to": "infer", "networks": ["a.b"]}"#, "direct-edges[0].networks[0].alias: "),
        (
            r#"{"from": "decode", "to": "infer", "networks": [{"kind": "Nad", "name": "a"}]}"#,
            "direct-edges[0].networks[0].kind: unknown variant `Nad`, expected one of `NetworkAttachmentDefinition`",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": [{"name": "a", "nmae": "b"}]}"#,
            "unknown field `nmae`, expected one of `kind`, `name`",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": [{"kind": "ResourceClaimTemplate", "name": "a", "namespace": "b"}]}"#,
            "direct-edges[0].networks[0].namespace: must not be set",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": [{"kind": "DeviceClass", "name": "a", "namespace": "b"}]}"#,
            "direct-edges[0].networks[0].namespace: must not be set",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a"], "port": 0}"#,
            "direct-edges[0].port: must be 1 to 65535",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a"], "port": 65536}"#,
            "direct-edges[0].port: invalid value",
        ),
        (r#"{"from": "decode", "to": "infer", "networks": ["a"], "resources": {"cpu": 1}}"#, "cpu: 1 is not"),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a"], "resources": {"rdma/a": 0}}"#,
            "rdma/a: 0 is not",
        ),
        (
            r#"{"from": "decode", "to": "infer", "networks": ["a"], "resources": {"rdma/a": "1"}}"#,
            "direct-edges[0].resources",
        ),
    ] {
        let declared = declared(&format!("[{edge}]"));
        assert!(declared.edges.is_empty(), "{edge}");
        let [problem] = &declared.problems[..] else { panic!("{edge}: {:?}", declared.problems) };
        assert!(problem.starts_with("direct-edges[0]") && problem.contains(message), "{edge}: {problem}");
        assert!(!problem.contains(" at line "), "{problem}");
    }
}

#[test]
fn a_wrong_edge_does_not_affect_the_others() {
    let good = r#"{"from": "decode", "to": "infer", "networks": ["a"]}"#;
    let declared = declared(&format!(r#"[{good}, {{}}, {good}]"#));
    assert_eq!(
        declared.edges.iter().map(|edge| edge.place.as_str()).collect::<Vec<_>>(),
        ["direct-edges[0]", "direct-edges[2]"]
    );
    assert_eq!(declared.problems, ["direct-edges[1]: missing field `from`"]);
    for text in ["{}", "[", "7", r#""a""#, "[1,]"] {
        let declared = self::declared(text);
        assert!(declared.edges.is_empty() && declared.problems[0].contains("must be a JSON list"), "{text}");
    }
}

#[test]
fn edges_of_gpu_direct_comm_become_claims_from_its_templates() {
    let mut pipeline = pipeline("");
    let text = r#"[{"from": "decode", "to": "infer", "numaNetwork": "n0", "connectionType": "direct"},
                   {"from": "decode", "to": "infer", "numaNetwork": "n1", "connectionType": "multi-isbsvc"}]"#;
    pipeline.metadata.annotations = Some([(NUMA_NETWORK_EDGES.to_owned(), text.to_owned())].into());
    let declared = Declared::of(&pipeline);
    let [network] = &declared.edges[0].networks[..] else { panic!("{declared:?}") };
    assert_eq!((network.kind, network.name.as_str()), (NetworkKind::ResourceClaimTemplate, "n0-rct"));
    assert_eq!(network.alias(), "n0");
    assert!(
        declared.problems[0].contains("connectionType: unknown variant `multi-isbsvc`, expected `direct`"),
        "{declared:?}"
    );
}

#[test]
fn vertices_declare_their_own_networks_and_receivers() {
    let mut json = crate::fixtures::pipeline_json("");
    json["spec"]["vertices"][1]["metadata"]["annotations"] =
        json!({NETWORKS: "rdma-a, infra/b", DIRECT_TO: "infer,gone"});
    json["spec"]["vertices"][2]["metadata"]["annotations"] = json!({NETWORKS: "A"});
    let declared = Declared::of(&serde_json::from_value(json).unwrap());
    assert_eq!(
        declared.networks["decode"].iter().map(NetworkReference::alias).collect::<Vec<_>>(),
        ["rdma-a", "b"]
    );
    assert_eq!(declared.edges.len(), 1);
    assert!(
        declared.problems[0].starts_with("vertex decode: direct-to.to: the Pipeline has no vertex gone"),
        "{declared:?}"
    );
    assert!(
        declared.problems[1].starts_with("vertex infer: networks.networks[0].name: must be"),
        "{declared:?}"
    );
}

#[test]
fn a_problem_is_one_line_without_control_characters() {
    let declared = declared(r#"[{"from": "a\n\u001b[31m\u202eb", "to": "infer", "networks": ["a"]}]"#);
    let text = r"the Pipeline has no vertex a\n\u{1b}[31m\u{202e}b;";
    assert!(declared.problems[0].contains(text), "{declared:?}");
}

#[test]
fn a_list_of_too_many_networks_is_refused_before_each_is_looked_at() {
    let many = 20_000;
    let problem = format!(".networks: must have 1 to 16 items, not {many}");
    let networks = vec![r#""A""#; many].join(",");
    let edge = declared(&format!(r#"[{{"from": "decode", "to": "infer", "networks": [{networks}]}}]"#));
    assert_eq!(edge.problems, [format!("direct-edges[0]{problem}")]);
    let mut json = crate::fixtures::pipeline_json("");
    json["spec"]["vertices"][1]["metadata"]["annotations"] = json!({NETWORKS: vec!["A"; many].join(",")});
    let vertex = Declared::of(&serde_json::from_value(json).unwrap());
    assert_eq!(vertex.problems, [format!("vertex decode: networks{problem}")]);
}

#[test]
fn all_vertices_of_a_pipeline_share_its_edges_and_problems() {
    let mut json = crate::fixtures::pipeline_json("[7]");
    let vertices = json["spec"]["vertices"].as_array_mut().unwrap();
    let to = |receiver: &str| json!({NETWORKS: "a", DIRECT_TO: vec![receiver; 200].join(",")});
    vertices[1]["metadata"]["annotations"] = to("infer");
    vertices[2]["metadata"]["annotations"] = to("gone");
    let declared = Declared::of(&serde_json::from_value(json).unwrap());
    // The first problem is the 7, and the last that the 257th edge is one too many.
    assert_eq!((declared.edges.len(), declared.networks.len()), (200, 2));
    let wrong = MAX_EDGES - 200;
    assert_eq!((declared.problems.len(), declared.more_problems), (MAX_PROBLEMS, wrong + 1 - MAX_PROBLEMS));

    let declared = self::declared(&format!(
        "[{}]",
        vec![r#"{"from":"decode","to":"infer","networks":["a"]}"#; 257].join(",")
    ));
    assert_eq!(
        declared.problems,
        [
            "direct-edges[256]: is one edge too many, and those behind it do not count either; a Pipeline may have 256"
        ]
    );
}

#[test]
fn a_vertex_whose_name_is_no_dns_label_is_at_no_edge() {
    for name in ["A", "a.b", "x".repeat(64).as_str()] {
        let edge = format!(r#"[{{"from": "{name}", "to": "infer", "networks": ["a"]}}]"#);
        let mut json = crate::fixtures::pipeline_json(&edge);
        json["spec"]["vertices"][1]["name"] = json!(name);
        json["spec"]["vertices"][1]["metadata"]["annotations"] = json!({NETWORKS: "a", DIRECT_TO: "infer"});
        let declared = Declared::of(&serde_json::from_value(json).unwrap());
        assert!(declared.edges.is_empty() && declared.networks.is_empty(), "{declared:?}");
        assert!(declared.problems[0].contains("the Pipeline has no vertex"), "{declared:?}");
    }
}

#[test]
fn an_annotation_of_256_kib_costs_little() {
    let edge = r#"{"from":"decode","to":"infer","networks":["a"]}"#;
    let many = declared(&format!("[{}]", vec![edge; (256 << 10) / (edge.len() + 1)].join(",")));
    assert_eq!((many.edges.len(), many.problems.len()), (MAX_EDGES, 1));
    let long =
        declared(&format!(r#"[{{"from":"{}","to":"infer","networks":["a"]}}]"#, "ä".repeat(128 << 10)));
    assert!(long.problems[0].len() <= MAX_TEXT);
    assert!(declared(&"[".repeat(256 << 10)).problems[0].contains("must be a JSON list"));
    let deep = format!(r#"[{{"from":{}"#, "[".repeat(100_000));
    assert_eq!(declared(&deep).problems.len(), 1);
}
