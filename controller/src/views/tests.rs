use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::api::resource::{v1, v1beta1, v1beta2};
use kube::Resource;
use multinet_runtime::Guarded;
use serde_json::{Value, json};

use super::*;
use crate::model::{self, PodClaim};

const NETWORK_STATUS: &str = include_str!("../../fuzz/seeds/network_status/macvlan.json");

fn decode<K: Kind>(value: &Value) -> View<K> {
    match serde_json::from_str::<Guarded<View<K>>>(&value.to_string()).unwrap() {
        Guarded::Good(view) => view,
        Guarded::Bad(bad) => panic!("{bad:?}: {value}"),
    }
}

fn pod(value: &Value) -> model::Pod {
    decode::<pod::PodKind>(value).into()
}

/// Returns a running pod as the API server sends it, with the fields that are read.
fn running() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "infer-0", "generateName": "infer-", "namespace": "vision", "uid": "u-1", "resourceVersion": "7",
            "generation": 2, "creationTimestamp": "2026-11-21T09:00:00Z",
            "labels": {"app": "infer", "numaflow.numaproj.io/vertex-name": "infer"},
            "annotations": {
                "k8s.v1.cni.cncf.io/networks": "rdma-a",
                "k8s.v1.cni.cncf.io/network-status": NETWORK_STATUS,
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "infer", "uid": "u-0"}],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "hostname": "infer-0", "subdomain": "infer-headless", "nodeName": "worker-a",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {"rdma/hca": "1"}}}],
            "tolerations": [{"operator": "Exists"}],
        },
        "status": {
            "phase": "Running", "podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}],
            "conditions": [
                {"type": "Initialized", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-11-21T09:00:01Z"},
                {"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-11-21T09:00:02Z"},
                {"type": "ContainersReady", "status": "False", "lastTransitionTime": null},
            ],
            "containerStatuses": [{"name": "main", "ready": true}],
        },
    })
}

/// Returns a running pod with the value at `pointer` replaced; null removes it.
fn running_but(pointer: &str, value: Value) -> model::Pod {
    let mut object = running();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap();
    parent[field.replace("~1", "/")] = value;
    pod(&object)
}

#[test]
fn a_running_pod_is_read_completely() {
    let pod = pod(&running());
    let attachments = &pod.report.interfaces.attachments;
    assert_eq!(attachments.len(), 1);
    assert_eq!(attachments[0].addresses[0].to_string(), "192.168.100.3");
    let time = |text: &str| Some(text.parse().unwrap());
    assert_eq!(
        pod,
        model::Pod {
            key: ObjectKey { namespace: "vision".into(), name: "infer-0".into() },
            uid: "u-1".into(),
            labels: [("app", "infer"), ("numaflow.numaproj.io/vertex-name", "infer")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            created: time("2026-11-21T09:00:00Z"),
            terminal: false,
            terminating: false,
            serving: true,
            serving_changed: time("2026-11-21T09:00:02Z"),
            hostname: Some("infer-0".into()),
            node: Some("worker-a".into()),
            host_network: false,
            has_sandbox: true,
            machine: None,
            report: pod.report.clone(),
            claims: Vec::new(),
        }
    );
}

#[test]
fn a_new_pod_has_neither_node_nor_sandbox() {
    for object in [
        json!({"metadata": {"name": "p", "namespace": "n"}}),
        json!({"metadata": {"name": "p", "namespace": "n", "labels": null, "annotations": null}, "spec": null, "status": null}),
        json!({"metadata": {"name": "p", "namespace": "n", "labels": {}, "annotations": {}}, "spec": {}, "status": {}}),
        json!({"metadata": {"name": "p", "namespace": "n", "creationTimestamp": null, "deletionTimestamp": null},
            "spec": {"hostname": null, "subdomain": null, "nodeName": null, "hostNetwork": null, "resourceClaims": null},
            "status": {"phase": null, "conditions": null, "resourceClaimStatuses": null, "extendedResourceClaimStatus": null}}),
    ] {
        let pod = pod(&object);
        assert!(!pod.serving && !pod.terminal && !pod.terminating && !pod.host_network, "{object}");
        assert_eq!(
            (pod.report, pod.claims, pod.hostname, pod.node, pod.has_sandbox),
            (model::Report::default(), vec![], None, None, false),
            "{object}"
        );
    }
}

#[test]
fn phases_and_conditions_of_a_pod_are_read() {
    for (phase, terminal) in
        [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true), ("Unknown", false)]
    {
        assert_eq!(running_but("/status/phase", json!(phase)).terminal, terminal, "{phase}");
    }
    assert!(running_but("/metadata/deletionTimestamp", json!("2026-11-21T10:00:00Z")).terminating);
    assert!(running_but("/spec/hostNetwork", json!(true)).host_network);
    for status in ["False", "Unknown"] {
        let ready =
            json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-11-21T09:10:00.5Z"}]);
        let pod = running_but("/status/conditions", ready);
        assert!(!pod.serving);
        assert_eq!(pod.serving_changed, Some("2026-11-21T09:10:00.5Z".parse().unwrap()));
    }
}

