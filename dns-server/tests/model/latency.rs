//! The latency of a change is reported once per change, and not for objects of the first sync.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_dns::store::answers::Answers;
use multinet_dns::store::slice::Slice;
use multinet_dns::store::state::State;
use multinet_dns::store::zone::{ZoneSettings, Zones};
use multinet_runtime::{Index, ObjectKey};
use serde_json::json;

fn slice(address: &str, triggered: Timestamp) -> MultiNetworkEndpointSlice {
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkEndpointSlice",
        "metadata": {
            "name": "a", "namespace": "n",
            "labels": {"multinetwork.numaproj.io/service-name": "s"},
            "annotations": {"multinetwork.numaproj.io/last-change-trigger-time": triggered.to_string()},
        },
        "spec": {"addressType": "IPv4", "network": {"name": "r"}, "endpoints": [{"addresses": [address]}]},
    });
    serde_json::from_value(object).expect("a slice")
}

#[test]
fn each_change_after_the_first_sync_is_timed_once() {
    let told = Arc::new(Mutex::new(Vec::<Duration>::new()));
    let tell = Arc::clone(&told);
    let settings = ZoneSettings { ttl: 5, ns_addresses: [].into() };
    let zones = Zones::new(vec!["z".parse().expect("a name")], &[], &settings).expect("a zone");
    let state = State::new(Arc::new(Answers::new(zones, 1)), 5, move |took| {
        tell.lock().expect("no panic").push(took);
    });
    let count = || told.lock().expect("no panic").len();
    let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
    let live: HashSet<ObjectKey> = [ObjectKey { namespace: "n".into(), name: "a".into() }].into();
    let commit = || Index::<MultiNetworkEndpointSlice>::commit(&state);

    Index::apply(&state, slice("10.0.0.1", ago(3600)));
    Index::<MultiNetworkEndpointSlice>::reset(&state, &live);
    commit();
    Index::<MultiNetworkService>::reset(&state, &HashSet::new());
    commit();
    assert_eq!(count(), 0, "objects of the first sync are no changes");

    let changed = slice("10.0.0.2", ago(7));
    Index::apply(&state, changed.clone());
    commit();
    assert_eq!(count(), 1);
    let took = told.lock().expect("no panic")[0];
    assert!((7..60).contains(&took.as_secs()), "{took:?}");

    Index::apply(&state, changed);
    commit();
    assert_eq!(count(), 1, "the same version again is no change");

    Index::apply(&state, slice("10.0.0.2", ago(1)));
    commit();
    assert_eq!(count(), 1, "another time stamp alone is no change");

    // The clock that set the time stamp may be ahead of ours.
    Index::apply(&state, slice("10.0.0.3", ago(-100)));
    commit();
    assert_eq!(told.lock().expect("no panic").get(1), Some(&Duration::ZERO));
}

/// A new process reads the snapshot of the last one; nothing has changed.
#[test]
fn an_object_of_a_snapshot_is_no_change() {
    let object = slice("10.0.0.1", Timestamp::now());
    let key = ObjectKey { namespace: "n".into(), name: "a".into() };
    let parsed = Slice::parse(&object).expect("an address").expect("a service");
    let bytes = postcard::to_stdvec(&parsed).expect("bytes");
    let restored: Slice = postcard::from_bytes(&bytes).expect("a slice");
    let mut index = multinet_dns::store::index::Index::default();
    index.apply_slice(&key, restored);
    assert!(index.next_changed().is_some());
    assert!(!index.apply_slice(&key, parsed));
    assert_eq!(index.next_changed(), None);
}
