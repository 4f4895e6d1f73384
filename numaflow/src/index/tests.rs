use super::*;
use crate::fixtures::{pipeline, settings, vertex};

const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// Returns the decision about the namespace whose turn it is.
fn next(state: &State) -> Option<(String, Decision)> {
    state.next(Instant::now())
}

fn state(edges: &str) -> State {
    let state = State::new(settings());
    state.apply(pipeline(edges));
    for name in ["in", "decode", "infer"] {
        state.apply(vertex(name));
    }
    state
}

#[test]
fn a_namespace_waits_once_and_only_for_changes_that_matter() {
    let state = state(EDGE);
    let (namespace, decision) = next(&state).unwrap();
    assert_eq!((namespace.as_str(), decision.writes.len()), ("vision", 4));
    assert!(next(&state).is_none());

    // Numaflow writes status all the time.
    let mut newer = vertex("infer");
    newer.metadata.resource_version = Some("9999".to_owned());
    state.apply(newer.clone());
    assert!(next(&state).is_none());
    assert_eq!(state.vertex("vision", "frames-infer").unwrap().version, "9999");

    newer.metadata.annotations.as_mut().unwrap().insert(HASH.to_owned(), String::new());
    state.apply(newer);
    assert_eq!(next(&state).unwrap().1.writes.len(), 3, "infer waits for Numaflow");
}

#[test]
fn a_list_removes_what_is_gone() {
    let state = state(EDGE);
    let key = |name: &str| ObjectKey { namespace: "vision".to_owned(), name: name.to_owned() };
    while next(&state).is_some() {}
    Index::<Vertex>::reset(&state, &[key("frames-decode")].into());
    let (_, decision) = next(&state).unwrap();
    assert_eq!(decision.writes.len(), 2, "a service and a reset for decode");
    Index::<Vertex>::delete(&state, &key("frames-decode"));
    Index::<Pipeline>::delete(&state, &key("frames"));
    assert_eq!(next(&state).unwrap().1, Decision::default());
    assert!(state.describe().is_empty() && state.inner.lock().namespaces.is_empty());
}

#[test]
fn a_pipeline_being_deleted_keeps_its_plan() {
    let state = state(EDGE);
    let before = next(&state).unwrap().1;
    let mut deleted = pipeline(EDGE);
    deleted.metadata.deletion_timestamp = serde_json::from_str(r#""2026-11-25T16:49:30Z""#).unwrap();
    state.apply(deleted);
    state.start_over();
    assert_eq!(next(&state).unwrap().1, before);
}

#[test]
fn the_webhook_plans_with_the_pipeline_that_was_just_read() {
    let state = state("");
    let read = Declared::of(&pipeline(EDGE));
    let end = state.end("vision", ("frames", &read), "infer").unwrap();
    assert_eq!(end.sources.len(), 1);
    assert_eq!(state.end("vision", ("frames", &read), "in"), None);
    assert_eq!(state.end("other", ("frames", &Declared::default()), "infer"), None);
    // Edges of other Pipelines count too.
    let other = r#"[{"from": "decode", "to": "infer", "toPipeline": "frames", "networks": ["b"]}]"#;
    let mut other = pipeline(other);
    other.metadata.name = Some("other".to_owned());
    state.apply(other);
    assert_eq!(state.end("vision", ("frames", &read), "infer").unwrap().sources.len(), 2);
}

#[test]
fn pipelines_of_one_name_in_two_namespaces_have_plans_of_their_own() {
    let state = state(EDGE);
    let there = |mut object: Pipeline| {
        object.metadata.namespace = Some("other".to_owned());
        object
    };
    state.apply(there(pipeline(&EDGE.replace("rdma-a", "rdma-b"))));
    let mut infer = vertex("infer");
    infer.metadata.namespace = Some("other".to_owned());
    state.apply(infer);
    let mut counts = BTreeMap::new();
    while let Some((namespace, decision)) = next(&state) {
        counts.insert(namespace, decision.writes.len());
    }
    assert_eq!(counts, [("other".to_owned(), 2), ("vision".to_owned(), 4)].into());
    let plans = state.describe();
    for (namespace, network) in [("vision", "rdma-a"), ("other", "rdma-b")] {
        let decode = EndName::Vertex { pipeline: "frames".to_owned(), vertex: "decode".to_owned() };
        let end = &plans[namespace].plan.ends[&decode];
        assert_eq!(end.networks[0].name, network);
        assert_eq!(end.targets, [format!("infer.frames.{namespace}.vertexdomain.local.:18515")]);
    }
    // What is removed from one stays in the other.
    state.apply(there(pipeline("")));
    assert_eq!(state.describe().keys().collect::<Vec<_>>(), ["vision"]);
}
