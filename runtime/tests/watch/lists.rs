//! Lists in pages, and the watches after them.

use std::time::Duration;

use futures::FutureExt as _;
use multinet_runtime::watch::Lists;
use multinet_runtime::{Refresh, WatchConfig};
use multinet_testing::fake_api::Request;
use serde_json::json;

use crate::world::{World, object};

#[tokio::test(start_paused = true)]
async fn pages_are_applied_as_they_arrive_and_the_watch_goes_on_from_the_last() {
    let mut world = World::start(Lists::Pages);
    let first = world.api.next_list().await;
    assert_eq!(world.reason().as_deref(), Some("listing configmaps"));
    assert_eq!(first.uri.path(), "/api/v1/configmaps");
    assert_eq!((first.query("limit").as_deref(), first.query("continue")), (Some("100"), None));
    first.page("6", "more", &[object("a", "1"), object("b", "2")]);
    world.calls.expect(["apply a@1", "apply b@2"]).await;

    let second = world.api.next_list().await;
    assert_eq!(
        (second.query("limit").as_deref(), second.query("continue").as_deref()),
        (Some("100"), Some("more"))
    );
    assert!(!world.readiness.is_ready());
    second.list("7", &[object("c", "3")]);
    world.calls.expect(["apply c@3", "reset a b c", "commit"]).await;

    let watch = world.api.next_watch("7").await;
    assert!(world.readiness.is_ready());
    assert_eq!(watch.query("allowWatchBookmarks").as_deref(), Some("true"));
    assert_eq!(watch.query("timeoutSeconds").as_deref(), Some("30"));
    assert_eq!(world.metric("multinet_watch_events_total{kind=\"ConfigMap\",op=\"list\"}"), Some(3.0));
    assert_eq!(world.metric("multinet_watch_relists_total{kind=\"ConfigMap\"}"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_makes_the_watch_ready() {
    let mut world = World::start(Lists::Pages);
    world.api.next_list().await.list("1", &[]);
    world.calls.expect(["reset ", "commit"]).await;
    world.api.next_watch("1").await;
    assert!(world.readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn changes_reach_the_index_in_their_order() {
    let mut world = World::listed(&[object("a", "1")]).await;
    let events = world.api.next_watch("1").await.stream();
    events.added(&object("b", "2"));
    events.modified(&object("a", "3"));
    events.deleted(&object("b", "4"));
    world.calls.expect(["apply b@2", "apply a@3", "delete b", "commit"]).await;

    drop(events);
    world.api.next_watch("4").await;
    assert_eq!(world.metric("multinet_watch_events_total{kind=\"ConfigMap\",op=\"apply\"}"), Some(2.0));
    assert_eq!(world.metric("multinet_watch_events_total{kind=\"ConfigMap\",op=\"delete\"}"), Some(1.0));
    assert_eq!(world.warnings(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_move_the_version_on_without_a_call() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.bookmark("40");
    drop(events);
    world.api.next_watch("40").await;
    world.calls.expect_none();
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_causes_a_list_that_removes_deleted_objects() {
    let mut world = World::listed(&[object("a", "1"), object("b", "1")]).await;
    // Once instead of the answer, and once amid the events.
    world.api.next_watch("1").await.status(410, "too old resource version");
    world.api.next_list().await.list("10", &[object("b", "1"), object("c", "9")]);
    world.calls.expect(["apply b@1", "apply c@9", "reset b c", "commit"]).await;

    let events = world.api.next_watch("10").await.stream();
    events.added(&object("d", "11"));
    events.error(410, "too old resource version");
    world.calls.expect(["apply d@11", "commit"]).await;
    world.api.next_list().await.list("20", &[object("d", "11")]);
    world.calls.expect(["apply d@11", "reset d", "commit"]).await;
    world.api.next_watch("20").await;
    assert_eq!(world.warnings(), [""; 0], "that is routine");
    assert_eq!(world.metric("multinet_watch_errors_total{kind=\"ConfigMap\",reason=\"expired\"}"), Some(2.0));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_between_two_pages_starts_anew() {
    let mut world = World::start(Lists::Pages);
    world.api.next_list().await.page("5", "more", &[object("gone-meanwhile", "1")]);
    world.api.next_list().await.status(410, "the provided continue parameter is too old");
    world.calls.expect(["apply gone-meanwhile@1", "commit"]).await;
    assert!(!world.readiness.is_ready());

    let again = world.api.next_list().await;
    // The list has begun before any of its objects is applied.
    assert_eq!((again.query("continue"), world.calls.starts()), (None, 2));
    again.list("6", &[object("a", "2")]);
    world.calls.expect(["apply a@2", "reset a", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn managed_fields_never_reach_the_index() {
    let mut managed = object("a", "1");
    managed["metadata"]["managedFields"] =
        json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:data": {}}}]);
    let mut world = World::start(Lists::Pages);
    world.api.next_list().await.list("1", std::slice::from_ref(&managed));
    // The index asserts that the fields are absent.
    world.calls.expect(["apply a@1", "reset a", "commit"]).await;
    world.api.next_watch("1").await.stream().modified(&managed);
    world.calls.expect(["apply a@1", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_label_selector_is_part_of_every_request() {
    const SELECTOR: &str = "app=web,!old";
    let sent = |request: &Request| {
        let selector = request.query("labelSelector").map(|text| text.replace("%3D", "="));
        selector.map(|text| text.replace("%2C", ",").replace("%21", "!"))
    };
    let mut world = World::start_with(|config| WatchConfig {
        lists: Lists::Stream,
        labels: Some(SELECTOR.to_owned()),
        ..config
    });
    let refused = world.api.next_streamed_list().await;
    assert_eq!(sent(&refused).as_deref(), Some(SELECTOR), "a list in a stream");
    refused.status(422, "no streamed lists here");
    let first = world.api.next_list().await;
    assert_eq!(sent(&first).as_deref(), Some(SELECTOR), "a page");
    first.page("1", "more", &[object("a", "1")]);
    let second = world.api.next_list().await;
    assert_eq!(sent(&second).as_deref(), Some(SELECTOR), "the next page");
    second.list("1", &[]);
    let watch = world.api.next_watch("1").await;
    assert_eq!(sent(&watch).as_deref(), Some(SELECTOR), "a watch");
}

#[tokio::test(start_paused = true)]
async fn without_a_selector_none_is_sent() {
    let mut world = World::start(Lists::Pages);
    let list = world.api.next_list().await;
    assert_eq!(list.query("labelSelector"), None);
    list.list("1", &[]);
    assert_eq!(world.api.next_watch("1").await.query("labelSelector"), None);
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_the_watch() {
    let mut world = World::listed(&[]).await;
    let _events = world.api.next_watch("1").await.stream();
    world.shutdown.cancel();
    world.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refresh_causes_a_new_list_unless_the_last_one_is_young() {
    let refresh = Refresh::default();
    let mut world =
        World::start_with(|config| WatchConfig { lists: Lists::Pages, refresh: refresh.clone(), ..config });
    world.api.next_list().await.list("1", &[object("a", "1")]);
    world.calls.expect(["apply a@1", "reset a", "commit"]).await;
    // The stream stays open without an event, as if its connection were dead.
    let _silent = world.api.next_watch("1").await.stream();
    let (age, limit) = (Duration::from_secs(5), Duration::from_secs(30));
    assert!(refresh.refresh(age, limit).now_or_never().is_some(), "the list is young");
    tokio::time::advance(Duration::from_secs(6)).await;

    let mut refreshed = std::pin::pin!(refresh.refresh(age, limit));
    assert!(refreshed.as_mut().now_or_never().is_none());
    world.api.next_list().await.list("9", &[object("b", "8")]);
    world.calls.expect(["apply b@8", "reset b", "commit"]).await;
    assert_eq!(refreshed.await, [""; 0]);
    world.api.next_watch("9").await;
    assert_eq!(world.warnings(), [""; 0]);
}
