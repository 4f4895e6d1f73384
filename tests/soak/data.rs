//! Services and slices with complete endpoints, as the controller writes them.

use std::net::Ipv4Addr;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use multinet_testing::manifests::{SERVICE, SLICE, types};
use multinet_testing::objects::Objects;
use serde_json::{Value, json};

/// Namespace of all services.
pub(crate) const NAMESPACE: &str = "pipelines";

/// Number of endpoints in a slice, the controller's default.
pub(crate) const ENDPOINTS: u32 = 100;

/// Number of concurrent writes.
const WRITERS: usize = 8;

/// Services `<prefix>0`, `<prefix>1` and so on, with the same number of slices each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Set {
    pub(crate) prefix: &'static str,
    pub(crate) services: u32,
    pub(crate) slices_each: u32,
    /// Offset of the first address from 10.0.0.0.
    pub(crate) first: u32,
}

impl Set {
    pub(crate) fn endpoints(self) -> u32 {
        self.services * self.slices_each * ENDPOINTS
    }

    /// Returns the number of a service's first address.
    pub(crate) fn address(self, service: u32) -> u32 {
        self.first + service * self.slices_each * ENDPOINTS
    }

    /// Returns the DNS name of a service.
    pub(crate) fn name(self, service: u32) -> String {
        format!("{}{service}.{NAMESPACE}.svc.multinet.cluster.local", self.prefix)
    }
}

/// Returns the address with this number.
pub(crate) fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number)
}

/// Returns the endpoints of a slice.
pub(crate) fn endpoints(first: u32, count: u32) -> Vec<Value> {
    let endpoint = |number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        json!({
            "addresses": [address(number)],
            "conditions": {"ready": true},
            "hostname": format!("worker-{number}"),
            "nodeName": format!("gpu-node-{:04}", number % 5000),
            "zone": "eu-central-1a",
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("worker-{number}"),
                          "uid": format!("6f9619ff-8b86-d011-b42d-{number:012x}")},
            "device": {"interface": "net1", "mac": format!("02:42:{a:02x}:{b:02x}:{c:02x}:{d:02x}"),
                       "rdmaDevice": "mlx5_0", "pciAddress": "0000:3b:00.2", "numaNode": 0},
        })
    };
    (first..first + count).map(endpoint).collect()
}

/// Returns a service of the set, or one of its slices.
fn object(set: Set, service: u32, slice: Option<u32>) -> Result<DynamicObject> {
    let ports = json!([{"name": "frames", "port": 7000, "protocol": "TCP"}]);
    let name = format!("{}{service}", set.prefix);
    let (kind, metadata, spec) = match slice {
        None => (
            SERVICE,
            json!({"name": name, "namespace": NAMESPACE}),
            json!({"networks": [{"name": "rail0"}], "ports": ports}),
        ),
        Some(slice) => (
            SLICE,
            json!({"name": format!("{name}-{slice:04}"), "namespace": NAMESPACE,
                   "labels": {"multinetwork.numaproj.io/service-name": name}}),
            json!({"addressType": "IPv4", "network": {"name": "rail0", "namespace": NAMESPACE}, "ports": ports,
                   "endpoints": endpoints(set.address(service) + slice * ENDPOINTS, ENDPOINTS)}),
        ),
    };
    let types = types(kind);
    let object = json!({"apiVersion": types.api_version, "kind": kind, "metadata": metadata, "spec": spec});
    Ok(serde_json::from_value(object)?)
}

/// Returns the API of all slices.
pub(crate) async fn slices(objects: &Objects) -> Result<Api<DynamicObject>> {
    objects.api(&types(SLICE), Some(NAMESPACE)).await
}

/// Creates the services and slices of a set.
pub(crate) async fn create(objects: &Objects, set: Set) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    objects.apply_object(&serde_json::from_value(namespace)?).await?;
    let services = objects.api(&types(SERVICE), Some(NAMESPACE)).await?;
    let slices = slices(objects).await?;
    let all = (0..set.services).flat_map(|service| {
        std::iter::once((service, None)).chain((0..set.slices_each).map(move |slice| (service, Some(slice))))
    });
    futures::stream::iter(all)
        .map(|(service, slice)| {
            let api = if slice.is_some() { &slices } else { &services };
            async move {
                api.create(&PostParams::default(), &object(set, service, slice)?)
                    .await
                    .map_err(anyhow::Error::from)
            }
        })
        .buffer_unordered(WRITERS)
        .try_for_each(async |_| Ok(()))
        .await
}

/// Replaces the endpoints of a slice.
pub(crate) async fn change(slices: &Api<DynamicObject>, name: &str, endpoints: Vec<Value>) -> Result<()> {
    let patch = json!({"spec": {"endpoints": endpoints}});
    slices.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}
