use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::{EndpointHints, ForZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::slices::tests::{label, packing, stored, text};

fn endpoint(address: &str) -> (IpFamily, Endpoint) {
    let target = TargetReference {
        kind: text("Pod"),
        namespace: text("vision"),
        name: text("infer-0"),
        uid: text("pod-1"),
    };
    let endpoint = Endpoint {
        addresses: vec![address.to_owned()],
        hostname: text("replica-0"),
        node_name: text("node-1"),
        zone: text("zone-a"),
        target_ref: Some(target),
        ..Endpoint::default()
    };
    (IpFamily::of(address.parse().unwrap()), endpoint)
}

fn desired(addresses: &[&str]) -> DesiredMirror {
    DesiredMirror {
        owner: Owner { namespace: "vision".to_owned(), name: "infer".to_owned(), uid: "uid-1".to_owned() },
        service: "infer-mirror".to_owned(),
        ports: vec![Port { name: "rdma".to_owned(), port: 18515, ..Port::default() }],
        endpoints: addresses.iter().map(|address| endpoint(address)).collect(),
    }
}

fn existing(desired: &DesiredMirror) -> Vec<Arc<EndpointSlice>> {
    stored(plan(Some(desired), &[], packing(0), None).create)
}

fn again(desired: &DesiredMirror, existing: &[Arc<EndpointSlice>]) -> Plan<EndpointSlice> {
    plan(Some(desired), existing, packing(1), None)
}

fn edited(existing: &[Arc<EndpointSlice>], edit: fn(&mut EndpointSlice)) -> Vec<Arc<EndpointSlice>> {
    let mut edited = existing.to_vec();
    edit(Arc::make_mut(&mut edited[0]));
    edited
}

#[test]
fn a_new_slice_looks_like_one_of_kubernetes() {
    let trigger = Some("2026-01-02T03:04:05Z".parse().unwrap());
    let mut slice = json!(plan(Some(&desired(&["10.0.0.1"])), &[], packing(0), trigger).create[0]);
    let name = slice["metadata"]["name"].take();
    assert!(
        name.as_str().is_some_and(|name| name.starts_with("infer-mirror-") && name.len() == 18),
        "{name}"
    );
    assert_eq!(
        slice,
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": null,
                "namespace": "vision",
                "labels": {
                    "kubernetes.io/service-name": "infer-mirror",
                    "endpointslice.kubernetes.io/managed-by": "multinet-controller",
                    "service.kubernetes.io/headless": "",
                    "multinetwork.numaproj.io/service-name": "infer",
                },
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05.000000Z"},
                "ownerReferences": [{
                    "apiVersion": "multinetwork.numaproj.io/v1alpha1",
                    "kind": "MultiNetworkService",
                    "name": "infer",
                    "uid": "uid-1",
                    "controller": true,
                }],
                "managedFields": [{}],
            },
            "addressType": "IPv4",
            "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP"}],
            "endpoints": [{
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "hostname": "replica-0",
                "nodeName": "node-1",
                "zone": "zone-a",
                "targetRef": {"kind": "Pod", "namespace": "vision", "name": "infer-0", "uid": "pod-1"},
            }],
        })
    );
}

