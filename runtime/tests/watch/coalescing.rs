//! Commits of the index after bursts of events.

use crate::world::{World, object};
use multinet_testing::fake_api::line;

/// Returns `number` events as one chunk of the body.
fn burst(number: usize) -> String {
    (0..number).map(|i| line("MODIFIED", &object("a", &(i + 2).to_string()))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_committed_once() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.text(&burst(500));
    world.calls.skip(500).await;
    world.calls.expect(["commit"]).await;

    events.added(&object("b", "600"));
    world.calls.expect(["apply b@600", "commit"]).await;
    events.added(&object("c", "601"));
    world.calls.expect(["apply c@601", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_without_end_is_committed_every_1024_events() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.text(&burst(2500));
    for (number, last) in [(1024, "apply a@1025"), (1024, "apply a@2049"), (452, "apply a@2501")] {
        world.calls.skip(number - 1).await;
        world.calls.expect([last, "commit"]).await;
    }
    world.calls.expect_none();
    drop(events);
}

#[tokio::test(start_paused = true)]
async fn half_an_event_is_applied_once_its_rest_arrives() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    let text = burst(2);
    let (first, second) = text.split_at(text.len() - 10);
    events.text(first);
    world.calls.expect(["apply a@2", "commit"]).await;
    world.calls.expect_none();
    events.text(second);
    world.calls.expect(["apply a@3", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn bookmarks_alone_cause_no_commit() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.bookmark("2");
    events.bookmark("3");
    drop(events);
    let events = world.api.next_watch("3").await.stream();
    events.added(&object("a", "4"));
    world.calls.expect(["apply a@4", "commit"]).await;
}
