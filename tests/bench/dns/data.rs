//! The same data in three forms: a zone file, our kinds, and headless Services with EndpointSlices.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{DynamicObject, PostParams};
use multinet_testing::objects::Objects;
use serde_json::{Value, json};

use crate::side::Side;

/// Namespace of all services.
pub(crate) const NAMESPACE: &str = "bench";

/// Concurrent writes to the API server.
const WRITERS: usize = 8;

/// Services with the same number of endpoints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Set {
    prefix: &'static str,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    /// The lowest address.
    first: Ipv4Addr,
}

/// Services that most queries name.
pub(crate) const SMALL: Set =
    Set { prefix: "s", services: 1000, endpoints: 3, first: Ipv4Addr::new(10, 0, 0, 1) };

/// A service whose answer is too long for a datagram.
pub(crate) const LONG: Set =
    Set { prefix: "long", services: 1, endpoints: 100, first: Ipv4Addr::new(10, 16, 0, 1) };

/// Returns services of a hundred endpoints each, for memory.
pub(crate) const fn hundreds(services: usize) -> Set {
    Set { prefix: "h", services, endpoints: 100, first: Ipv4Addr::new(10, 32, 0, 1) }
}

impl Set {
    /// Returns a service's name; all names have the same length.
    pub(crate) fn service(self, service: usize) -> String {
        format!("{}{service:04}", self.prefix)
    }

    fn address(self, service: usize, endpoint: usize) -> Ipv4Addr {
        let number = (service * self.endpoints + endpoint) as u32;
        Ipv4Addr::from(u32::from(self.first) + number)
    }
}

/// Returns a zone file for Knot and NSD, with the records that multinet-dns answers.
pub(crate) fn zone_file(sets: &[Set]) -> Result<String> {
    let mut zone = format!(
        "$ORIGIN {}.\n$TTL 5\n@ SOA ns.dns hostmaster 1 7200 1800 86400 5\n@ NS ns.dns\nns.dns A 127.0.0.1\n",
        Side::Ours.zone()
    );
    for set in sets {
        for service in 0..set.services {
            let name = format!("{}.{NAMESPACE}.svc", set.service(service));
            for endpoint in 0..set.endpoints {
                let address = set.address(service, endpoint);
                writeln!(zone, "{name} A {address}\nh{endpoint}.{name} A {address}")?;
                writeln!(zone, "_rdma._tcp.{name} SRV 0 1 18515 h{endpoint}.{name}")?;
            }
        }
    }
    Ok(zone)
}

/// Returns manifests for multinet-dns, as YAML documents.
pub(crate) fn manifests(sets: &[Set]) -> Result<String> {
    let mut text = String::new();
    for set in sets {
        for service in 0..set.services {
            for object in Side::Ours.objects(*set, service) {
                writeln!(text, "---\n{object}")?;
            }
        }
    }
    Ok(text)
}

impl Side {
    /// Returns a service and its slice.
    fn objects(self, set: Set, service: usize) -> [Value; 2] {
        let name = set.service(service);
        let ports = json!([{"name": "rdma", "port": 18515, "protocol": "TCP"}]);
        let endpoints: Vec<Value> =
            (0..set.endpoints).map(|endpoint| self.endpoint(set, service, endpoint)).collect();
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        let mut slice_metadata = metadata.clone();
        match self {
            Self::Ours => {
                slice_metadata["labels"] = json!({"multinetwork.numaproj.io/service-name": name});
                let version = "multinetwork.numaproj.io/v1alpha1";
                let network =
                    json!({"kind": "NetworkAttachmentDefinition", "name": "rail0", "namespace": NAMESPACE});
                let spec = json!({"networks": [{"name": "rail0"}], "ports": ports});
                let slice = json!({"addressType": "IPv4", "network": network, "ports": ports, "endpoints": endpoints});
                [
                    json!({"apiVersion": version, "kind": "MultiNetworkService", "metadata": metadata, "spec": spec}),
                    json!({"apiVersion": version, "kind": "MultiNetworkEndpointSlice", "metadata": slice_metadata, "spec": slice}),
                ]
            }
            Self::Core => {
                slice_metadata["labels"] = json!({"kubernetes.io/service-name": name});
                let spec = json!({"clusterIP": "None", "ports": ports});
                [
                    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}),
                    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_metadata,
                        "addressType": "IPv4", "ports": ports, "endpoints": endpoints}),
                ]
            }
        }
    }

    fn endpoint(self, set: Set, service: usize, endpoint: usize) -> Value {
        let pod = format!("{}-{endpoint}", set.service(service));
        let mut value = json!({
            "addresses": [set.address(service, endpoint)],
            "conditions": {"ready": true},
            "hostname": format!("h{endpoint}"),
            "nodeName": format!("node-{}", endpoint % 16),
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod},
        });
        if self == Self::Ours {
            // The data of TXT records.
            value["device"] = json!({"interface": "net1", "rdmaDevice": format!("mlx5_{}", endpoint % 8)});
        }
        value
    }
}

/// Creates the objects of one kind.
pub(crate) async fn create(objects: &Objects, side: Side, sets: &[Set]) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    objects.apply_object(&serde_json::from_value(namespace)?).await?;
    for set in sets {
        let apis = {
            let [service, slice] = side.objects(*set, 0);
            let api = async |object: Value| {
                let object: DynamicObject = serde_json::from_value(object)?;
                objects.api(&object.types.context("an object without kind")?, Some(NAMESPACE)).await
            };
            [api(service).await?, api(slice).await?]
        };
        futures::stream::iter(0..set.services)
            .map(|service| {
                let apis = &apis;
                async move {
                    for (api, object) in apis.iter().zip(side.objects(*set, service)) {
                        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
                    }
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(WRITERS)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}
