use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::Resource;
use multinet_crds::{Device, NetworkKind, Protocol, TargetReference};
use serde_json::json;

use super::*;

type Object = MultiNetworkEndpointSlice;

/// Returns packing options with this seed for the names.
pub(crate) fn packing(seed: u64) -> PackOptions {
    PackOptions { limit: LIMIT, seed, merges: false }
}

const LIMIT: usize = 3;

pub(crate) fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn owner() -> Owner {
    Owner { namespace: "vision".to_owned(), name: "infer".to_owned(), uid: "uid-1".to_owned() }
}

fn network(name: &str, alias: &str) -> NetworkReference {
    NetworkReference {
        kind: NetworkKind::NetworkAttachmentDefinition,
        name: name.to_owned(),
        namespace: text("vision"),
        alias: text(alias),
    }
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) },
        hostname: None,
        node_name: text("node-1"),
        zone: text("zone-a"),
        target_ref: Some(TargetReference {
            kind: text("Pod"),
            namespace: text("vision"),
            name: text("infer-0"),
            uid: text("pod-1"),
        }),
        device: Some(Device { interface: text("net1"), ..Device::default() }),
    }
}

fn group(network: NetworkReference, addresses: &[&str]) -> Group {
    let family = match addresses.first() {
        Some(address) => IpFamily::of(address.parse().unwrap()),
        None => IpFamily::Ipv4,
    };
    Group { network, family, endpoints: addresses.iter().map(|address| endpoint(address)).collect() }
}

fn desired(groups: Vec<Group>) -> Desired {
    let port = |name: &str, port| Port { name: name.to_owned(), port, ..Port::default() };
    Desired {
        owner: owner(),
        labels: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
        ports: vec![port("rdma", 18515), port("", 80)],
        groups,
    }
}

/// Returns a service with two endpoints of each family on one network, whose alias is its name.
fn dual() -> Desired {
    let network = network("rdma-a", "rdma-a");
    desired(vec![
        group(network.clone(), &["10.0.0.1", "10.0.0.2"]),
        group(network, &["2001:db8::a", "2001:db8::b"]),
    ])
}

/// Returns these objects as the API server stores them after their creation.
pub(crate) fn stored<S: Resource>(created: Vec<S>) -> Vec<Arc<S>> {
    let complete = |(number, mut slice): (usize, S)| {
        slice.meta_mut().uid = Some(format!("slice-{number}"));
        slice.meta_mut().resource_version = Some(format!("{number}"));
        Arc::new(slice)
    };
    created.into_iter().enumerate().map(complete).collect()
}

fn existing(desired: &Desired) -> Vec<Arc<Object>> {
    let plan = plan(desired, &[], packing(0), None);
    assert!(plan.update.is_empty() && plan.delete.is_empty());
    stored(plan.create)
}

fn again(desired: &Desired, existing: &[Arc<Object>]) -> Plan<Object> {
    plan(desired, existing, packing(1), None)
}

fn edited(existing: &[Arc<Object>], edit: fn(&mut Object)) -> Vec<Arc<Object>> {
    let mut edited = existing.to_vec();
    edit(Arc::make_mut(edited.last_mut().unwrap()));
    edited
}

pub(crate) fn label(slice: &mut impl Resource, key: &str, value: Option<&str>) {
    let labels = slice.meta_mut().labels.get_or_insert_default();
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
}

fn owned_by(kind: &str, uid: &str, controller: Option<bool>) -> OwnerReference {
    OwnerReference {
        api_version: "multinetwork.numaproj.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        name: "infer".to_owned(),
        uid: uid.to_owned(),
        controller,
        block_owner_deletion: None,
    }
}

