//! Tests of changes by other writers to the controller's objects, and to objects beside them.

use super::*;

/// Users who write slices may make the service their controller, so that they are deleted with it.
#[test]
fn slices_of_others_for_a_service_without_selector_are_kept() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 1);
    let mut theirs = (*index.lock().slices.of(&key("infer"))[0]).clone();
    theirs.metadata.name = Some("by-hand".to_owned());
    theirs.metadata.uid = Some("uid-by-hand".to_owned());
    theirs.metadata.labels.as_mut().unwrap().remove(labels::MANAGED_BY);
    index.apply(theirs);
    index.apply(service("infer", 2, |service| service["spec"]["selector"] = Value::Null));

    let work = index.work(&key("infer"), false);
    let [ours] = work.slices.delete.as_slice() else { panic!("{work:?}") };
    assert_ne!(ours.key, key("by-hand"));
    index.record_deleted_slice(ours);
    assert!(index.work(&key("infer"), false).slices.is_empty());
}

/// The API server's storage is restored from a backup: its versions are older than the known ones.
#[test]
fn a_status_from_a_backup_is_repaired() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let first = write(&index, "infer", 1).status.unwrap();
    let live = HashSet::from([key("infer")]);
    let listed = |written_meanwhile: Option<MultiNetworkService>| {
        Index::<MultiNetworkService>::start(&index);
        written_meanwhile.into_iter().for_each(|service| index.record_stored_service(service));
        index.apply(service("infer", 1, |service| service["metadata"]["resourceVersion"] = json!("5")));
        Index::<MultiNetworkService>::reset(&index, &live);
        commit(&index);
        write(&index, "infer", 2).status
    };
    let ours = Some(with_status(&first));
    assert_eq!(listed(ours), None, "the list may have been made before the status was written");
    assert_eq!(
        listed(None).map(|write| (write.resource_version, write.status)),
        Some(("5".to_owned(), first.status))
    );
}

#[test]
fn abandoned_work_leaves_no_state() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.work(&key("infer"), false);
    assert!(!index.lock().slices.is_idle());
    index.abandon(&key("infer"));
    assert!(index.lock().slices.is_idle() && index.lock().mirrors.is_idle());
}
