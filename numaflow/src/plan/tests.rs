use super::*;
use crate::fixtures::{pipeline, settings};

const EDGE: &str = r#"{"from": "decode", "to": "infer", "networks": ["rdma-a"]}"#;

/// Plans the namespace vision with Pipelines like `frames`, by name and edges.
fn plan(pipelines: &[(&str, &str)]) -> Plan {
    let declared: Vec<(&str, Declared)> = pipelines
        .iter()
        .map(|(name, edges)| (*name, Declared::of(&pipeline(&format!("[{edges}]")))))
        .collect();
    let declared = declared.iter().map(|(name, declared)| (*name, declared));
    Plan::new("vision", declared, |mono| mono != "gone", &settings())
}

fn vertex(pipeline: &str, vertex: &str) -> EndName {
    EndName::Vertex { pipeline: pipeline.to_owned(), vertex: vertex.to_owned() }
}

#[test]
fn both_ends_have_the_network_and_know_each_other() {
    let plan = plan(&[("frames", EDGE)]);
    let (from, to) = (&plan.ends[&vertex("frames", "decode")], &plan.ends[&vertex("frames", "infer")]);
    assert_eq!((plan.ends.len(), plan.problems.len()), (2, 0));
    assert_eq!(from.targets, ["infer.frames.vision.vertexdomain.local.:18515"]);
    assert_eq!(to.sources, ["decode.frames.vision.vertexdomain.local.:18515"]);
    assert!(from.sources.is_empty() && to.targets.is_empty());
    assert_eq!((&from.networks, &from.ports), (&to.networks, &to.ports));
    assert_eq!(vertex("frames", "infer").object(), "frames-infer");
}

#[test]
fn receivers_may_be_in_another_pipeline_or_a_mono_vertex() {
    let to_other = r#"{"from": "infer", "to": "decode", "toPipeline": "next", "networks": ["b"], "port": 7}"#;
    let to_mono = r#"{"from": "infer", "toMonoVertex": "store", "networks": ["b"]}"#;
    let plan = plan(&[("frames", &format!("{to_other}, {to_mono}")), ("next", "")]);
    let infer = &plan.ends[&vertex("frames", "infer")];
    assert_eq!(
        infer.targets,
        ["store.vision.svc.multinet.cluster.local.:18515", "decode.next.vision.vertexdomain.local.:7"]
    );
    assert_eq!(plan.ends[&vertex("next", "decode")].ports, [7]);
    assert_eq!(plan.ends[&EndName::MonoVertex("store".to_owned())].sources.len(), 1);
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let ports = infer.service_ports();
    assert_eq!(
        ports.iter().map(|port| (port.name.as_str(), port.port)).collect::<Vec<_>>(),
        [("multinet", 18515), ("multinet-7", 7)]
    );
}