#[test]
fn a_new_slice_is_complete() {
    let plan = plan(
        &desired(vec![group(network("rdma-a", "rail0"), &["10.0.0.1"])]),
        &[],
        packing(0),
        Some("2026-01-02T03:04:05.5Z".parse().unwrap()),
    );
    let mut slice = json!(plan.create[0]);
    let name = slice["metadata"]["name"].take();
    assert!(name.as_str().is_some_and(|name| name.starts_with("infer-") && name.len() == 11), "{name}");
    assert_eq!(
        slice,
        json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1",
            "kind": "MultiNetworkEndpointSlice",
            "metadata": {
                "name": null,
                "namespace": "vision",
                "labels": {
                    "team": "vision",
                    "multinetwork.numaproj.io/service-name": "infer",
                    "multinetwork.numaproj.io/managed-by": "multinet-controller",
                },
                "annotations": {
                    "multinetwork.numaproj.io/endpoints": "10.0.0.1 (infer-0)",
                    "multinetwork.numaproj.io/last-change-trigger-time": "2026-01-02T03:04:05.500000Z",
                },
                "ownerReferences": [{
                    "apiVersion": "multinetwork.numaproj.io/v1alpha1",
                    "kind": "MultiNetworkService",
                    "name": "infer",
                    "uid": "uid-1",
                    "controller": true,
                }],
                "managedFields": [{}],
            },
            "spec": {
                "addressType": "IPv4",
                "network": {
                    "kind": "NetworkAttachmentDefinition", "name": "rdma-a", "namespace": "vision", "alias": "rail0",
                },
                "ports": [
                    {"name": "rdma", "port": 18515, "protocol": "TCP"},
                    {"name": "", "port": 80, "protocol": "TCP"},
                ],
                "endpoints": [{
                    "addresses": ["10.0.0.1"],
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                    "nodeName": "node-1",
                    "zone": "zone-a",
                    "targetRef": {"kind": "Pod", "namespace": "vision", "name": "infer-0", "uid": "pod-1"},
                    "device": {"interface": "net1"},
                }],
            },
        })
    );
}

#[test]
fn a_slice_with_equivalent_content_is_not_written() {
    let desired = dual();
    let existing = existing(&desired);
    let edits: [fn(&mut Object); 12] = [
        |_| {},
        |slice| slice.spec.endpoints[0].conditions = EndpointConditions::default(),
        |slice| slice.spec.endpoints[0].conditions.terminating = None,
        |slice| slice.spec.endpoints.reverse(),
        |slice| slice.spec.ports.reverse(),
        |slice| slice.spec.network.namespace = None,
        |slice| slice.spec.network.alias = None,
        |slice| slice.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]),
        |slice| slice.metadata.annotations = Some([("note".to_owned(), String::new())].into()),
        |slice| {
            let trigger = (labels::LAST_CHANGE_TRIGGER_TIME.to_owned(), "2020-01-01T00:00:00Z".to_owned());
            slice.metadata.annotations = Some([trigger].into());
        },
        |slice| {
            let owners = slice.metadata.owner_references.as_mut().unwrap();
            owners[0].block_owner_deletion = Some(false);
            owners.insert(0, owned_by("Other", "uid-9", None));
        },
        |slice| slice.metadata.generation = Some(7),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        assert_eq!(again(&desired, &edited(&existing, edit)), Plan::default(), "edit {number}");
    }
}

#[test]
fn empty_parts_equal_absent_ones() {
    let mut desired = dual();
    for endpoint in desired.groups.iter_mut().flat_map(|group| &mut group.endpoints) {
        (endpoint.device, endpoint.target_ref) = (None, None);
    }
    let existing = edited(&existing(&desired), |slice| {
        slice.spec.endpoints[0].device = Some(Device::default());
        slice.spec.endpoints[1].target_ref = Some(TargetReference::default());
    });
    assert!(again(&desired, &existing).is_empty());
}

