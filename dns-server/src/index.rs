//! Objects in, services out: what DNS needs of services and slices, in whatever order they arrive. Pure.
//!
//! Slices wait for a service that is not there yet, and outlive one that went: a service answers as
//! long as both exist. Only ready endpoints are kept; an endpoint that nobody may be told of cannot
//! leak.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use jiff::Timestamp;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, Protocol, labels};
use multinet_runtime::ObjectKey;
use serde::{Deserialize, Serialize};

use crate::{name, txt};

/// What DNS needs of a MultiNetworkService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Time to live in seconds; the server's where absent.
    pub ttl: Option<u32>,
}

/// What DNS needs of a MultiNetworkEndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The service that the slice belongs to, in its own namespace.
    pub service: String,
    /// Alias of the network that its addresses are on.
    pub network: String,
    /// Ports that every endpoint has.
    pub ports: Vec<Port>,
    /// The endpoints that are ready.
    pub endpoints: Vec<Endpoint>,
    /// How many more are not.
    pub not_ready: usize,
    /// When the change happened that this version of the slice tells of.
    #[serde(skip)]
    pub triggered: Option<Timestamp>,
}

/// A port; one without a name has no SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Name, a DNS label or empty.
    pub name: String,
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
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "_tcp",
            Self::Udp => "_udp",
            Self::Sctp => "_sctp",
        }
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

/// A ready endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its one address.
    pub address: IpAddr,
    /// Its label: the hostname, else made of the address.
    pub host: Box<str>,
    /// Whether `host` is a hostname that somebody chose.
    pub named: bool,
    /// Data of its TXT record.
    #[serde(with = "txt")]
    pub txt: Box<[u8]>,
}

impl From<&MultiNetworkService> for Service {
    fn from(service: &MultiNetworkService) -> Self {
        Self { ttl: service.spec.ttl_seconds.map(u32::from) }
    }
}

impl Slice {
    /// Takes from a slice what DNS needs. `None` for a slice without the label that names its service: it
    /// is nobody's. An endpoint whose address does not parse is an error; the API server and the
    /// manifests source refuse such slices beforehand.
    pub fn parse(slice: &MultiNetworkEndpointSlice) -> Result<Option<Self>, BadAddress> {
        let label = |key| slice.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let Some(service) = label(labels::SERVICE_NAME) else {
            return Ok(None);
        };
        let spec = &slice.spec;
        let network = spec.network.alias().to_owned();
        let mut parsed = Self {
            service: service.clone(),
            triggered: slice
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(labels::LAST_CHANGE_TRIGGER_TIME))
                .and_then(|time| time.parse().ok()),
            ports: spec
                .ports
                .iter()
                .map(|port| Port {
                    name: port.name.clone(),
                    protocol: port.protocol.into(),
                    number: port.port,
                })
                .collect(),
            ..Self::default()
        };
        for (position, endpoint) in spec.endpoints.iter().enumerate() {
            if !endpoint.is_ready() {
                parsed.not_ready += 1;
                continue;
            }
            for text in &endpoint.addresses {
                let address = text.parse().map_err(|_| BadAddress { position, text: text.clone() })?;
                parsed.endpoints.push(Endpoint {
                    address,
                    host: endpoint.hostname.clone().unwrap_or_else(|| name::address_label(address)).into(),
                    named: endpoint.hostname.is_some(),
                    txt: describe(endpoint, address, &network),
                });
            }
        }
        parsed.network = network;
        Ok(Some(parsed))
    }
}

/// An endpoint's address that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.endpoints[{position}].addresses: {text:?} is not an IP address")]
pub struct BadAddress {
    position: usize,
    text: String,
}

/// The TXT data of an endpoint: each known fact a character string. A fact too long for one (255 octets,
/// RFC 1035 §3.3) is left out: half a node name would be a wrong one.
fn describe(endpoint: &multinet_crds::Endpoint, address: IpAddr, network: &str) -> Box<[u8]> {
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
            txt::push_fact(&mut txt, key, &value);
        }
    }
    txt.into()
}