#[test]
fn hostnames_that_are_no_dns_labels_are_ignored() {
    let cases = [
        (json!("worker-0"), Some("worker-0")),
        (json!(null), None),
        (json!(""), None),
        (json!("Worker.0"), None),
    ];
    for (hostname, expected) in cases {
        assert_eq!(
            running_but("/spec/hostname", hostname.clone()).hostname.as_deref(),
            expected,
            "{hostname}"
        );
    }
    let mut object = running();
    object["spec"]["subdomain"] = json!(null);
    assert!(pod(&object).hostname.is_some(), "a subdomain is not required");
}

#[test]
fn a_pod_without_addresses_has_no_sandbox() {
    for (ips, expected) in [(json!([{"ip": "10.20.0.1"}]), true), (json!([]), false), (json!(null), false)] {
        assert_eq!(running_but("/status/podIPs", ips.clone()).has_sandbox, expected, "{ips}");
    }
}

#[test]
fn the_virtual_machine_of_a_pod_is_read_from_its_controller() {
    let owner = |kind: &str, group: &str, controller: bool| {
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u-n"},
            {"apiVersion": format!("{group}/v1"), "kind": kind, "name": "vm", "uid": "u-vm", "controller": controller}])
    };
    for (owners, expected) in [
        (owner("VirtualMachineInstance", "kubevirt.io", true), Some("u-vm")),
        (owner("VirtualMachineInstance", "kubevirt.io", false), None),
        (owner("VirtualMachineInstance", "example.com", true), None),
        (owner("ReplicaSet", "apps", true), None),
    ] {
        let mut object = running();
        object["metadata"]["ownerReferences"] = owners;
        assert_eq!(pod(&object).machine.as_deref(), expected, "{object}");
    }
}

#[test]
fn an_unreadable_annotation_does_not_keep_a_pod_from_being_decoded() {
    let pod = running_but("/metadata/annotations/k8s.v1.cni.cncf.io~1network-status", json!("{"));
    assert_eq!(pod.report.unreadable.len(), 1);
    assert!(pod.serving, "the other fields are parsed");
}

#[test]
fn claims_of_a_pod_are_read_each_once() {
    let mut object = running();
    object["spec"]["resourceClaims"] = json!([
        {"name": "direct", "resourceClaimName": "shared"},
        {"name": "made", "resourceClaimTemplateName": "rail0"},
        {"name": "not-yet", "resourceClaimTemplateName": "rail1"},
        {"name": "none", "resourceClaimTemplateName": "rail2"},
        {"name": "again", "resourceClaimName": "shared"},
    ]);
    object["status"]["resourceClaimStatuses"] = json!([
        {"name": "none"},
        {"name": "made", "resourceClaimName": "infer-0-made-x7k2p"},
        {"name": "stray", "resourceClaimName": "of-nobody"},
    ]);
    object["status"]["extendedResourceClaimStatus"] =
        json!({"resourceClaimName": "infer-0-extended-resources-4kd8f", "requestMappings": []});
    let claim = |claim: &str, template: Option<&str>| PodClaim {
        claim: claim.to_owned(),
        template: template.map(str::to_owned),
    };
    assert_eq!(
        pod(&object).claims,
        [
            claim("shared", None),
            claim("infer-0-made-x7k2p", Some("rail0")),
            claim("infer-0-extended-resources-4kd8f", None),
        ]
    );
}