#[test]
fn every_other_edit_is_undone_by_one_update() {
    let desired = dual();
    let existing = existing(&desired);
    let right = json!(*existing[1]);
    let edits: [fn(&mut Object); 29] = [
        |slice| label(slice, "team", None),
        |slice| label(slice, "team", Some("audio")),
        |slice| label(slice, "by-hand", Some("")),
        |slice| label(slice, labels::MANAGED_BY, None),
        |slice| label(slice, labels::SERVICE_NAME, Some("other")),
        |slice| slice.metadata.labels = None,
        |slice| slice.metadata.owner_references = None,
        |slice| slice.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-0".to_owned(),
        |slice| slice.metadata.owner_references.as_mut().unwrap()[0].controller = None,
        |slice| slice.metadata.owner_references.as_mut().unwrap()[0].block_owner_deletion = Some(true),
        |slice| {
            let older = owned_by("MultiNetworkService", "uid-0", None);
            slice.metadata.owner_references.as_mut().unwrap().push(older);
        },
        |slice| slice.spec.ports.clear(),
        |slice| slice.spec.ports[0].protocol = Protocol::Udp,
        |slice| slice.spec.ports[0].app_protocol = text("multinet-rdma"),
        |slice| slice.spec.network.kind = NetworkKind::ResourceClaimTemplate,
        |slice| slice.spec.network.name = "rdma-b".to_owned(),
        |slice| slice.spec.network.namespace = text("infra"),
        |slice| slice.spec.network.alias = text("rail0"),
        |slice| slice.spec.endpoints.truncate(1),
        |slice| slice.spec.endpoints.push(endpoint("2001:db8::c")),
        |slice| slice.spec.endpoints.push(slice.spec.endpoints[0].clone()),
        |slice| slice.spec.endpoints[1].addresses[0] = "2001:DB8:0::B".to_owned(),
        |slice| slice.spec.endpoints[1].addresses.push("2001:db8::c".to_owned()),
        |slice| slice.spec.endpoints[1].conditions.ready = Some(false),
        |slice| slice.spec.endpoints[1].conditions.terminating = Some(true),
        |slice| slice.spec.endpoints[1].hostname = text("infer-0"),
        |slice| slice.spec.endpoints[1].zone = None,
        |slice| slice.spec.endpoints[1].target_ref.as_mut().unwrap().uid = text("pod-0"),
        |slice| slice.spec.endpoints[1].device.as_mut().unwrap().numa_node = Some(1),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let plan = again(&desired, &edited(&existing, edit));
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0), "edit {number}");
        assert_eq!(json!(plan.update[0]), right, "edit {number}");
    }
}

#[test]
fn metadata_of_others_outlives_an_update() {
    let desired = dual();
    let existing = edited(&existing(&desired), |slice| {
        slice.metadata.labels = None;
        slice.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
        slice.metadata.annotations = Some([("note".to_owned(), "mine".to_owned())].into());
        slice.metadata.owner_references = Some(vec![
            owned_by("Other", "uid-9", Some(true)),
            owned_by("MultiNetworkService", "uid-0", Some(true)),
        ]);
    });
    let metadata = again(&desired, &existing).update.remove(0).metadata;
    assert_eq!(metadata.resource_version, existing[1].metadata.resource_version);
    assert_eq!(metadata.uid, existing[1].metadata.uid);
    assert_eq!(metadata.finalizers, existing[1].metadata.finalizers);
    let annotations = metadata.annotations.unwrap();
    assert_eq!(annotations["note"], "mine");
    assert_eq!(annotations[labels::ENDPOINTS], "2001:db8::a (infer-0), 2001:db8::b (infer-0)");
    // An object has one controller.
    let owners = vec![owned_by("Other", "uid-9", None), owned_by("MultiNetworkService", "uid-1", Some(true))];
    assert_eq!(metadata.owner_references, Some(owners));
}

#[test]
fn the_time_of_the_change_is_that_of_the_last_write() {
    let mut desired = dual();
    let trigger = |second| Some(Timestamp::from_second(second).unwrap());
    let annotation = |slice: &Object| {
        slice.metadata.annotations.clone().unwrap_or_default().remove(labels::LAST_CHANGE_TRIGGER_TIME)
    };

    let existing = stored(plan(&desired, &[], packing(0), trigger(1)).create);
    assert_eq!(annotation(&existing[0]), text("1970-01-01T00:00:01.000000Z"));
    assert!(plan(&desired, &existing, packing(0), trigger(2)).is_empty());

    desired.groups[0].endpoints[0].conditions.ready = Some(false);
    let update = |trigger| plan(&desired, &existing, packing(0), trigger).update.remove(0);
    assert_eq!(annotation(&update(trigger(2))), text("1970-01-01T00:00:02.000000Z"));
    assert_eq!(annotation(&update(None)), None);
}

