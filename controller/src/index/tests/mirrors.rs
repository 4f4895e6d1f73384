//! Tests of mirrors.

use super::*;
use crate::slices::Plan;

/// Returns an index with the service `infer`, which is mirrored to the core Service `fast`.
fn mirrored() -> ClusterIndex {
    let index = index();
    let core = json!({"metadata": {"name": "fast", "namespace": "vision"}, "spec": {"clusterIP": "None"}});
    index.apply(serde_json::from_str::<views::ServiceView>(&core.to_string()).unwrap());
    index.apply(service("infer", 1, |service| service["spec"]["mirror"] = json!({"serviceName": "fast"})));
    index
}

/// Returns a mirror's slice as the API server stores it.
fn stored(mut mirror: EndpointSlice, version: u64) -> EndpointSlice {
    mirror.metadata.uid = Some("uid-mirror".to_owned());
    mirror.metadata.resource_version = Some(version.to_string());
    mirror
}

fn mirrors(index: &ClusterIndex) -> Plan<EndpointSlice> {
    index.work(&key("infer"), false).mirrors
}

fn without(mirror: &EndpointSlice, label: &str) -> EndpointSlice {
    let mut mirror = mirror.clone();
    mirror.metadata.labels.as_mut().unwrap().remove(label);
    mirror
}

#[test]
fn a_mirror_without_its_service_label_is_repaired_or_deleted() {
    let index = mirrored();
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let whole = stored(mirrors(&index).create.remove(0), 1);
    index.record_stored_mirror(whole.clone());
    index.apply(stored(without(&whole, labels::SERVICE_NAME), 2));
    let plan = mirrors(&index);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1), "no second one");
    assert_eq!(plan.update[0].metadata.labels, whole.metadata.labels);

    Index::<MultiNetworkService>::delete(&index, &key("infer"));
    assert!(index.all_services().contains(&key("infer")));
    assert_eq!(mirrors(&index).delete.len(), 1);
}

/// The watch selects by that label, so it shows the mirror's slice as deleted.
#[test]
fn a_mirror_without_its_manager_label_is_repaired() {
    let index = mirrored();
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let whole = stored(mirrors(&index).create.remove(0), 1);
    index.record_stored_mirror(whole.clone());
    let name = whole.metadata.name.clone().unwrap();
    Index::<EndpointSlice>::delete(&index, &ObjectKey { namespace: "vision".into(), name });
    let work = index.work(&key("infer"), false);
    assert!(work.needs_list, "the slice may still exist");
    index.replace_listed(
        &key("infer"),
        Vec::new(),
        vec![stored(without(&whole, labels::CORE_MANAGED_BY), 2)],
    );
    let plan = mirrors(&index);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1));
    assert_eq!(plan.update[0].metadata.labels, whole.metadata.labels);
}