/// What DNS is to say about one service.
#[derive(Debug, Clone)]
pub struct ServiceView<'a> {
    /// Its namespace and name.
    pub key: &'a ObjectKey,
    /// Time to live of its records, in seconds.
    pub ttl: u32,
    /// Its slices, whoever wrote them, in a stable order.
    pub slices: Vec<&'a Slice>,
}

/// All services and slices, and which services have changed since they were last asked for.
#[derive(Debug, Default)]
pub struct Index {
    services: BTreeMap<ObjectKey, Known>,
    /// Which service a slice belongs to: its label may change.
    slices: HashMap<ObjectKey, ObjectKey>,
    changed: BTreeSet<ObjectKey>,
}

/// A service, its slices, or both.
#[derive(Debug, Default)]
struct Known {
    service: Option<Service>,
    slices: BTreeMap<String, Slice>,
}

impl Index {
    /// A new or changed service.
    pub fn apply_service(&mut self, key: ObjectKey, service: Service) {
        let known = self.services.entry(key.clone()).or_default();
        if known.service.as_ref() != Some(&service) {
            known.service = Some(service);
            self.changed.insert(key);
        }
    }

    /// A service that is gone; its slices stay, for it may come back.
    pub fn delete_service(&mut self, key: &ObjectKey) {
        if let Some(known) = self.services.get_mut(key)
            && known.service.take().is_some()
        {
            self.changed.insert(key.clone());
            self.forget_if_empty(key);
        }
    }

    /// Forgets all services but these.
    pub fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self
            .services
            .iter()
            .filter(|(key, known)| known.service.is_some() && !live.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| self.delete_service(key));
    }

    /// A new or changed slice; whether anything differs from what was known.
    pub fn apply_slice(&mut self, key: &ObjectKey, slice: Slice) -> bool {
        let owner = ObjectKey { namespace: key.namespace.clone(), name: slice.service.clone() };
        if self.slices.get(key).is_some_and(|before| *before != owner) {
            self.delete_slice(key);
        }
        self.slices.insert(key.clone(), owner.clone());
        let known = self.services.entry(owner.clone()).or_default();
        let changed = known.slices.get(&key.name) != Some(&slice);
        if changed {
            known.slices.insert(key.name.clone(), slice);
            self.changed.insert(owner);
        }
        changed
    }

    /// A slice that is gone, or is nobody's any more.
    pub fn delete_slice(&mut self, key: &ObjectKey) {
        let Some(owner) = self.slices.remove(key) else {
            return;
        };
        if let Some(known) = self.services.get_mut(&owner) {
            known.slices.remove(&key.name);
        }
        self.forget_if_empty(&owner);
        self.changed.insert(owner);
    }

    /// Forgets all slices but these.
    pub fn retain_slices(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self.slices.keys().filter(|key| !live.contains(key)).cloned().collect();
        gone.iter().for_each(|key| self.delete_slice(key));
    }

    fn forget_if_empty(&mut self, key: &ObjectKey) {
        if self.services.get(key).is_some_and(|known| known.service.is_none() && known.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// The services that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut self.changed)
    }

    /// What DNS is to say about a service, if it exists.
    pub fn view<'a>(&'a self, key: &'a ObjectKey, default_ttl: u32) -> Option<ServiceView<'a>> {
        let known = self.services.get(key)?;
        let service = known.service.as_ref()?;
        let ttl = service.ttl.unwrap_or(default_ttl);
        Some(ServiceView { key, ttl, slices: known.slices.values().collect() })
    }

    /// Every service, in the order of their names.
    pub fn services(&self) -> impl Iterator<Item = (&ObjectKey, &Service)> {
        self.services.iter().filter_map(|(key, known)| Some((key, known.service.as_ref()?)))
    }

    /// Every slice, in the order of services and slices, with its own key.
    pub fn slices(&self) -> impl Iterator<Item = (ObjectKey, &Slice)> {
        self.services.iter().flat_map(|(owner, known)| {
            known.slices.iter().map(|(name, slice)| {
                (ObjectKey { namespace: owner.namespace.clone(), name: name.clone() }, slice)
            })
        })
    }
}