#[test]
fn families_have_separate_slices_within_the_limit() {
    let desired = desired(&["10.0.0.1", "2001:db8::1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    let existing = existing(&desired);
    let sizes: Vec<_> =
        existing.iter().map(|slice| (slice.address_type.as_str(), slice.endpoints.len())).collect();
    assert_eq!(sizes, [("IPv4", 3), ("IPv4", 1), ("IPv6", 1)]);
    let names: BTreeSet<_> = existing.iter().map(|slice| &slice.metadata.name).collect();
    assert_eq!(names.len(), 3);
    assert!(again(&desired, &existing).is_empty());
}

#[test]
fn a_slice_with_equivalent_content_is_not_written() {
    let desired = desired(&["10.0.0.1", "10.0.0.2"]);
    let edits: [fn(&mut EndpointSlice); 6] = [
        |slice| slice.endpoints[0].conditions = None,
        |slice| slice.endpoints[0].conditions = Some(EndpointConditions::default()),
        |slice| slice.endpoints[0].hints = Some(EndpointHints::default()),
        |slice| slice.endpoints[0].deprecated_topology = Some([("a".to_owned(), "b".to_owned())].into()),
        |slice| slice.endpoints.reverse(),
        |slice| slice.ports.as_mut().unwrap()[0].protocol = None,
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        assert_eq!(again(&desired, &edited(&existing(&desired), edit)), Plan::default(), "edit {number}");
    }
}

#[test]
fn absent_ports_equal_an_empty_list() {
    let mut desired = desired(&["10.0.0.1"]);
    desired.ports.clear();
    assert!(again(&desired, &edited(&existing(&desired), |slice| slice.ports = None)).is_empty());
    desired.ports.push(Port { port: 80, ..Port::default() });
    let nameless = edited(&existing(&desired), |slice| slice.ports.as_mut().unwrap()[0].name = None);
    assert!(again(&desired, &nameless).is_empty());
}

#[test]
fn every_other_edit_is_undone_by_one_update() {
    let desired = desired(&["10.0.0.1", "10.0.0.2"]);
    let existing = existing(&desired);
    let edits: [fn(&mut EndpointSlice); 20] = [
        |slice| label(slice, labels::CORE_SERVICE_NAME, None),
        |slice| label(slice, HEADLESS, None),
        |slice| label(slice, "by-hand", Some("")),
        |slice| slice.metadata.owner_references = None,
        |slice| slice.ports = None,
        |slice| slice.ports.as_mut().unwrap()[0].port = None,
        |slice| slice.ports.as_mut().unwrap()[0].port = Some(70_000),
        |slice| slice.ports.as_mut().unwrap()[0].protocol = text("UDP"),
        |slice| slice.ports.as_mut().unwrap()[0].protocol = text("QUIC"),
        |slice| slice.ports.as_mut().unwrap()[0].app_protocol = text("multinet-rdma"),
        |slice| slice.endpoints.truncate(1),
        |slice| slice.endpoints.clear(),
        |slice| slice.endpoints.push(core_endpoint(&endpoint("10.0.0.3").1)),
        |slice| slice.endpoints.push(slice.endpoints[0].clone()),
        |slice| slice.endpoints[1].addresses.push("10.0.0.9".to_owned()),
        |slice| {
            slice.endpoints[1].conditions =
                Some(EndpointConditions { ready: Some(false), ..Default::default() });
        },
        |slice| slice.endpoints[1].hostname = None,
        |slice| slice.endpoints[1].target_ref.as_mut().unwrap().uid = None,
        |slice| slice.endpoints[1].target_ref.as_mut().unwrap().resource_version = text("1"),
        |slice| {
            let zones = vec![ForZone { name: "zone-b".to_owned() }];
            slice.endpoints[1].hints =
                Some(EndpointHints { for_zones: Some(zones), ..EndpointHints::default() });
        },
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let plan = again(&desired, &edited(&existing, edit));
        assert_eq!((plan.update.len(), plan.writes()), (1, 1), "edit {number}");
        assert_eq!(json!(plan.update[0]), json!(*existing[0]), "edit {number}");
    }
}

#[test]
fn a_slice_with_a_wrong_immutable_field_is_replaced() {
    let desired = desired(&["10.0.0.1"]);
    let existing = existing(&desired);
    let edits: [fn(&mut EndpointSlice); 2] = [
        |slice| slice.address_type = "FQDN".to_owned(),
        |slice| label(slice, labels::CORE_SERVICE_NAME, Some("other")),
    ];
    for edit in edits {
        // The seed is the same, so that the generator would choose the same name.
        let plan = plan(Some(&desired), &edited(&existing, edit), packing(0), None);
        assert_eq!((plan.create.len(), plan.delete.len(), plan.writes()), (1, 1, 2));
        assert_eq!(plan.create[0].endpoints, existing[0].endpoints);
        assert_ne!(plan.create[0].metadata.name, existing[0].metadata.name);
        assert_eq!(Some(&plan.delete[0].key.name), existing[0].metadata.name.as_ref());
    }
}

#[test]
fn one_empty_slice_per_family_stays() {
    let existing = existing(&desired(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]));
    let plan = again(&desired(&[]), &existing);
    assert_eq!((plan.update.len(), plan.delete.len(), plan.writes()), (1, 1, 2));
    assert!(plan.update[0].endpoints.is_empty());
    assert!(again(&desired(&[]), &stored(plan.update)).is_empty());
    assert!(again(&desired(&[]), &[]).is_empty());
}

#[test]
fn an_unwanted_mirror_is_removed() {
    let existing = existing(&desired(&["10.0.0.1", "2001:db8::1"]));
    let dying =
        edited(&existing, |slice| slice.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)));
    let plan = plan(None, &dying, packing(0), None);
    assert_eq!(plan.writes(), 1);
    assert_eq!((plan.delete[0].uid.as_str(), plan.delete[0].resource_version.as_str()), ("slice-1", "1"));
}

#[test]
fn a_mirror_belongs_to_a_service_by_its_labels_or_its_controller() {
    let desired = desired(&["10.0.0.1"]);
    let ours = |edit: fn(&mut EndpointSlice)| {
        let key = ObjectKey { namespace: desired.owner.namespace.clone(), name: desired.owner.name.clone() };
        service_of(&edited(&existing(&desired), edit)[0]) == Some(key)
    };
    assert!(ours(|_| {}));
    assert!(ours(|slice| label(slice, labels::CORE_SERVICE_NAME, Some("older"))));
    assert!(!ours(|slice| label(slice, labels::CORE_MANAGED_BY, Some("endpointslice-controller.k8s.io"))));
    assert!(ours(|slice| label(slice, labels::CORE_MANAGED_BY, None)));
    assert!(ours(|slice| label(slice, labels::CORE_MANAGED_BY, Some(""))));
    assert!(!ours(|slice| label(slice, labels::SERVICE_NAME, Some("other"))));
    assert!(ours(|slice| label(slice, labels::SERVICE_NAME, None)));
    assert!(!ours(|slice| {
        label(slice, labels::SERVICE_NAME, None);
        slice.metadata.owner_references.as_mut().unwrap()[0].name = "other".to_owned();
    }));
    assert!(!ours(|slice| slice.metadata.namespace = text("audio")));
}
