//! API servers that are unreachable, busy, silent or broken, or refuse requests.

use std::time::Duration;

use http::StatusCode;
use multinet_runtime::watch::Lists;
use multinet_testing::fake_api::status;
use serde_json::json;
use tokio::time::Instant;

use crate::world::{HINT, World, object};

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_a_missing_kind_and_logs_it_once() {
    let mut world = World::start(Lists::Pages);
    for _ in 0..5 {
        world.api.next_list().await.text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let list = world.api.next_list().await;
    let reason = world.reason().unwrap();
    assert!(reason.contains("does not know this kind, configmaps") && reason.contains(HINT), "{reason}");
    assert_eq!(world.logged("WARN", &reason), 1);
    assert_eq!(world.warnings().len(), 1);
    assert_eq!(world.metric("multinet_watch_errors_total{kind=\"ConfigMap\",reason=\"missing\"}"), Some(5.0));

    list.list("1", &[]);
    world.calls.expect(["reset ", "commit"]).await;
    let _events = world.api.next_watch("1").await.stream();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(world.readiness.is_ready());
    assert_eq!(world.logged("INFO", "watching configmaps again"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_a_missing_permission_and_logs_it_once() {
    let mut world = World::start(Lists::Stream);
    let message = "configmaps is forbidden: User \"x\" cannot watch resource \"configmaps\"";
    for _ in 0..5 {
        world.api.next_streamed_list().await.status(403, message);
    }
    let list = world.api.next_streamed_list().await;
    let reason = world.reason().unwrap();
    assert!(reason.contains("grants list and watch of configmaps") && reason.contains(message), "{reason}");
    assert_eq!(world.warnings().len(), 1);

    let events = list.stream();
    events.end_of_list("1");
    world.calls.expect(["reset ", "commit"]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.logged("INFO", "watching configmaps again"), 1);
    drop(events);
}

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_taken_away_leaves_the_index_as_it_is() {
    let mut world = World::listed(&[object("a", "1")]).await;
    for _ in 0..5 {
        world.api.next_watch("1").await.status(403, "no longer");
    }
    let events = world.api.next_watch("1").await.stream();
    events.modified(&object("a", "2"));
    world.calls.expect(["apply a@2", "commit"]).await;
    assert!(world.readiness.is_ready());
    assert_eq!((world.warnings().len(), world.logged("INFO", "again")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_removed_kind_is_listed_anew_once_it_is_back() {
    let mut world = World::listed(&[object("a", "1")]).await;
    world.api.next_watch("1").await.text(StatusCode::NOT_FOUND, "404 page not found\n");
    world.api.next_list().await.text(StatusCode::NOT_FOUND, "404 page not found\n");
    world.api.next_list().await.list("9", &[]);
    world.calls.expect(["reset ", "commit"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_is_logged_once_and_the_watch_resumes_from_its_version() {
    let mut world = World::listed(&[object("a", "1")]).await;
    let events = world.api.next_watch("1").await.stream();
    events.modified(&object("a", "2"));
    world.calls.expect(["apply a@2", "commit"]).await;
    drop(events);
    for _ in 0..10 {
        world.api.next_watch("2").await.refuse();
    }
    let events = world.api.next_watch("2").await.stream();
    events.modified(&object("a", "3"));
    world.calls.expect(["apply a@3", "commit"]).await;

    assert_eq!(world.logged("WARN", "cannot be reached: connection refused"), 1);
    assert_eq!((world.warnings().len(), world.logged("INFO", "again")), (1, 1));
    assert_eq!(
        world.metric("multinet_watch_errors_total{kind=\"ConfigMap\",reason=\"unreachable\"}"),
        Some(10.0)
    );
    assert_eq!(world.metric("multinet_watch_relists_total{kind=\"ConfigMap\"}"), Some(1.0));

    // The next outage is logged again, and its pauses start over.
    drop(events);
    let start = Instant::now();
    world.api.next_watch("3").await.refuse();
    world.api.next_watch("3").await;
    assert!(start.elapsed() <= Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!(world.warnings().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_to_at_most_5_seconds() {
    let mut world = World::start(Lists::Stream);
    for _ in 0..20 {
        world.api.next_streamed_list().await.refuse();
    }
    for _ in 0..20 {
        let start = Instant::now();
        world.api.next_streamed_list().await.refuse();
        let waited = start.elapsed().as_secs_f64();
        assert!((2.5..5.01).contains(&waited), "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_gets_the_pause_that_it_asks_for() {
    let mut busy = status(429, "storage is (re)initializing");
    busy["details"] = json!({"retryAfterSeconds": 1});
    let mut world = World::start(Lists::Stream);
    for _ in 0..20 {
        world.api.next_streamed_list().await.json(StatusCode::TOO_MANY_REQUESTS, &busy);
        let start = Instant::now();
        let list = world.api.next_streamed_list().await;
        let waited = start.elapsed().as_secs_f64();
        assert!((1.0..1.51).contains(&waited), "{waited}");
        list.json(StatusCode::TOO_MANY_REQUESTS, &busy);
    }
    world.api.next_streamed_list().await.stream().end_of_list("1");
    world.calls.expect(["reset ", "commit"]).await;
    assert_eq!(world.logged("WARN", "the API server is busy: storage is (re)initializing"), 1);
    assert_eq!(world.warnings().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_problem_is_logged_once_per_outage() {
    let mut world = World::listed(&[]).await;
    for _ in 0..3 {
        world.api.next_watch("1").await.refuse();
        world.api.next_watch("1").await.text(StatusCode::BAD_GATEWAY, "<html>\u{1b}[31m\nbad gateway</html>");
    }
    world.api.next_watch("1").await;
    assert_eq!(world.warnings().len(), 2);
    assert_eq!(world.logged("WARN", "the API server fails: <html>\\u{1b}[31m\\nbad gateway</html>"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_after_a_reset_connection_without_a_warning() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.added(&object("a", "2"));
    events.reset();
    world.calls.expect(["apply a@2", "commit"]).await;
    world.api.next_watch("2").await;
    assert_eq!(world.warnings(), [""; 0]);
    assert_eq!(world.metric("multinet_watch_errors_total{kind=\"ConfigMap\",reason=\"cut\"}"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_decoded_causes_a_list() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    events.added(&object("a", "2"));
    events.text("{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\",]}\n");
    events.added(&object("c", "4"));
    world.calls.expect(["apply a@2", "commit"]).await;
    world.api.next_list().await.list("5", &[object("a", "2"), object("b", "3"), object("c", "4")]);
    world.calls.expect(["apply a@2", "apply b@3", "apply c@4", "reset a b c", "commit"]).await;
    assert_eq!(world.logged("WARN", "answer cannot be read"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_again_after_35_seconds() {
    let mut world = World::listed(&[]).await;
    let events = world.api.next_watch("1").await.stream();
    tokio::time::sleep(Duration::from_secs(20)).await;
    events.bookmark("2");
    let start = Instant::now();
    world.api.next_watch("2").await;
    let waited = start.elapsed().as_secs_f64();
    assert!((35.0..35.1).contains(&waited), "{waited}");
    assert_eq!(world.warnings(), [""; 0]);
    drop(events);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_but_does_not_answer_is_given_15_seconds() {
    let mut world = World::listed(&[]).await;
    let unanswered = world.api.next_watch("1").await;
    let start = Instant::now();
    world.api.next_watch("1").await;
    let waited = start.elapsed().as_secs_f64();
    assert!((15.0..15.3).contains(&waited), "{waited}");
    assert_eq!(world.logged("WARN", "the API server does not answer: nothing has arrived for 15 s"), 1);
    drop(unanswered);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_opened_again_without_pause() {
    let mut world = World::listed(&[]).await;
    let start = Instant::now();
    for _ in 0..6 {
        drop(world.api.next_watch("1").await.stream());
    }
    world.api.next_watch("1").await;
    // The shortest pauses: 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2.5 s.
    assert!(start.elapsed() >= Duration::from_millis(5600), "{:?}", start.elapsed());
    assert_eq!(world.logged("WARN", "the watch ended at once"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_expires_right_after_its_list_is_retried_with_pauses() {
    let mut world = World::start(Lists::Pages);
    let start = Instant::now();
    for _ in 0..6 {
        world.api.next_list().await.list("1", &[]);
        world.api.next_watch("1").await.status(410, "too old");
    }
    world.api.next_list().await;
    assert!(start.elapsed() >= Duration::from_millis(5600), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_is_restored_from_a_backup_is_listed_anew() {
    let mut world = World::listed(&[object("a", "1")]).await;
    let events = world.api.next_watch("1").await.stream();
    events.modified(&object("a", "900"));
    world.calls.expect(["apply a@900", "commit"]).await;
    drop(events);
    // The server accepts the watch, and would send no event before version 900.
    let _silent = world.api.next_watch("900").await.stream();
    world.api.next_version_check().await.list("99", &[]);
    world.api.next_list().await.list("99", &[object("a", "50")]);
    world.calls.expect(["apply a@50", "reset a", "commit"]).await;
    world.api.next_watch("99").await;
    let restored = "it is at version 99, after version 900 before; listing anew";
    assert_eq!((world.logged("WARN", restored), world.warnings().len()), (1, 1));
    assert_eq!(
        world.metric("multinet_watch_errors_total{kind=\"ConfigMap\",reason=\"restored\"}"),
        Some(1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_if_the_newest_version_is_not_older_or_unknown() {
    for newest in [Some("900"), Some("1000"), Some("none"), None] {
        let mut world = World::listed(&[]).await;
        let events = world.api.next_watch("1").await.stream();
        events.added(&object("a", "900"));
        drop(events);
        world.calls.expect(["apply a@900", "commit"]).await;
        let events = world.api.next_watch("900").await.stream();
        let check = world.api.next_version_check().await;
        match newest {
            Some(newest) => check.list(newest, &[]),
            None => check.status(403, "lists are forbidden"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        events.modified(&object("a", "1001"));
        world.calls.expect(["apply a@1001", "commit"]).await;
        assert_eq!(world.warnings(), [""; 0], "{newest:?}");
        world.shutdown.cancel();
        world.task.await.unwrap();
    }
}
