//! Undecodable objects among decodable ones.

use multinet_runtime::watch::Lists;

use crate::world::{World, bad_object, object};

const UNDECODABLE: &str = "multinet_watch_undecodable_objects{kind=\"ConfigMap\"}";

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_in_a_list_is_live_and_the_others_are_applied() {
    for lists in [Lists::Pages, Lists::Stream] {
        let mut world = World::start(lists);
        let items = [object("a", "1"), bad_object("b", "2"), object("c", "3")];
        let events = match lists {
            Lists::Pages => {
                world.api.next_list().await.list("4", &items);
                None
            }
            Lists::Stream => {
                let events = world.api.next_streamed_list().await.stream();
                items.iter().for_each(|item| events.added(item));
                events.end_of_list("4");
                Some(events)
            }
        };
        world.calls.expect(["apply a@1", "apply c@3", "reset a b c", "commit"]).await;
        assert!(world.readiness.is_ready());
        assert_eq!(world.logged("WARN", "object=default/b version=2"), 1);
        assert_eq!(world.metric(UNDECODABLE), Some(1.0));
        drop(events);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_good_version_stays_until_the_object_decodes_again() {
    let mut world = World::listed(&[object("a", "1")]).await;
    let events = world.api.next_watch("1").await.stream();
    events.modified(&bad_object("a", "2"));
    events.added(&object("b", "3"));
    world.calls.expect(["apply b@3", "commit"]).await;
    assert_eq!(world.metric(UNDECODABLE), Some(1.0));

    events.modified(&object("a", "4"));
    world.calls.expect(["apply a@4", "commit"]).await;
    assert_eq!(world.metric(UNDECODABLE), Some(0.0));
    assert_eq!(world.logged("INFO", "can be decoded again"), 1);
}

#[tokio::test(start_paused = true)]
async fn every_undecodable_version_is_logged_once() {
    let mut world = World::listed(&[bad_object("a", "1")][..0]).await;
    let events = world.api.next_watch("1").await.stream();
    events.added(&bad_object("a", "2"));
    events.error(410, "too old");
    // The list has the current version. The watch after it has a new one.
    world.api.next_list().await.list("5", &[bad_object("a", "2")]);
    world.calls.expect(["reset a", "commit"]).await;
    let events = world.api.next_watch("5").await.stream();
    events.modified(&bad_object("a", "6"));
    events.added(&object("b", "7"));
    world.calls.expect(["apply b@7", "commit"]).await;
    assert_eq!(world.logged("WARN", "object=default/a version=2"), 1);
    assert_eq!(world.logged("WARN", "object=default/a version=6"), 1);
    assert_eq!(world.metric(UNDECODABLE), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_moves_the_version_on_and_its_deletion_is_applied() {
    let mut world = World::listed(&[object("a", "1")]).await;
    let events = world.api.next_watch("1").await.stream();
    events.modified(&bad_object("a", "2"));
    drop(events);
    let events = world.api.next_watch("2").await.stream();
    events.deleted(&bad_object("a", "3"));
    world.calls.expect(["delete a", "commit"]).await;
    assert_eq!(world.metric(UNDECODABLE), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_that_a_list_no_longer_has_is_forgotten() {
    let mut world = World::start(Lists::Pages);
    world.api.next_list().await.list("2", &[bad_object("a", "1")]);
    world.calls.expect(["reset a", "commit"]).await;
    world.api.next_watch("2").await.status(410, "too old");
    world.api.next_list().await.list("3", &[]);
    world.calls.expect(["reset ", "commit"]).await;
    assert_eq!(world.metric(UNDECODABLE), Some(0.0));
}
