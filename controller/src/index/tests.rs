//! Tests of facts that the model test (`tests/it/model`) cannot express well: times, notices, and
//! the holders of addresses after a change of leaders.

use std::cell::Cell;

use futures::FutureExt as _;
use jiff::SignedDuration;
use multinet_crds::conditions::{ConditionType, find};
use multinet_crds::labels;
use multinet_runtime::Index;
use serde_json::Value;

use super::*;
use crate::views;
use crate::work::StatusWrite;

mod caps;
mod holders;
mod mirrors;
mod notices;
mod others;
mod times;

thread_local! {
    static SECOND: Cell<i64> = const { Cell::new(0) };
}

fn clock() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(SECOND.get())
}

fn at(second: i64) {
    SECOND.set(second);
}

fn time(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "vision".into(), name: name.into() }
}

fn index() -> ClusterIndex {
    index_with(Caps::default())
}

fn index_with(caps: Caps) -> ClusterIndex {
    let queue = Arc::new(Queue::default());
    queue.open();
    ClusterIndex::new(Settings { zone: "z.test".into(), limit: 100, mirror_limit: 100, caps, clock }, queue)
}

/// Returns a service that selects pods whose label `app` is its name, on the network `rdma-a`.
fn service(name: &str, version: u64, change: impl FnOnce(&mut Value)) -> MultiNetworkService {
    let mut object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
        "metadata": {
            "name": name, "namespace": "vision", "uid": format!("uid-{name}"), "generation": version,
            "resourceVersion": version.to_string(),
        },
        "spec": {"selector": {"matchLabels": {"app": name}}, "networks": [{"name": "rdma-a"}]},
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

/// Returns the service as stored after the status write.
fn with_status(write: &StatusWrite) -> MultiNetworkService {
    service(&write.service.name, 1, |service| {
        service["metadata"]["resourceVersion"] = json!("9");
        service["status"] = json!(write.status);
    })
}

/// Returns a ready pod with this address on the network `rdma-a`.
fn pod(name: &str, app: &str, address: &str, change: impl FnOnce(&mut Value)) -> views::PodView {
    let report = json!([{"name": "vision/rdma-a", "interface": "net1", "ips": [address]}]).to_string();
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": "vision", "uid": format!("uid-{name}"), "labels": {"app": app},
            "creationTimestamp": time(1), "annotations": {"k8s.v1.cni.cncf.io/network-status": report},
        },
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running", "podIPs": [{"ip": "10.20.0.9"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(10)}],
        },
    });
    change(&mut object);
    serde_json::from_str(&object.to_string()).unwrap()
}

fn annotate(text: &'static str) -> impl FnOnce(&mut Value) {
    move |pod| pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json!(text)
}

/// Returns the planned slices as the API server stores them.
fn stored(slices: Vec<MultiNetworkEndpointSlice>, version: u64) -> Vec<MultiNetworkEndpointSlice> {
    let store = |mut slice: MultiNetworkEndpointSlice| {
        let uid = format!("uid-{}", slice.metadata.name.as_deref().unwrap_or_default());
        slice.metadata.uid.get_or_insert(uid);
        slice.metadata.resource_version = Some(version.to_string());
        slice
    };
    slices.into_iter().map(store).collect()
}

/// Performs the writes of a service, and returns its outcome.
fn write(index: &ClusterIndex, service: &str, version: u64) -> Outcome {
    let work = index.work(&key(service), false);
    assert!(work.slices.delete.is_empty());
    for slice in stored([work.slices.create, work.slices.update].concat(), version) {
        index.record_stored_slice(slice);
    }
    index.outcome(&key(service), Ok(()))
}

fn commit(index: &ClusterIndex) {
    Index::<views::PodView>::commit(index);
}

/// Returns the names of the pods that a service publishes.
fn published(index: &ClusterIndex, service: &str) -> Vec<String> {
    let state = index.lock();
    let slices = state.slices.of(&key(service));
    let endpoints = slices.iter().flat_map(|slice| slice.spec.endpoints.clone());
    endpoints.filter_map(|endpoint| endpoint.target_ref?.name).collect()
}

