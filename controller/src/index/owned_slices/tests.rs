use multinet_crds::{IpFamily, MultiNetworkEndpointSlice, MultiNetworkEndpointSliceSpec, NetworkReference};

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "vision".into(), name: name.into() }
}

fn slice(name: &str, uid: &str, version: &str) -> MultiNetworkEndpointSlice {
    let spec = MultiNetworkEndpointSliceSpec {
        address_type: IpFamily::Ipv4,
        network: NetworkReference::default(),
        ports: Vec::new(),
        endpoints: Vec::new(),
    };
    let mut slice = MultiNetworkEndpointSlice::new(name, spec);
    slice.metadata.namespace = Some("vision".into());
    slice.metadata.uid = Some(uid.into());
    slice.metadata.resource_version = Some(version.into());
    let labels = [
        (labels::MANAGED_BY, labels::MANAGED_BY_CONTROLLER),
        (labels::SERVICE_NAME, name.split('-').next().unwrap()),
    ];
    slice.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    slice
}

/// Slices whose service is the part of the name before the dash.
fn written() -> OwnedSlices<MultiNetworkEndpointSlice> {
    OwnedSlices::new(
        |slice| slice.metadata.name.as_deref()?.split_once('-').map(|(service, _)| key(service)),
        |_| 1,
    )
}

fn versions(written: &OwnedSlices<MultiNetworkEndpointSlice>) -> Vec<String> {
    written.of(&key("infer")).iter().map(|slice| slice.metadata.resource_version.clone().unwrap()).collect()
}

#[test]
fn own_writes_shown_by_the_watch_affect_nothing() {
    let mut written = written();
    written.record_stored(slice("infer-a", "1", "10"));
    assert!(written.observe(slice("infer-a", "1", "9")).is_empty(), "what was there before");
    assert_eq!(versions(&written), ["10"]);
    assert!(written.observe(slice("infer-a", "1", "10")).is_empty());
    assert_eq!(written.observe(slice("infer-a", "1", "11")), [key("infer")], "a change by another writer");
    written.record_stored(slice("infer-a", "1", "10"));
    assert_eq!(versions(&written), ["11"]);
}

#[test]
fn a_watch_list_may_be_older_than_a_requested_list() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    written.start();
    written.begin_work(&key("infer"));
    written.replace_listed(&key("infer"), vec![slice("infer-a", "1", "15"), slice("infer-b", "2", "16")]);
    assert!(written.observe(slice("infer-a", "1", "9")).is_empty(), "a later page of that list");
    written.reset(&[key("infer-a")].into());
    assert_eq!(versions(&written), ["15", "16"]);
    assert!(written.needs_list(&key("infer")), "whether the second is there, has to be asked");
}

#[test]
fn a_list_may_contain_older_versions_from_a_backup() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    written.record_stored(slice("infer-b", "2", "20"));
    let id = SliceId { key: key("infer-d"), uid: "4".into(), resource_version: "19".into() };
    written.record_stored(slice("infer-d", "4", "19"));
    written.record_deleted(&id);
    let older = || {
        [("infer-a", "1", "7"), ("infer-b", "2", "8"), ("infer-c", "3", "9"), ("infer-d", "4", "6")]
            .map(|(name, uid, version)| slice(name, uid, version))
    };
    let [a, b, _, d] = older();
    assert!([a, b, d].into_iter().all(|older| written.observe(older).is_empty()), "no list");
    written.start();
    written.record_stored(slice("infer-c", "3", "21"));
    let concerned = older().map(|older| written.observe(older).len());
    assert_eq!(concerned, [1, 1, 0, 1], "a list may be older than what is written during it");
    assert_eq!(versions(&written), ["7", "8", "21", "6"]);
    assert!(written.observe(slice("infer-a", "1", "7")).is_empty(), "no news");
    written.reset(&["infer-a", "infer-b", "infer-c", "infer-d"].map(key).into());
    assert!(written.observe(slice("infer-a", "1", "6")).is_empty(), "that list is over");
}