#[test]
fn an_edge_to_an_object_that_is_not_there_counts_and_is_reported() {
    let edge = r#"{"from": "infer", "to": "decode", "toPipeline": "next", "networks": ["b"]}"#;
    let alone = plan(&[("frames", edge)]);
    assert_eq!(alone.ends[&vertex("frames", "infer")].targets.len(), 1);
    assert!(alone.problems["frames"][0].contains("no Pipeline next with a user-defined vertex decode yet"));
    // The sender's plan does not change when the other Pipeline comes or goes.
    let both = plan(&[("frames", edge), ("next", "")]);
    assert_eq!(alone.ends, both.ends);

    let mono = plan(&[("frames", r#"{"from": "infer", "toMonoVertex": "gone", "networks": ["b"]}"#)]);
    assert_eq!(mono.ends.len(), 2);
    let problem = "direct-edges[0].toMonoVertex: the namespace has no MonoVertex gone yet";
    assert_eq!(mono.problems["frames"], [problem]);
}

#[test]
fn cycles_and_edges_to_oneself_are_planned() {
    let back = r#"{"from": "infer", "to": "decode", "networks": ["rdma-a"]}"#;
    let own = r#"{"from": "infer", "to": "infer", "networks": ["rdma-a"]}"#;
    let plan = plan(&[("frames", &format!("{EDGE}, {back}, {own}"))]);
    let infer = &plan.ends[&vertex("frames", "infer")];
    assert_eq!((infer.targets.len(), infer.sources.len(), infer.networks.len()), (2, 2, 1));
    assert!(plan.problems.is_empty());
}

#[test]
fn a_network_is_the_same_with_its_name_as_alias() {
    let back = r#"{"from": "infer", "to": "decode", "networks": [{"name": "rdma-a", "alias": "rdma-a"}]}"#;
    let plan = plan(&[("frames", &format!("{EDGE}, {back}"))]);
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    assert_eq!(plan.ends[&vertex("frames", "infer")].networks.len(), 1);
}

#[test]
fn two_networks_with_one_alias_are_named_with_their_namespaces() {
    let clash =
        r#"{"from": "infer", "to": "decode", "networks": [{"name": "rdma-a", "namespace": "infra"}]}"#;
    let plan = plan(&[("frames", &format!("{EDGE}, {clash}"))]);
    let [problem] = &plan.problems["frames"][..] else { panic!("{:?}", plan.problems) };
    let both = "NetworkAttachmentDefinition infra/rdma-a has the alias rdma-a, but an edge before has \
                NetworkAttachmentDefinition rdma-a as rdma-a";
    assert!(problem.contains(both), "{problem}");
}

#[test]
fn an_edge_that_does_not_fit_to_those_before_gets_nothing_at_both_ends() {
    for clash in [
        r#"{"from": "infer", "to": "decode", "networks": [{"name": "rdma-a", "alias": "rail0"}], "port": 9}"#,
        r#"{"from": "infer", "to": "decode", "networks": [{"name": "other", "alias": "rdma-a"}], "port": 9}"#,
    ] {
        let plan = plan(&[("frames", &format!("{EDGE}, {clash}"))]);
        assert_eq!(plan.ends, self::plan(&[("frames", EDGE)]).ends);
        let [problem] = &plan.problems["frames"][..] else { panic!("{:?}", plan.problems) };
        assert!(
            problem.starts_with("direct-edges[1]: network") && problem.ends_with("make them the same"),
            "{problem}"
        );
    }
}

#[test]
fn an_edge_from_another_pipeline_displaces_none_of_a_pipelines_own() {
    let out = |from: &str, network: &str, port: usize| {
        format!(
            r#"{{"from": "{from}", "to": "infer", "toPipeline": "prod", "networks": [{network}], "port": {port}}}"#
        )
    };
    let clash = out("infer", r#"{"name": "other", "alias": "rdma-a"}"#, 18515);
    let ports: Vec<String> = (1..=MAX_PORTS).map(|port| out("decode", r#""rdma-a""#, port)).collect();
    let own = plan(&[("prod", EDGE)]);
    for edges in [clash, ports.join(",")] {
        let both = plan(&[("alpha", &edges), ("prod", EDGE)]);
        assert_eq!(both.problems.keys().collect::<Vec<_>>(), ["alpha"], "{:?}", both.problems);
        assert_eq!(both.problems["alpha"].len(), 1, "{:?}", both.problems);
        let (decode, infer) = (vertex("prod", "decode"), vertex("prod", "infer"));
        assert_eq!(both.ends[&decode], own.ends[&decode]);
        assert_eq!(both.ends[&infer].sources[0], own.ends[&infer].sources[0]);
        assert_eq!(both.ends[&infer].ports[0], 18515);
    }
}

#[test]
fn many_problems_are_counted() {
    let to = |index: usize| format!(r#"{{"from": "decode", "toMonoVertex": "m{index}", "networks": ["a"]}}"#);
    let edges: Vec<String> = (0..MAX_PEERS + 20).map(to).collect();
    let problems = &plan(&[("frames", &format!("7, {}", edges.join(",")))]).problems["frames"];
    assert_eq!(problems.len(), MAX_PROBLEMS + 1);
    assert!(problems[0].starts_with("direct-edges[0]: invalid type"), "{problems:?}");
    assert_eq!(problems[MAX_PROBLEMS], "13 more problems with direct edges");
}

#[test]
fn what_vertices_may_have_is_limited() {
    let to = |index: usize| format!(r#"{{"from": "decode", "toMonoVertex": "m{index}", "networks": ["a"]}}"#);
    let edges: Vec<String> = (0..MAX_PEERS + 2).map(to).collect();
    let plan = plan(&[("frames", &edges.join(",")), ("other", EDGE)]);
    let decode = &plan.ends[&vertex("frames", "decode")];
    assert_eq!((decode.targets.len(), plan.problems["frames"].len()), (MAX_PEERS, 2));
    assert!(plan.problems["frames"][0].contains("may have 64 vertices that it sends to"));
    assert!(!plan.problems.contains_key("other"));
    // The variable stays below what Linux allows, with names as long as they can be.
    let longest =
        format!("{}.{}.{}.{}.:65535", "x".repeat(63), "x".repeat(63), "x".repeat(63), "x".repeat(61));
    assert!(longest.len() * MAX_PEERS < 128 << 10);

    let networks: Vec<String> = (0..20)
        .map(|index| format!(r#"{{"from": "decode", "to": "infer", "networks": ["n{index}"]}}"#))
        .collect();
    let plan = self::plan(&[("frames", &networks.join(","))]);
    assert_eq!(
        (plan.ends[&vertex("frames", "infer")].networks.len(), plan.problems["frames"].len()),
        (16, 4)
    );
}

#[test]
fn the_stamp_changes_with_what_is_injected_only() {
    let stamp = |edges: &str, settings: &Settings| {
        plan(&[("frames", edges)]).ends[&vertex("frames", "infer")].stamp(settings)
    };
    let first = stamp(EDGE, &settings());
    assert_eq!(first.len(), 16);
    assert_eq!(first, stamp(EDGE, &settings()));
    let far = r#"{"from": "decode", "toMonoVertex": "store", "networks": ["rdma-a"]}"#;
    assert_eq!(first, stamp(&format!("{EDGE}, {far}"), &settings()));
    let other = EDGE.replace("rdma-a", "rdma-b");
    assert_ne!(first, stamp(&other, &settings()));
    assert_ne!(first, stamp(EDGE, &Settings { ipc_lock: false, ..settings() }));
}