#[test]
fn slices_of_others_are_counted() {
    let index = index();
    index.apply(service("infer", 1, |service| service["spec"]["selector"] = Value::Null));
    let slice = |name: &str, endpoints: Value| -> MultiNetworkEndpointSlice {
        serde_json::from_value(json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice",
            "metadata": {"name": name, "namespace": "vision", "labels": {labels::SERVICE_NAME: "infer"}},
            "spec": {"addressType": "IPv4", "network": {"name": "rdma-a"}, "endpoints": endpoints},
        }))
        .unwrap()
    };
    let counts = |version| {
        let status = write(&index, "infer", version).status.unwrap().status;
        let reason = find(&status.conditions, ConditionType::EndpointsReady).unwrap().reason.clone();
        (status.endpoints.map(|counts| (counts.ready, counts.total)), status.networks[0].total, reason)
    };
    assert_eq!(counts(1), (Some((0, 0)), 0, "NoSlices".to_owned()));
    index.apply(slice(
        "one",
        json!([{"addresses": ["10.0.0.1"], "hostname": "h"}, {"addresses": ["10.0.0.2"], "hostname": "h"}]),
    ));
    index.apply(slice("two", json!([{"addresses": ["10.0.0.3"], "conditions": {"ready": false}}])));
    assert_eq!(counts(2), (Some((1, 2)), 2, "EndpointsReady".to_owned()));
    Index::<MultiNetworkEndpointSlice>::delete(&index, &key("one"));
    assert_eq!(counts(3), (Some((0, 1)), 1, "NoneReady".to_owned()));
}

#[test]
fn numbers_are_not_urgent() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let first = write(&index, "infer", 1).status.unwrap();
    assert!(first.urgent, "the first one");
    index.apply(with_status(&first));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let second = write(&index, "infer", 2).status.unwrap();
    assert_eq!(second.status.endpoints.map(|counts| counts.ready), Some(1));
    assert!(!second.urgent);
}

#[test]
fn an_edited_status_is_repaired() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let first = write(&index, "infer", 1).status.unwrap();
    let queued = || index.queue.next().now_or_never().is_some();
    let applied = |service: MultiNetworkService| {
        index.apply(service);
        commit(&index);
        queued()
    };
    commit(&index);
    while queued() {}
    assert!(!applied(with_status(&first)), "it is our own");
    let mut edited = with_status(&first);
    edited.metadata.resource_version = Some("10".to_owned());
    edited.status.as_mut().unwrap().hostname = Some("elsewhere".to_owned());
    assert!(applied(edited));
    let again = write(&index, "infer", 2).status.unwrap();
    assert_eq!(again.status, first.status);
    assert!(!again.urgent, "two concurrent writers would never stop");
    // Conditions of other types are not repaired.
    let mut theirs = with_status(&first);
    theirs.metadata.resource_version = Some("11".to_owned());
    let conditions = &mut theirs.status.as_mut().unwrap().conditions;
    conditions.push(conditions[0].clone());
    conditions.last_mut().unwrap().type_ = "example.com/Audited".to_owned();
    assert!(!applied(theirs));
}

#[test]
fn a_late_answer_does_not_undo_newer_changes() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let first = write(&index, "infer", 1).status.unwrap();
    let version =
        |service: &mut Value, version: &str| service["metadata"]["resourceVersion"] = json!(version);
    let edited = |object: &mut Value| {
        version(object, "11");
        object["status"] = json!({"hostname": "elsewhere"});
    };
    index.apply(service("infer", 1, edited));
    index.record_stored_service(with_status(&first));
    let again = write(&index, "infer", 2).status.unwrap();
    assert_eq!((again.resource_version.as_str(), again.urgent), ("11", false));
    // The watch is faster than the answer.
    let ours = service("infer", 1, |object| {
        version(object, "12");
        object["status"] = json!(again.status);
    });
    index.apply(ours.clone());
    index.record_stored_service(ours);
    let pods = |object: &mut Value| {
        version(object, "13");
        object["metadata"]["generation"] = json!(2);
        object["spec"]["networks"] = json!([]);
    };
    index.apply(service("infer", 1, pods));
    assert!(write(&index, "infer", 3).status.unwrap().urgent);
}