#[test]
fn a_slice_that_is_being_deleted_is_ignored() {
    let desired = dual();
    let existing = existing(&desired);
    let dying =
        edited(&existing, |slice| slice.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)));
    // The seed is the same, so that the generator would choose the same name.
    let plan = plan(&desired, &dying, packing(0), None);
    assert_eq!((plan.create.len(), plan.writes()), (1, 1));
    assert_eq!(plan.create[0].spec, existing[1].spec);
    assert_ne!(plan.create[0].metadata.name, existing[1].metadata.name);
}

#[test]
fn a_deletion_names_what_it_was_planned_on() {
    let mut desired = dual();
    let existing = existing(&desired);
    desired.groups.pop();
    let plan = again(&desired, &existing);
    let name = existing[1].metadata.name.clone().unwrap();
    let key = ObjectKey { namespace: "vision".to_owned(), name };
    let id = SliceId { key, uid: "slice-1".to_owned(), resource_version: "1".to_owned() };
    assert_eq!(plan, Plan { delete: vec![id], ..Plan::default() });
}

#[test]
fn another_name_for_a_network_is_written_into_its_slices() {
    let groups = |a, b| {
        desired(vec![
            group(network("rdma-a", a), &["10.1.0.1", "10.1.0.2"]),
            group(network("rdma-b", b), &["10.2.0.1"]),
        ])
    };
    let existing = existing(&groups("rail0", "rail1"));
    let check = |plan: Plan<Object>, aliases: [&str; 2]| {
        assert_eq!((plan.update.len(), plan.writes()), (aliases.len(), aliases.len()));
        for updated in plan.update {
            let before = existing.iter().find(|slice| slice.metadata.name == updated.metadata.name).unwrap();
            assert_eq!(updated.spec.endpoints, before.spec.endpoints);
            let which = usize::from(updated.spec.network.name == "rdma-b");
            assert_eq!(updated.spec.network.alias(), aliases[which]);
        }
    };
    check(again(&groups("blue", "green"), &existing), ["blue", "green"]);
    check(again(&groups("rail1", "rail0"), &existing), ["rail1", "rail0"]);
}

#[test]
fn a_slice_serves_another_network_but_not_another_family() {
    let of = |name, address| desired(vec![group(network(name, "rail0"), &[address])]);
    let existing = existing(&of("rdma-a", "10.0.0.1"));

    let plan = again(&of("rdma-b", "10.0.0.9"), &existing);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1));
    assert_eq!(plan.update[0].metadata.name, existing[0].metadata.name);
    assert_eq!(plan.update[0].spec.network.name, "rdma-b");
    assert_eq!(plan.update[0].spec.endpoints, [endpoint("10.0.0.9")]);

    let plan = again(&of("rdma-a", "2001:db8::9"), &existing);
    assert_eq!((plan.create.len(), plan.delete.len(), plan.writes()), (1, 1, 2));
}

#[test]
fn a_network_under_two_aliases_has_slices_under_both() {
    let desired = desired(vec![
        group(network("rdma-a", "rail0"), &["10.0.0.1"]),
        group(network("rdma-a", "rail1"), &["10.0.0.1"]),
    ]);
    let existing = existing(&desired);
    let aliases: Vec<_> = existing.iter().map(|slice| slice.spec.network.alias()).collect();
    assert_eq!(aliases, ["rail0", "rail1"]);
    assert!(again(&desired, &existing).is_empty());
}

#[test]
fn a_pod_that_comes_again_is_the_same_endpoint() {
    let mut desired = dual();
    let existing = existing(&desired);
    desired.groups[0].endpoints[0].target_ref.as_mut().unwrap().uid = text("pod-2");
    let plan = again(&desired, &existing);
    assert_eq!((plan.update.len(), plan.writes()), (1, 1));
    assert_eq!(plan.update[0].spec.endpoints, desired.groups[0].endpoints);
}