#[test]
fn metadata_lacks_the_managed_fields() {
    let view = decode::<pod::PodKind>(&running());
    let metadata = view.meta();
    assert_eq!(metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(metadata.generation, Some(2));
    assert_eq!(metadata.annotations.as_ref().map(BTreeMap::len), Some(3));
    assert_eq!(metadata.managed_fields, None);
}

#[test]
fn metadata_of_a_wrong_type_fails_to_decode() {
    for object in [
        json!({}),
        json!({"metadata": 7}),
        json!({"metadata": {"name": 7}}),
        json!({"metadata": {"name": "p", "labels": []}}),
        json!({"metadata": {"name": "p", "labels": {"a": 7}}}),
        json!({"metadata": {"name": "p", "creationTimestamp": "yesterday"}}),
        json!({"metadata": {"name": "p"}, "spec": 7}),
        json!({"metadata": {"name": "p"}, "status": {"conditions": {}}}),
    ] {
        let guarded: Guarded<PodView> = serde_json::from_str(&object.to_string()).unwrap();
        assert!(matches!(guarded, Guarded::Bad(_)), "{object}");
    }
}

#[test]
fn zones_of_nodes_are_read() {
    let node = |labels: Value| -> model::Node {
        let node = json!({"metadata": {"name": "worker-a", "labels": labels}, "status": {"images": [{"names": []}]}});
        decode::<core::NodeKind>(&node).into()
    };
    let zone = node(json!({"topology.kubernetes.io/zone": "z1", "kubernetes.io/hostname": "worker-a"}));
    assert_eq!(
        zone,
        model::Node {
            key: ObjectKey { namespace: "".into(), name: "worker-a".into() },
            zone: Some("z1".into())
        }
    );
    assert_eq!(node(json!({"topology.kubernetes.io/zone": ""})).zone, None);
    assert_eq!(node(json!(null)).zone, None);
}

#[test]
fn only_headless_services_without_selector_can_have_mirrors() {
    let cases = [
        (json!({"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP"}), None),
        (json!({"clusterIP": "None", "selector": {}}), None),
        (json!({"clusterIP": "None", "selector": {"app": "x"}}), Some("it has a selector")),
        (json!({"clusterIP": "10.96.0.7", "type": "LoadBalancer"}), Some("it has a cluster IP")),
        (json!({"clusterIP": ""}), Some("it has a cluster IP")),
        (json!({"type": "ExternalName", "externalName": "example.com"}), Some("it is an ExternalName")),
    ];
    for (spec, expected) in cases {
        let service = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec});
        let service: model::CoreService = decode::<core::ServiceKind>(&service).into();
        assert_eq!(service.unusable, expected, "{spec}");
        assert_eq!(service.key.to_string(), "n/s");
    }
}

#[test]
fn objects_of_which_only_the_existence_matters_are_decoded() {
    let object = json!({"metadata": {"name": "rdma-a", "namespace": "vision"}, "spec": {"config": "{"}});
    let key: ObjectKey = decode::<core::NetworkAttachmentDefinitionKind>(&object).into();
    assert_eq!(key.to_string(), "vision/rdma-a");
    // The API server sends this if only metadata is requested.
    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "rdma"}});
    assert_eq!(decode::<dra::DeviceClassKind<V1Beta2>>(&object).key().to_string(), "rdma");
}

/// Checks that a view has the same names as the full type.
fn same_resource<K: Kind, R: Resource<DynamicType = ()>>()
where
    View<K>: Resource<DynamicType = ()> + Clone + Debug,
{
    assert_eq!(View::<K>::kind(&()), R::kind(&()));
    assert_eq!(View::<K>::group(&()), R::group(&()));
    assert_eq!(View::<K>::version(&()), R::version(&()));
    assert_eq!(View::<K>::plural(&()), R::plural(&()));
    assert_eq!(View::<K>::url_path(&(), None), R::url_path(&(), None));
}

#[test]
fn views_have_the_names_of_their_kinds() {
    same_resource::<pod::PodKind, api::Pod>();
    same_resource::<core::NodeKind, api::Node>();
    same_resource::<core::ServiceKind, api::Service>();
    same_resource::<dra::DeviceClassKind<V1>, v1::DeviceClass>();
    same_resource::<dra::DeviceClassKind<V1Beta2>, v1beta2::DeviceClass>();
    same_resource::<dra::DeviceClassKind<V1Beta1>, v1beta1::DeviceClass>();
    same_resource::<dra::ResourceClaimKind<V1>, v1::ResourceClaim>();
    same_resource::<dra::ResourceClaimKind<V1Beta2>, v1beta2::ResourceClaim>();
    same_resource::<dra::ResourceClaimKind<V1Beta1>, v1beta1::ResourceClaim>();
    same_resource::<dra::ResourceClaimTemplateKind<V1>, v1::ResourceClaimTemplate>();
    same_resource::<dra::ResourceSliceKind<V1>, v1::ResourceSlice>();
    same_resource::<dra::ResourceSliceKind<V1Beta1>, v1beta1::ResourceSlice>();
    let path = NetworkAttachmentDefinition::url_path(&(), Some("n"));
    assert_eq!(path, "/apis/k8s.cni.cncf.io/v1/namespaces/n/network-attachment-definitions");
}
