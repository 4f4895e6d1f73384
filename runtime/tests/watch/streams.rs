//! Lists in streams, and servers that do not support them.

use multinet_runtime::watch::{DEFAULT_LISTS, Lists};

use crate::world::{World, object};

#[tokio::test(start_paused = true)]
async fn the_stream_goes_on_after_its_list() {
    let mut world = World::start(Lists::Stream);
    let list = world.api.next_streamed_list().await;
    assert_eq!(list.query("resourceVersionMatch").as_deref(), Some("NotOlderThan"));
    assert_eq!(list.query("resourceVersion").as_deref(), Some(""), "as new as the request itself");
    let events = list.stream();
    events.added(&object("a", "1"));
    events.bookmark("2");
    events.added(&object("b", "2"));
    world.calls.expect(["apply a@1", "apply b@2"]).await;
    assert!(!world.readiness.is_ready());
    events.end_of_list("3");
    world.calls.expect(["reset a b", "commit"]).await;
    assert!(world.readiness.is_ready());

    events.modified(&object("a", "4"));
    world.calls.expect(["apply a@4", "commit"]).await;
    drop(events);
    world.api.next_watch("4").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_streams_is_asked_for_pages_at_once_and_from_then_on() {
    let mut world = World::start(DEFAULT_LISTS);
    let start = tokio::time::Instant::now();
    let refusal = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    world.api.next_streamed_list().await.status(422, refusal);
    let pages = world.api.next_list().await;
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    pages.list("1", &[object("a", "1")]);
    world.calls.expect(["apply a@1", "reset a", "commit"]).await;

    world.api.next_watch("1").await.status(410, "too old");
    world.api.next_list().await;
    assert_eq!(world.warnings(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_off_within_its_list_is_followed_by_pages_once() {
    let mut world = World::start(Lists::Stream);
    let events = world.api.next_streamed_list().await.stream();
    events.added(&object("a", "1"));
    drop(events);
    world.calls.expect(["apply a@1", "commit"]).await;
    assert!(!world.readiness.is_ready(), "the list was not complete");

    world.api.next_list().await.list("5", &[object("b", "2")]);
    world.calls.expect(["apply b@2", "reset b", "commit"]).await;
    world.api.next_watch("5").await.status(410, "too old");
    world.api.next_streamed_list().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_expires_within_its_list_is_followed_by_pages() {
    let mut world = World::start(Lists::Stream);
    let events = world.api.next_streamed_list().await.stream();
    events.added(&object("gone-meanwhile", "1"));
    events.error(410, "too old resource version");
    world.calls.expect(["apply gone-meanwhile@1", "commit"]).await;
    world.api.next_list().await.list("5", &[]);
    world.calls.expect(["reset ", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_deleted_within_a_list_is_not_live() {
    let mut world = World::start(Lists::Stream);
    let events = world.api.next_streamed_list().await.stream();
    events.added(&object("a", "1"));
    events.deleted(&object("a", "2"));
    events.end_of_list("3");
    world.calls.expect(["apply a@1", "delete a", "reset ", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_event_for_35_seconds_is_abandoned() {
    let mut world = World::start(Lists::Stream);
    let events = world.api.next_streamed_list().await.stream();
    events.added(&object("a", "1"));
    world.calls.expect(["apply a@1"]).await;
    let start = tokio::time::Instant::now();
    world.api.next_list().await;
    let waited = start.elapsed().as_secs_f64();
    assert!((35.0..36.0).contains(&waited), "{waited}");
    assert_eq!(world.logged("WARN", "does not answer"), 1);
    drop(events);
}
