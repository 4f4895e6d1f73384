//! The parts of a MultiNetworkEndpointSlice that DNS needs.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use multinet_crds::{MultiNetworkEndpointSlice, Protocol, labels};
use serde::{Deserialize, Serialize};

use crate::store::endpoints::{Endpoint, Endpoints, EndpointsBuilder};
use crate::store::{name, txt};

/// The parts of a MultiNetworkEndpointSlice that DNS needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Name of the service that the slice belongs to, in the slice's namespace.
    pub service: Box<str>,
    /// Alias of the network that the endpoints' addresses are on.
    pub network: Box<str>,
    /// Ports that every endpoint has. The index lets slices of a service with equal ports share
    /// them.
    #[serde(with = "ports")]
    pub ports: Arc<[Port]>,
    /// The slice's ready endpoints, one for each of their addresses.
    pub endpoints: Endpoints,
    /// Number of endpoints in the slice that are not ready, and so have no records.
    pub not_ready: u32,
    /// Vertex whose name the service has, too, if the slice's labels name one.
    pub vertex: Option<VertexName>,
}

/// Names of a vertex of Numaflow and of its pipeline: DNS labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VertexName {
    /// Name of the vertex.
    pub vertex: Box<str>,
    /// Name of the pipeline.
    pub pipeline: Box<str>,
}

impl VertexName {
    /// Returns `<vertex>.<pipeline>` in wire format, lowercased. Returns `None` if DNS cannot
    /// express one of them.
    pub fn to_wire(&self) -> Option<Box<[u8]>> {
        let labels = [name::wire_label(&self.vertex)?, name::wire_label(&self.pipeline)?];
        Some(labels.concat().into())
    }
}

/// A port of a slice's endpoints. A port without a name has no SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port: a DNS label, or empty.
    pub name: Box<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Port number.
    pub number: u16,
}

/// Returns the label of a protocol in the names of SRV records (RFC 2782), in wire format: `_tcp`
/// behind its length byte.
pub fn protocol_label(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Tcp => b"\x04_tcp",
        Protocol::Udp => b"\x04_udp",
        Protocol::Sctp => b"\x05_sctp",
    }
}

/// Returns the protocol with this label, which is lowercased and in wire format.
pub fn protocol_of(label: &[u8]) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol_label(*protocol) == label)
}

/// Serializes the ports of each slice as a list of their own, whether or not slices share it in
/// memory.
mod ports {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Port;

    pub(super) fn serialize<S: Serializer>(ports: &Arc<[Port]>, serializer: S) -> Result<S::Ok, S::Error> {
        (**ports).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Port]>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::from)
    }
}

impl Slice {
    /// Parses a slice. Returns `Ok(None)` if the slice belongs to no service, because it lacks the
    /// label with the service's name, or is being deleted. The writer of a deleted slice has
    /// replaced it and no longer updates it, however long a finalizer keeps it.
    ///
    /// Fails if the address of an endpoint does not parse. The API server and the manifests source
    /// reject such slices earlier.
    pub fn parse(slice: &MultiNetworkEndpointSlice) -> Result<Option<Self>, String> {
        let label = |key| slice.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let Some(service) =
            label(labels::SERVICE_NAME).filter(|_| slice.metadata.deletion_timestamp.is_none())
        else {
            return Ok(None);
        };
        let spec = &slice.spec;
        let network = spec.network.alias();
        let mut parsed = Self {
            service: service.as_str().into(),
            vertex: slice
                .vertex()
                .map(|(vertex, pipeline)| VertexName { vertex: vertex.into(), pipeline: pipeline.into() }),
            network: network.into(),
            ports: spec
                .ports
                .iter()
                .map(|port| Port {
                    name: port.name.as_str().into(),
                    protocol: port.protocol,
                    number: port.port,
                })
                .collect(),
            ..Self::default()
        };
        let mut endpoints = EndpointsBuilder::default();
        for (position, endpoint) in spec.endpoints.iter().enumerate() {
            if !endpoint.is_ready() {
                parsed.not_ready += 1;
                continue;
            }
            for text in &endpoint.addresses {
                let address = text.parse().map_err(|_| {
                    format!("spec.endpoints[{position}].addresses: {text:?} is not an IP address")
                })?;
                let made = || name::address_label(address);
                endpoints.push(&Endpoint {
                    address,
                    host: &endpoint.hostname.as_ref().map_or_else(|| made().into(), Cow::from),
                    named: endpoint.hostname.is_some(),
                    txt: &describe(endpoint, address, network),
                });
            }
        }
        parsed.endpoints = endpoints.finish();
        Ok(Some(parsed))
    }
}

/// Returns the time of the change that led to this version of a slice, if the slice names it. The
/// time is not part of [`Slice`], so that two versions that differ only in it are equal.
pub fn trigger_time(slice: &MultiNetworkEndpointSlice) -> Option<Timestamp> {
    slice.metadata.annotations.as_ref()?.get(labels::LAST_CHANGE_TRIGGER_TIME)?.parse().ok()
}

/// Makes the TXT data of an endpoint: one character string for each known property. A property that
/// is longer than a character string may be (255 bytes, RFC 1035 §3.3) is left out, since a
/// truncated node name would be wrong.
fn describe(endpoint: &multinet_crds::Endpoint, address: IpAddr, network: &str) -> Vec<u8> {
    let mut txt = Vec::new();
    for (key, value) in endpoint.facts(address, network) {
        txt::push_pair(&mut txt, key, &value);
    }
    txt
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_without_its_label_or_being_deleted_belongs_to_no_service() {
        let counts = |labels, deleted: Option<&str>| {
            let slice = json!({
                "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice",
                "metadata": {
                    "name": "infer-1", "namespace": "vision", "labels": labels, "finalizers": ["example.com/hold"],
                    "deletionTimestamp": deleted,
                },
                "spec": {"addressType": "IPv4", "network": {"name": "rdma-a"}, "endpoints": [{"addresses": ["10.0.0.1"]}]},
            });
            Slice::parse(&serde_json::from_value(slice).unwrap()).unwrap().is_some()
        };
        let named = json!({labels::SERVICE_NAME: "infer"});
        assert!(counts(named.clone(), None));
        assert!(!counts(named, Some("2026-11-26T05:00:00Z")));
        assert!(!counts(json!({}), None));
    }
}
