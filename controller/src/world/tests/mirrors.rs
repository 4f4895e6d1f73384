//! What becomes of mirrors.

use super::*;
use crate::slices::Plan;

/// A world with the service `infer`, mirrored to the core Service `fast`.
fn mirrored() -> World {
    let world = world();
    let core = json!({"metadata": {"name": "fast", "namespace": "vision"}, "spec": {"clusterIP": "None"}});
    world.apply(serde_json::from_str::<views::Service>(&core.to_string()).unwrap());
    world.apply(service("infer", 1, |service| service["spec"]["mirror"] = json!({"serviceName": "fast"})));
    world
}

/// What the API server makes of a mirror.
fn stored(mut mirror: EndpointSlice, version: u64) -> EndpointSlice {
    mirror.metadata.uid = Some("uid-mirror".to_owned());
    mirror.metadata.resource_version = Some(version.to_string());
    mirror
}

fn mirrors(world: &World) -> Plan<EndpointSlice> {
    world.work(&key("infer")).mirrors
}

fn without(mirror: &EndpointSlice, label: &str) -> EndpointSlice {
    let mut mirror = mirror.clone();
    mirror.metadata.labels.as_mut().unwrap().remove(label);
    mirror
}

#[test]
fn a_mirror_that_has_lost_its_name_is_repaired_or_deleted() {
    let world = mirrored();
    world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let whole = stored(mirrors(&world).create.remove(0), 1);
    world.stored_mirror(whole.clone());
    world.apply(stored(without(&whole, labels::SERVICE_NAME), 2));
    let plan = mirrors(&world);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1), "no second one");
    assert_eq!(plan.update[0].metadata.labels, whole.metadata.labels);

    Index::<MultiNetworkService>::delete(&world, &key("infer"));
    assert!(world.all_services().contains(&key("infer")));
    assert_eq!(mirrors(&world).delete.len(), 1);
}

/// The watch goes by that label, and shows the mirror as gone.
#[test]
fn a_mirror_that_has_lost_its_manager_is_repaired() {
    let world = mirrored();
    world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let whole = stored(mirrors(&world).create.remove(0), 1);
    world.stored_mirror(whole.clone());
    let name = whole.metadata.name.clone().unwrap();
    Index::<EndpointSlice>::delete(&world, &ObjectKey { namespace: "vision".into(), name });
    let work = world.work(&key("infer"));
    assert!(work.doubtful, "it may be gone, or not");
    world.refreshed(&key("infer"), Vec::new(), vec![stored(without(&whole, labels::CORE_MANAGED_BY), 2)]);
    let plan = mirrors(&world);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1));
    assert_eq!(plan.update[0].metadata.labels, whole.metadata.labels);
}