#[test]
fn a_service_that_becomes_invalid_keeps_its_slices_as_they_are() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 1);
    index.apply(service("infer", 2, |service| service["spec"]["networks"] = json!([])));
    index.apply(pod("b", "infer", "10.0.0.2", |_| {}));
    assert!(index.work(&key("infer"), false).slices.is_empty());
    index.apply(service("infer", 3, |_| {}));
    write(&index, "infer", 2);
    assert_eq!(published(&index, "infer"), ["a", "b"]);
}

#[test]
fn slices_of_a_deleted_service_are_deleted() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 1);
    Index::<MultiNetworkService>::delete(&index, &key("infer"));
    assert_eq!(index.all_services(), [key("infer")]);
    let work = index.work(&key("infer"), false);
    let [id] = work.slices.delete.as_slice() else { panic!("{work:?}") };
    index.record_deleted_slice(id);
    let outcome = index.outcome(&key("infer"), Ok(()));
    assert!(outcome.status.is_none() && outcome.notices.is_empty());
    assert!(index.all_services().is_empty());
    assert_eq!(index.totals(), Totals { pods: 1, ..Totals::default() });
}

#[test]
fn a_change_queues_the_affected_services_at_its_commit() {
    let index = index();
    let queued = || {
        std::iter::from_fn(|| index.queue.next().now_or_never())
            .map(|item| item.service().clone())
            .collect::<Vec<_>>()
    };
    for name in ["infer", "detect", "track"] {
        index.apply(service(name, 1, |_| {}));
    }
    commit(&index);
    assert_eq!(queued(), [key("detect"), key("infer"), key("track")]);
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    assert!(queued().is_empty(), "a change is queued only as a whole");
    commit(&index);
    assert_eq!(queued(), [key("infer")]);
    index.apply(pod("b", "detect", "10.0.0.1", |_| {}));
    commit(&index);
    assert_eq!(queued(), [key("detect"), key("infer")], "its pod has the address, too");
    index.apply(pod("b", "track", "10.0.0.1", |_| {}));
    commit(&index);
    assert_eq!(queued(), [key("detect"), key("track")], "the old and the new service");
    Index::<views::PodView>::delete(&index, &key("a"));
    commit(&index);
    assert_eq!(queued(), [key("infer"), key("track")], "the remaining pod holds the address alone");
    index.apply(pod("b", "track", "10.0.0.1", |_| {}));
    commit(&index);
    assert!(queued().is_empty(), "the same again");
    index.set_served(OptionalApi::Multus, None);
    assert_eq!(queued().len(), 3, "all refer to kinds of Multus");
}

#[test]
fn objects_are_counted_and_described() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    index.apply(pod("b", "infer", "10.0.0.2", |pod| pod["status"]["conditions"] = json!([])));
    index.apply(pod("c", "infer", "10.0.0.3", |pod| pod["metadata"]["deletionTimestamp"] = json!(time(3))));
    index.apply(pod("d", "infer", "10.0.0.1", |_| {}));
    index.apply(pod("e", "nobody", "", annotate("[{")));
    write(&index, "infer", 1);
    let totals = Totals {
        pods: 5,
        services: 1,
        slices: 1,
        mirrors: 0,
        ready: 1,
        not_ready: 1,
        terminating: 1,
        conflicts: 1,
        unreadable: 1,
    };
    assert_eq!(index.totals(), totals);
    let described = index.describe();
    assert_eq!(described["services"]["vision/infer"]["pods"], json!(["a", "b", "c", "d"]));
}
