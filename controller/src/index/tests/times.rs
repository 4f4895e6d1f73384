//! Tests of the times of changes in slices.

use super::*;

fn written_at(slices: &[MultiNetworkEndpointSlice]) -> Option<&str> {
    slices[0].metadata.annotations.as_ref()?.get(labels::LAST_CHANGE_TRIGGER_TIME).map(String::as_str)
}

#[test]
fn a_slice_has_the_time_of_its_earliest_change() {
    let index = index();
    at(50);
    index.apply(service("infer", 1, |_| {}));
    commit(&index);
    write(&index, "infer", 1);

    at(100);
    index.apply(pod("a", "infer", "10.0.0.1", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(90));
    }));
    commit(&index);
    at(110);
    index.apply(pod("b", "infer", "10.0.0.2", |_| {}));
    commit(&index);
    let work = index.work(&key("infer"), false);
    assert_eq!(
        written_at(&work.slices.create),
        Some("1970-01-01T00:00:10.000000Z"),
        "when pod b became ready"
    );

    at(120);
    index.apply(pod("b", "infer", "10.0.0.3", |_| {}));
    commit(&index);
    index.outcome(&key("infer"), Err("no room"));
    let again = index.work(&key("infer"), false);
    assert_eq!(
        written_at(&again.slices.create),
        Some("1970-01-01T00:00:10.000000Z"),
        "that has not been written yet"
    );

    at(130);
    index.apply(pod("b", "infer", "10.0.0.4", |_| {}));
    commit(&index);
    for slice in stored(again.slices.create, 2) {
        index.record_stored_slice(slice);
    }
    index.outcome(&key("infer"), Ok(()));
    at(140);
    index.apply(pod("a", "infer", "10.0.0.5", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(90));
    }));
    index.apply(service("infer", 2, |service| service["spec"]["publishNotReadyAddresses"] = json!(true)));
    commit(&index);
    let last = index.work(&key("infer"), false);
    assert_eq!(
        written_at(&last.slices.update),
        Some("1970-01-01T00:02:10.000000Z"),
        "the changes during the write"
    );
}

#[test]
fn the_time_of_an_unready_pod_is_that_of_its_condition() {
    let index = index();
    at(50);
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    commit(&index);
    write(&index, "infer", 1);
    at(200);
    index.apply(pod("a", "infer", "10.0.0.1", |pod| {
        pod["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "False", "lastTransitionTime": time(160)});
    }));
    commit(&index);
    let work = index.work(&key("infer"), false);
    assert_eq!(
        written_at(&work.slices.update),
        Some("1970-01-01T00:02:40.000000Z"),
        "not the time of the event"
    );
}

#[test]
fn a_new_leader_ignores_the_times_of_earlier_changes() {
    let index = index();
    at(100);
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    commit(&index);
    at(7000);
    index.all_services();
    assert_eq!(written_at(&index.work(&key("infer"), false).slices.create), None);
    index.apply(pod("b", "infer", "10.0.0.2", |pod| {
        pod["status"]["conditions"][0]["lastTransitionTime"] = json!(time(6999));
    }));
    commit(&index);
    assert_eq!(
        written_at(&index.work(&key("infer"), false).slices.create),
        Some("1970-01-01T01:56:39.000000Z")
    );
}
