//! Tests of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::ObjectReference;
use multinet_controller::events::{Events, events};
use multinet_controller::work::Notice;
use multinet_runtime::Leadership;
use multinet_testing::fake_api::FakeApi;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::time::Instant;

use super::leadership::election;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/vision/events";

fn start() -> (Events, FakeApi, Counter) {
    start_as(Leadership::always())
}

fn start_as(leadership: Leadership) -> (Events, FakeApi, Counter) {
    let (client, api) = FakeApi::new();
    let lost = Counter::default();
    let (events, publisher) = events(client, leadership, "controller-0", lost.clone());
    tokio::spawn(publisher.run());
    (events, api, lost)
}

fn notice(note: &str) -> Notice {
    let regarding = ObjectReference {
        api_version: Some("multinetwork.numaproj.io/v1alpha1".into()),
        kind: Some("MultiNetworkService".into()),
        namespace: Some("vision".into()),
        name: Some("infer".into()),
        uid: Some("u".into()),
        ..ObjectReference::default()
    };
    Notice { regarding, reason: "DuplicateAddress".into(), note: note.into() }
}

#[tokio::test(start_paused = true)]
async fn a_repetition_is_counted_and_another_text_is_another_event() {
    let (events, mut api, lost) = start();
    events.publish(vec![notice("a")]);
    let create = api.expect(Method::POST, EVENTS).await;
    assert_eq!(create.at("/regarding/uid"), "u");
    assert_eq!((create.at("/type"), create.at("/note")), (&json!("Warning"), &json!("a")));
    assert_eq!(create.at("/reportingInstance"), "controller-0");
    let name = create.at("/metadata/name").as_str().unwrap().to_owned();
    create.store("1");

    for count in [2, 3] {
        events.publish(vec![notice("a")]);
        let repeated = api.expect(Method::PATCH, &format!("{EVENTS}/{name}")).await;
        assert_eq!(repeated.at("/series/count"), &json!(count));
        repeated.json(StatusCode::OK, &json!({"metadata": {"name": name}}));
    }
    events.publish(vec![notice("b")]);
    api.expect(Method::POST, EVENTS).await.store("2");
    assert_eq!(lost.get(), 0);

    // The series expires after a while.
    tokio::time::sleep(Duration::from_secs(7 * 60)).await;
    events.publish(vec![notice("a")]);
    api.expect(Method::POST, EVENTS).await.store("3");
}

#[tokio::test(start_paused = true)]
async fn an_expired_event_is_created_again() {
    let (events, mut api, _) = start();
    events.publish(vec![notice("a"), notice("a")]);
    api.expect(Method::POST, EVENTS).await.store("1");
    api.expect(Method::PATCH, EVENTS).await.status_with(404, "not found", &json!({"kind": "events"}));
    api.expect(Method::POST, EVENTS).await.store("2");
}

#[tokio::test(start_paused = true)]
async fn events_in_a_terminating_namespace_are_dropped_silently() {
    let (events, mut api, lost) = start();
    events.publish(vec![notice("a"), notice("b")]);
    let cause = json!({"reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace"});
    let details = json!({"kind": "events", "causes": [cause]});
    api.expect(Method::POST, EVENTS).await.status_with(403, "vision is being terminated", &details);
    api.expect(Method::POST, EVENTS).await.store("1");
    assert_eq!(lost.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn publishing_does_not_wait_for_a_slow_api_server() {
    let (events, mut api, lost) = start();
    events.publish((0..1000).map(|number| notice(&number.to_string())).collect());
    let _silent = api.expect(Method::POST, EVENTS).await;
    assert!(lost.get() >= 700, "{}", lost.get());
    let before = lost.get();
    let _next = api.expect(Method::POST, EVENTS).await;
    assert_eq!(lost.get(), before + 1, "the unanswered request is abandoned");
}

/// Such events result from an annotation that keeps changing.
#[tokio::test(start_paused = true)]
async fn an_object_with_ever_new_notices_gets_an_event_every_five_minutes() {
    let (events, mut api, lost) = start();
    let mut spam = (0..).map(|number: u32| notice(&number.to_string()));
    let mut written = 0;
    for _ in 0..5 {
        events.publish(spam.by_ref().take(20).collect());
        while let Some(create) = api.now().await {
            create.store("1");
            written += 1;
        }
    }
    assert_eq!((written, lost.get()), (25, 75));
    let mut other = notice("another object's");
    other.regarding.name = Some("detect".into());
    events.publish(vec![other]);
    api.expect(Method::POST, EVENTS).await.store("1");
    tokio::time::sleep(Duration::from_secs(5 * 60)).await;
    events.publish(spam.by_ref().take(20).collect());
    api.expect(Method::POST, EVENTS).await.store("1");
    api.expect_no_request().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_events_does_not_displace_those_of_another() {
    let (events, mut api, lost) = start();
    events.publish((0..200).map(|number| notice(&number.to_string())).collect());
    let mut other = notice("a");
    other.regarding.namespace = Some("audio".into());
    events.publish(vec![other]);
    api.expect(Method::POST, EVENTS).await.store("1");
    api.expect(Method::POST, "/apis/events.k8s.io/v1/namespaces/audio/events").await.store("2");
    assert_eq!(lost.get(), 200 - 64);
}

#[tokio::test(start_paused = true)]
async fn an_event_ends_with_the_term_it_began_in() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let (events, mut api, lost) = start_as(election(&is_cut));
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_cut.store(true, Ordering::Relaxed);
    // A leader may begin writes for at least 8 s after this, and must end them within 13.5 s.
    tokio::time::sleep(Duration::from_millis(7900)).await;
    events.publish(vec![notice("a")]);
    let (under_way, begun) = (api.expect(Method::POST, EVENTS).await, Instant::now());
    while !under_way.is_cancelled() {
        assert!(begun.elapsed() < Duration::from_millis(5700), "another process may hold the lease now");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    events.publish(vec![notice("b")]);
    api.expect_no_request_for(Duration::from_secs(60)).await;
    assert_eq!(lost.get(), 1);
}
