use std::time::Duration;

use http::Method;
use multinet_runtime::Index;
use multinet_testing::fake_api::{FakeApi, Request};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::*;
use crate::fixtures::{pipeline, settings, vertex};
use crate::limits::writes::LONGEST_PAUSE;
use crate::objects::Pipeline;

const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// Starts a leader for a Pipeline with this annotation, in a cluster with or without the webhook's
/// configuration.
fn start(edges: &str, has_webhook: bool) -> (Arc<State>, FakeApi) {
    let (client, api) = FakeApi::new();
    let state = Arc::new(State::new(settings()));
    Index::<Pipeline>::apply(&*state, pipeline(edges));
    for name in ["decode", "infer"] {
        state.apply(vertex(name));
    }
    let leader = Leader::new(
        client.clone(),
        Arc::clone(&state),
        (Leadership::always(), Refresh::default()),
        Events::new(client, "test", Counter::default()),
        Metrics::register(&mut Registry::default()),
        Arc::new(AtomicBool::new(has_webhook)),
    );
    tokio::spawn(leader.run(CancellationToken::new()));
    (state, api)
}

/// Accepts the creation of a service, and shows it to the leader.
fn accept(state: &State, request: Request) {
    let service: MultiNetworkService = serde_json::from_value(request.store("7")).unwrap();
    state.apply(service);
    Index::<MultiNetworkService>::commit(state);
}

#[tokio::test(start_paused = true)]
async fn a_refused_service_is_reported_once_and_retried_with_growing_pauses() {
    let (state, mut api) = start(EDGE, false);
    let create = async |api: &mut FakeApi, name: &str| {
        let request = api.expect(Method::POST, "/multinetworkservices").await;
        assert_eq!(request.at("/metadata/name"), name);
        request
    };
    let refuse = |request: Request| request.status(403, "frames-infer is forbidden: exceeded quota: few");
    let (decode, infer) = (create(&mut api, "frames-decode").await, create(&mut api, "frames-infer").await);
    refuse(infer);
    accept(&state, decode);

    let event = api.expect(Method::POST, "/events").await;
    assert_eq!(
        (event.at("/reason"), event.at("/regarding/name")),
        (&json!("ServiceRefused"), &json!("frames"))
    );
    let note = event.at("/note").as_str().unwrap();
    for part in ["direct-edges[0]: ", "MultiNetworkService frames-infer; ", "exceeded quota: few"] {
        assert!(note.contains(part), "{note}");
    }
    event.store("8");

    let start = Instant::now();
    for seconds in [5, 15, 35] {
        let infer = create(&mut api, "frames-infer").await;
        assert_eq!(start.elapsed().as_secs(), seconds);
        refuse(infer);
    }
    accept(&state, create(&mut api, "frames-infer").await);
    api.expect_no_request_for(LONGEST_PAUSE).await;
}

/// As by a policy that forbids what is injected.
#[tokio::test(start_paused = true)]
async fn a_refused_vertex_is_reported_once_until_it_can_be_written() {
    let (state, mut api) = start(EDGE, true);
    let declared = crate::annotation::Declared::of(&pipeline(EDGE));
    let patch = async |api: &mut FakeApi| {
        let request = api.expect(Method::PATCH, "/vertices/frames-").await;
        let name = request.uri.path().rsplit('-').next().unwrap().to_owned();
        (request, name)
    };
    for _ in 0..2 {
        accept(&state, api.expect(Method::POST, "/multinetworkservices").await);
    }
    for _ in 0..2 {
        patch(&mut api).await.0.status(403, "admission denied the request: no IPC_LOCK");
    }
    let mut reported = Vec::new();
    for version in ["8", "9"] {
        let event = api.expect(Method::POST, "/events").await;
        assert_eq!(event.at("/reason"), "VertexRefused");
        reported.push(event.at("/note").as_str().unwrap().to_owned());
        event.store(version);
    }
    for (note, name) in reported.iter().zip(["decode", "infer"]) {
        let vertex = format!("Vertex frames-{name} is not written anew");
        assert!(note.starts_with(&vertex) && note.ends_with("request: no IPC_LOCK"), "{note}");
    }
    // The text of another answer is no reason for another event.
    for _ in 0..2 {
        patch(&mut api).await.0.status(422, "admission denied the request: at 12:00:01");
    }
    // Each probe succeeds, and is followed by the reset.
    for _ in 0..4 {
        let (request, name) = patch(&mut api).await;
        let end = state.end("vision", ("frames", &declared), &name).unwrap();
        let mut vertex = crate::fixtures::vertex_json(&name);
        vertex["spec"]["metadata"] = json!({"annotations": {PLAN: end.stamp(state.settings())}});
        request.json(http::StatusCode::OK, &vertex);
    }
    // The watch shows nothing of it in this test.
    api.expect_no_request_for(Duration::from_secs(600)).await;
}
