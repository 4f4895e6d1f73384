//! When what is written came to be.

use super::*;

fn written_at(slices: &[MultiNetworkEndpointSlice]) -> Option<&str> {
    slices[0].metadata.annotations.as_ref()?.get(labels::LAST_CHANGE_TRIGGER_TIME).map(String::as_str)
}

#[test]
fn a_slice_tells_of_the_earliest_change_that_it_holds() {
    let world = world();
    at(50);
    world.apply(service("infer", 1, |_| {}));
    commit(&world);
    write(&world, "infer", 1);

    at(100);
    world.apply(pod("a", "infer", "10.0.0.1", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(90));
    }));
    commit(&world);
    at(110);
    world.apply(pod("b", "infer", "10.0.0.2", |_| {}));
    commit(&world);
    let work = world.work(&key("infer"));
    assert_eq!(
        written_at(&work.slices.create),
        Some("1970-01-01T00:00:10.000000Z"),
        "when pod b became ready"
    );

    at(120);
    world.apply(pod("b", "infer", "10.0.0.3", |_| {}));
    commit(&world);
    world.outcome(&key("infer"), Err("no room"));
    let again = world.work(&key("infer"));
    assert_eq!(
        written_at(&again.slices.create),
        Some("1970-01-01T00:00:10.000000Z"),
        "that has not been written yet"
    );

    at(130);
    world.apply(pod("b", "infer", "10.0.0.4", |_| {}));
    commit(&world);
    for slice in stored(again.slices.create, 2) {
        world.stored_slice(slice);
    }
    world.outcome(&key("infer"), Ok(()));
    at(140);
    world.apply(pod("a", "infer", "10.0.0.5", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(90));
    }));
    world.apply(service("infer", 2, |service| service["spec"]["publishNotReadyAddresses"] = json!(true)));
    commit(&world);
    let last = world.work(&key("infer"));
    assert_eq!(
        written_at(&last.slices.update),
        Some("1970-01-01T00:02:10.000000Z"),
        "what came while it was written"
    );
}

#[test]
fn a_pod_has_stopped_serving_when_its_condition_says_so() {
    let world = world();
    at(50);
    world.apply(service("infer", 1, |_| {}));
    world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    commit(&world);
    write(&world, "infer", 1);
    at(200);
    world.apply(pod("a", "infer", "10.0.0.1", |pod| {
        pod["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "False", "lastTransitionTime": time(160)});
    }));
    commit(&world);
    let work = world.work(&key("infer"));
    assert_eq!(
        written_at(&work.slices.update),
        Some("1970-01-01T00:02:40.000000Z"),
        "not when it was heard of"
    );
}

#[test]
fn who_takes_over_begins_with_the_changes_of_its_own_time() {
    let world = world();
    at(100);
    world.apply(service("infer", 1, |_| {}));
    world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    commit(&world);
    at(7000);
    world.all_services();
    assert_eq!(written_at(&world.work(&key("infer")).slices.create), None);
    world.apply(pod("b", "infer", "10.0.0.2", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(6999));
    }));
    commit(&world);
    assert_eq!(written_at(&world.work(&key("infer")).slices.create), Some("1970-01-01T01:56:39.000000Z"));
}
