//! Changes that users and kubelets make to objects.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource as _;
use multinet_crds::{MultiNetworkEndpointSlice, labels};
use multinet_runtime::ObjectKey;
use serde_json::json;

use super::clock;
use super::cluster::Cluster;
use super::objects::{Claim, ClaimUse, PODS, Pod, key};
use super::operations::Edit;
use super::services::{Service, ServiceSpec};

/// Creates a pod, or changes its mutable fields.
pub(crate) fn put_pod(cluster: &mut Cluster, name: &ObjectKey, mut pod: Pod) {
    let now = clock::next_second();
    pod.ready_since = now;
    match cluster.pods.get(name).cloned() {
        None => {
            pod.uid = cluster.uid();
            pod.created = now;
        }
        Some(old) => {
            if pod.ready == old.ready {
                pod.ready_since = old.ready_since;
            }
            if matches!(old.phase, "Failed" | "Succeeded") {
                pod.phase = old.phase;
            }
            pod.claims = old
                .claims
                .iter()
                .map(|claim| match claim {
                    // A claim is made for a pod only once.
                    ClaimUse::Template(template, None) if !pod.claims.is_empty() => {
                        ClaimUse::Template(template, Some("c0"))
                    }
                    other => other.clone(),
                })
                .collect();
            pod = Pod {
                uid: old.uid,
                created: old.created,
                noise: old.noise,
                is_deleted: old.is_deleted,
                hostname: old.hostname,
                subdomain: old.subdomain,
                node: old.node.or(pod.node),
                host_network: old.host_network,
                ..pod
            };
        }
    }
    cluster.put(name, pod);
}

/// Changes a pod if it exists.
pub(crate) fn change_pod(cluster: &mut Cluster, name: &ObjectKey, change: impl FnOnce(&mut Pod)) {
    if let Some(mut pod) = cluster.pods.get(name).cloned() {
        change(&mut pod);
        cluster.put(name, pod);
    }
}

/// Changes condition Ready, as the kubelet does.
pub(crate) fn set_ready(pod: &mut Pod, ready: bool) {
    if pod.ready != Some(ready) {
        pod.ready = Some(ready);
        pod.ready_since = clock::next_second();
    }
}

/// Creates or changes a claim, and reserves it for pods of its namespace.
pub(crate) fn put_claim(cluster: &mut Cluster, name: &ObjectKey, mut claim: Claim, reserved: &[usize]) {
    claim.reserved_for = reserved
        .iter()
        .map(|&place| {
            let pod = PODS.get(place).and_then(|pod| cluster.pods.get(&key(&name.namespace, pod)));
            pod.map_or_else(|| "uid-of-nobody".to_owned(), |pod| pod.uid.clone())
        })
        .collect();
    cluster.put(name, claim);
}

/// Creates a service, or changes its spec.
pub(crate) fn put_service(cluster: &mut Cluster, name: &ObjectKey, spec: ServiceSpec) {
    let service = match cluster.services.get(name).cloned() {
        None => Service { uid: cluster.uid(), generation: 1, is_deleted: false, spec, status: json!(null) },
        Some(old) => {
            // A change of the labels alone does not change the generation.
            let is_same = ServiceSpec { label: spec.label, ..old.spec.clone() } == spec;
            Service { generation: old.generation + i64::from(!is_same), spec, ..old }
        }
    };
    cluster.put(name, service);
}

/// Creates a slice of another writer with an address for a service.
pub(crate) fn put_foreign(cluster: &mut Cluster, name: &ObjectKey, service: &str, is_named: bool) {
    let mut labels = json!({labels::SERVICE_NAME: service});
    if is_named {
        labels[labels::MANAGED_BY] = json!("somebody.example.com");
    }
    let slice = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice",
        "metadata": {"name": name.name, "namespace": name.namespace, "labels": labels},
        "spec": {
            "addressType": "IPv4", "network": {"name": "rail0", "alias": "net-0"},
            "endpoints": [{"addresses": ["192.0.2.1"]}],
        },
    });
    let mut slice: MultiNetworkEndpointSlice = serde_json::from_value(slice).expect("a slice");
    slice.metadata.uid = cluster.slices.get(name).and_then(|old| old.metadata.uid.clone());
    cluster.put_slice(slice);
}

pub(crate) fn edit_slice(cluster: &mut Cluster, place: usize, edit: Edit) {
    let count = cluster.slices.objects.len().max(1);
    let Some((key, slice)) = cluster.slices.iter().nth(place % count) else { return };
    let (key, mut slice) = (key.clone(), slice.clone());
    match edit {
        Edit::Delete => return drop(cluster.slices.remove(&key)),
        Edit::Empty => slice.spec.endpoints.clear(),
        Edit::Copy => rename(slice.meta_mut()),
        Edit::Duplicate => {
            slice.spec.endpoints = [&slice.spec.endpoints[..], &slice.spec.endpoints[..]].concat();
        }
        Edit::Unready => {
            slice.spec.endpoints.iter_mut().for_each(|endpoint| endpoint.conditions.ready = Some(false));
        }
        Edit::Ports => slice.spec.ports.clear(),
        Edit::Network => slice.spec.network.name = "rail9".to_owned(),
        other => edit_metadata(slice.meta_mut(), labels::MANAGED_BY, other),
    }
    cluster.put_slice(slice);
}

pub(crate) fn edit_mirror(cluster: &mut Cluster, place: usize, edit: Edit) {
    let count = cluster.mirrors.objects.len().max(1);
    let Some((key, slice)) = cluster.mirrors.iter().nth(place % count) else { return };
    let (key, mut slice): (ObjectKey, EndpointSlice) = (key.clone(), slice.clone());
    match edit {
        Edit::Delete => return drop(cluster.mirrors.remove(&key)),
        Edit::Empty => slice.endpoints.clear(),
        Edit::Copy => rename(slice.meta_mut()),
        Edit::Duplicate => slice.endpoints = [&slice.endpoints[..], &slice.endpoints[..]].concat(),
        Edit::Unready => slice.endpoints.iter_mut().for_each(|endpoint| endpoint.conditions = None),
        Edit::Ports => slice.ports = None,
        Edit::Network => {
            let labels = slice.metadata.labels.get_or_insert_default();
            labels.insert(labels::CORE_SERVICE_NAME.to_owned(), "core-c".to_owned());
        }
        other => edit_metadata(slice.meta_mut(), labels::CORE_MANAGED_BY, other),
    }
    cluster.put_slice(slice);
}

/// Turns a copy into a new object.
fn rename(metadata: &mut ObjectMeta) {
    metadata.name = metadata.name.take().map(|name| format!("{name}-copy"));
    metadata.uid = None;
}

fn edit_metadata(metadata: &mut ObjectMeta, managed_by: &str, edit: Edit) {
    let labels = metadata.labels.get_or_insert_default();
    match edit {
        Edit::Hold => {
            metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
            metadata.deletion_timestamp.get_or_insert_with(|| Time(clock::now()));
        }
        Edit::Labels => drop(labels.insert("stranger".to_owned(), "x".to_owned())),
        Edit::Unmanage => drop(labels.remove(managed_by)),
        Edit::Unname => drop(labels.remove(labels::SERVICE_NAME)),
        Edit::Rename(service) => drop(labels.insert(labels::SERVICE_NAME.to_owned(), service.to_owned())),
        Edit::Steal => drop(labels.insert(managed_by.to_owned(), "somebody.example.com".to_owned())),
        Edit::Disown => metadata.owner_references = None,
        Edit::Annotate => {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert("stranger".to_owned(), "x".to_owned());
        }
        _ => {}
    }
}
