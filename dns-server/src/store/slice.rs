//! What DNS needs of a MultiNetworkEndpointSlice.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use multinet_crds::{MultiNetworkEndpointSlice, Protocol, labels};
use serde::{Deserialize, Serialize};

use crate::store::endpoints::{Endpoint, Endpoints, EndpointsBuilder};
use crate::store::{name, txt};

/// What DNS needs of a MultiNetworkEndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The service that the slice belongs to, in its own namespace.
    pub service: Box<str>,
    /// Alias of the network that its addresses are on.
    pub network: Box<str>,
    /// Ports that every endpoint has; the index has a service's slices share them.
    #[serde(with = "ports")]
    pub ports: Arc<[Port]>,
    /// The endpoints that are ready.
    pub endpoints: Endpoints,
    /// How many more are not.
    pub not_ready: u32,
}

/// A port; one without a name has no SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Name, a DNS label or empty.
    pub name: Box<str>,
    /// Protocol, as SRV names have it: `_tcp`.
    pub protocol: ProtocolLabel,
    /// Number.
    pub number: u16,
}

/// The protocol label of an SRV name (RFC 2782).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProtocolLabel {
    /// `_tcp`
    Tcp,
    /// `_udp`
    Udp,
    /// `_sctp`
    Sctp,
}

impl ProtocolLabel {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The label in wire format.
    pub fn as_wire(self) -> &'static [u8] {
        match self {
            Self::Tcp => b"\x04_tcp",
            Self::Udp => b"\x04_udp",
            Self::Sctp => b"\x05_sctp",
        }
    }

    /// From the label in wire format, lowercased.
    pub fn from_wire(label: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.as_wire() == label)
    }

    /// The label.
    pub fn as_str(self) -> &'static str {
        // All of them are ASCII.
        str::from_utf8(&self.as_wire()[1..]).unwrap_or_default()
    }
}

impl From<Protocol> for ProtocolLabel {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}

/// Ports in files: those of each slice by themselves.
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
    /// Takes from a slice what DNS needs. `None` for a slice without the label that names its service: it
    /// is nobody's. So is one that is being deleted: its writer has replaced it, and looks after it no more, however long a
    /// finalizer holds it. An endpoint whose address does not parse is an error; the API server and the
    /// manifests source refuse such slices beforehand.
    pub fn parse(slice: &MultiNetworkEndpointSlice) -> Result<Option<Self>, BadAddress> {
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
            network: network.into(),
            ports: spec
                .ports
                .iter()
                .map(|port| Port {
                    name: port.name.as_str().into(),
                    protocol: port.protocol.into(),
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
                let address = text.parse().map_err(|_| BadAddress { position, text: text.clone() })?;
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

/// When the change happened that this version of a slice tells of, if it says so. It is no part of a [`Slice`]: two
/// that differ in nothing else say the same.
pub fn trigger_time(slice: &MultiNetworkEndpointSlice) -> Option<Timestamp> {
    slice.metadata.annotations.as_ref()?.get(labels::LAST_CHANGE_TRIGGER_TIME)?.parse().ok()
}

/// An endpoint's address that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.endpoints[{position}].addresses: {text:?} is not an IP address")]
pub struct BadAddress {
    position: usize,
    text: String,
}

/// The TXT data of an endpoint: each known fact a character string. A fact too long for one (255 bytes,
/// RFC 1035 §3.3) is left out: half a node name would be a wrong one.
fn describe(endpoint: &multinet_crds::Endpoint, address: IpAddr, network: &str) -> Vec<u8> {
    let device = endpoint.device.as_ref();
    let pod = endpoint.target_ref.as_ref();
    let facts = [
        ("addr", Some(address.to_string())),
        ("net", Some(network.to_owned())),
        ("if", device.and_then(|device| device.interface.clone())),
        ("mac", device.and_then(|device| device.mac.clone())),
        ("rdma", device.and_then(|device| device.rdma_device.clone())),
        ("pci", device.and_then(|device| device.pci_address.clone())),
        ("numa", device.and_then(|device| device.numa_node).map(|node| node.to_string())),
        ("node", endpoint.node_name.clone()),
        ("zone", endpoint.zone.clone()),
        ("pod", pod.and_then(|pod| Some(format!("{}/{}", pod.namespace.as_ref()?, pod.name.as_ref()?)))),
        ("uid", pod.and_then(|pod| pod.uid.clone())),
    ];
    let mut txt = Vec::new();
    for (key, value) in facts {
        if let Some(value) = value {
            txt::push_pair(&mut txt, key, &value);
        }
    }
    txt
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_is_nobodys_without_its_label_and_while_a_finalizer_holds_it() {
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