#[test]
fn two_pods_or_two_hostnames_at_one_address_are_two_endpoints() {
    let edits: [fn(&mut Endpoint); 3] = [
        |endpoint| endpoint.hostname = text("other"),
        |endpoint| endpoint.target_ref.as_mut().unwrap().name = text("other"),
        |endpoint| endpoint.target_ref.as_mut().unwrap().namespace = text("other"),
    ];
    for edit in edits {
        let mut desired = desired(vec![group(network("rdma-a", "rail0"), &["10.0.0.1", "10.0.0.1"])]);
        assert_eq!(existing(&desired)[0].spec.endpoints.len(), 1);
        edit(&mut desired.groups[0].endpoints[1]);
        assert_eq!(existing(&desired)[0].spec.endpoints.len(), 2);
    }
}

#[test]
fn labels_of_a_service_do_not_replace_reserved_labels() {
    let mut desired = dual();
    for key in [labels::SERVICE_NAME, labels::MANAGED_BY] {
        desired.labels.insert(key.to_owned(), "mine".to_owned());
    }
    assert_eq!(existing(&desired)[0].metadata.labels, existing(&dual())[0].metadata.labels);
}

#[test]
fn the_plan_does_not_depend_on_the_order_of_endpoints() {
    let addresses: Vec<String> = (1..=9).map(|n| format!("10.0.0.{n}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let of = |addresses: &[&str]| desired(vec![group(network("rdma-a", "rail0"), addresses)]);
    let reversed: Vec<&str> = addresses.iter().rev().copied().collect();
    assert_eq!(plan(&of(&addresses), &[], packing(0), None), plan(&of(&reversed), &[], packing(0), None));

    let mut existing = existing(&of(&addresses[..7]));
    let forwards = again(&of(&addresses), &existing);
    existing.reverse();
    assert_eq!(again(&of(&reversed), &existing), forwards);
}

#[test]
fn a_slice_belongs_to_a_service_by_its_labels_or_its_controller() {
    let ours = |edit: fn(&mut Object)| {
        let key = ObjectKey { namespace: owner().namespace, name: owner().name };
        service_of(edited(&existing(&dual()), edit).last().unwrap()) == Some(key)
    };
    assert!(ours(|_| {}));
    assert!(ours(|slice| slice.metadata.owner_references = None));
    assert!(ours(|slice| label(slice, labels::MANAGED_BY, None)));
    assert!(ours(|slice| label(slice, labels::SERVICE_NAME, None)));
    assert!(ours(|slice| slice.metadata.labels = None));
    assert!(ours(|slice| label(slice, labels::MANAGED_BY, Some("somebody"))));
    assert!(ours(|slice| label(slice, labels::MANAGED_BY, Some(""))));

    assert!(!ours(|slice| label(slice, labels::SERVICE_NAME, Some("other"))));
    assert!(!ours(|slice| slice.metadata.namespace = text("audio")));
    for without in [labels::MANAGED_BY, labels::SERVICE_NAME] {
        let mut slice = Arc::unwrap_or_clone(existing(&dual()).remove(0));
        label(&mut slice, without, None);
        for (kind, controller) in [("MultiNetworkService", None), ("Deployment", Some(true))] {
            slice.metadata.owner_references.as_mut().unwrap()[0] = owned_by(kind, "uid-1", controller);
            assert_eq!(service_of(&slice), None, "{kind} {controller:?}");
        }
    }
}

#[test]
fn a_plan_is_cut_after_its_first_writes() {
    let gone = SliceId::of(&existing(&dual())[0].metadata);
    let mut plan = Plan { create: vec!['a', 'b'], update: vec!['c', 'd'], delete: vec![gone] };
    let mut left = |most| {
        let is_cut = plan.cut(most);
        (is_cut, plan.create.len(), plan.update.len(), plan.delete.len())
    };
    assert_eq!(left(5), (false, 2, 2, 1));
    assert_eq!(left(4), (true, 2, 2, 0));
    assert_eq!(left(3), (true, 2, 1, 0));
    assert_eq!(left(1), (true, 1, 0, 0));
}