#[test]
fn a_deleted_slice_does_not_come_back() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    let id = SliceId { key: key("infer-a"), uid: "1".into(), resource_version: "10".into() };
    written.record_deleted(&id);
    assert!(written.observe(slice("infer-a", "1", "11")).is_empty());
    assert_eq!(written.len(), 0);
    assert_eq!(written.observe(slice("infer-a", "2", "12")), [key("infer")], "another of the same name");
    written.record_deleted(&id);
    assert_eq!(versions(&written), ["12"], "not the one that was meant");
    assert_eq!(written.observe_deleted(&key("infer-a")), Some(key("infer")));
    assert_eq!(written.observe_deleted(&key("infer-a")), None);
}

#[test]
fn a_late_answer_does_not_restore_a_deleted_slice() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    written.begin_work(&key("infer"));
    assert_eq!(written.observe_deleted(&key("infer-a")), Some(key("infer")));
    written.record_stored(slice("infer-a", "1", "11"));
    assert_eq!(written.len(), 0, "a user has deleted it after our write");
    written.record_stored(slice("infer-a", "2", "13"));
    assert_eq!(versions(&written), ["13"], "another of the same name");
    written.end_work(&key("infer"));
    assert!(written.is_idle());
}

#[test]
fn a_slice_written_after_a_list_survives_it() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    written.record_stored(slice("infer-b", "2", "20"));
    assert!(!written.needs_list(&key("infer")));
    assert!(written.reset(&HashSet::new()).contains(&key("infer")));
    assert_eq!(versions(&written), ["20"]);
    assert!(written.needs_list(&key("infer")), "so it has to be asked for");
    written.begin_work(&key("infer"));
    written.replace_listed(&key("infer"), vec![slice("infer-c", "3", "30")]);
    assert_eq!(versions(&written), ["30"]);
    assert!(!written.needs_list(&key("infer")));
}

#[test]
fn a_list_lacks_concurrent_changes_and_unlabelled_slices() {
    let mut written = written();
    written.observe(slice("infer-a", "1", "10"));
    let mut bare = slice("infer-b", "2", "20");
    bare.metadata.labels = None;
    written.observe(bare);
    written.begin_work(&key("infer"));
    let listed = vec![slice("infer-a", "1", "10")];
    written.observe_deleted(&key("infer-a"));
    written.replace_listed(&key("infer"), listed);
    assert_eq!(versions(&written), ["20"]);
    assert!(written.needs_list(&key("infer")), "the list may be older than the watch");
    written.begin_work(&key("infer"));
    written.replace_listed(&key("infer"), Vec::new());
    assert_eq!(versions(&written), ["20"], "which no list shows");
    assert!(!written.needs_list(&key("infer")));
}

#[test]
fn a_slice_may_move_to_another_service() {
    let service_of = |slice: &MultiNetworkEndpointSlice| {
        slice.metadata.labels.as_ref()?.get("service").map(|name| key(name))
    };
    let mut written = OwnedSlices::new(service_of, |_| 1);
    let labelled = |version: &str, service: &str| {
        let mut slice = slice("x", "1", version);
        slice.metadata.labels = Some([("service".to_owned(), service.to_owned())].into());
        slice
    };
    written.observe(labelled("1", "infer"));
    assert_eq!(written.observe(labelled("2", "detect")), [key("infer"), key("detect")]);
    assert_eq!(written.services().collect::<Vec<_>>(), [&key("detect")]);
    assert!(written.resized().ends_with(&[(key("infer"), 0), (key("detect"), 1)]));
    assert_eq!(
        written.observe(slice("x", "1", "3")),
        [key("detect")],
        "the new version belongs to no service"
    );
    assert_eq!((written.len(), written.iter().count()), (0, 0));
    assert_eq!((written.resized(), written.resized()), (vec![(key("detect"), 0)], Vec::new()));
    assert!(written.services.is_empty());
}
