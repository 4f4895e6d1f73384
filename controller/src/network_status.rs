//! Multus' report of a pod's interfaces: the annotation `k8s.v1.cni.cncf.io/network-status`.
//!
//! The format is that of net-attach-def-client, which Multus writes with: a list of objects, one for each interface.
//! Others write it too (Antrea, OVN-Kubernetes), in their own ways:
//!
//! - The default network's entry says `"default": true`; it may be anywhere. If a default CNI makes several interfaces, only
//!   one of them says so, and the others are told by its name.
//! - `name` is `namespace/name` of a NetworkAttachmentDefinition, or only its name, in the pod's namespace then. A name that
//!   no such object can have is that of a CNI configuration, and none of ours.
//! - A network may come several times: a pod may be attached twice, and one attachment may have several interfaces.
//!
//! # What cannot be read
//!
//! | what | then |
//! |---|---|
//! | no JSON, no list of objects, `name`, `default` or `ips` of another type | nothing of the annotation is used |
//! | an address that is none or cannot be published | it is left out and told of |
//! | more than [`MAX_ATTACHMENTS`] attachments, or 16 addresses of one | those beyond are left out and told of |
//! | details of the device, of whatever kind | they are left out |

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use multinet_crds::syntax::{DNS_LABEL, DNS_SUBDOMAIN};
use multinet_crds::{Device, NetworkKind};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::foreign::{self, Problems, quoted, shortened};
use crate::model::{Attachment, Network, Unreadable};

/// The annotation.
pub const KEY: &str = "k8s.v1.cni.cncf.io/network-status";

/// What it was called until 2020. Multus wrote both for some years; where there are both, the new one counts.
pub const OLD_KEY: &str = "k8s.v1.cni.cncf.io/networks-status";

/// How many attachments of a pod are used. A node has tens of NICs, not hundreds.
pub const MAX_ATTACHMENTS: usize = 64;

/// How much of the annotation is repeated in front of the place where it cannot be read, in bytes.
const EXCERPT: usize = 40;

/// How much of a network's name is repeated, in characters.
const NAME: usize = 80;

/// How much of the parser's complaint is repeated, in characters. It may quote the annotation.
const COMPLAINT: usize = 80;

/// What an annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// The attachments that have addresses, or why nothing can be read.
    pub reported: Result<Vec<Attachment>, Unreadable>,
    /// What was left out of them, one line each.
    pub rejected: Vec<Unreadable>,
}

/// An interface, as far as it matters. What is no `RawValue` has to be of its type, if it is there at all.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry<'a> {
    name: Option<String>,
    default: Option<bool>,
    ips: Option<Vec<String>>,
    #[serde(borrow)]
    interface: Option<&'a RawValue>,
    #[serde(borrow)]
    mac: Option<&'a RawValue>,
    #[serde(borrow)]
    device_info: Option<&'a RawValue>,
}

/// The device behind an interface. Those of types vhost-user and memif have neither PCI address nor RDMA device.
#[derive(Default, Deserialize)]
struct DeviceInfo {
    pci: Option<PciFunction>,
    vdpa: Option<PciFunction>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PciFunction {
    pci_address: Option<String>,
    rdma_device: Option<String>,
}

/// Reads the annotation `key` of a pod in `namespace`.
pub fn read(key: &str, text: &str, namespace: &str) -> NetworkStatus {
    let entries = match parse(text) {
        Ok(entries) => entries,
        Err(error) => {
            return NetworkStatus { reported: Err(unreadable(key, text, &error)), rejected: Vec::new() };
        }
    };
    let mut problems = Problems::default();
    let reported = attachments(&entries, namespace, &mut problems);
    NetworkStatus { reported: Ok(reported), rejected: problems.into_lines() }
}

fn parse(text: &str) -> serde_json::Result<Vec<Entry<'_>>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // Go writes null for a list that nobody has made.
    let entries: Option<Vec<Object<Entry<'_>>>> = serde_json::from_str(text)?;
    Ok(entries.unwrap_or_default().into_iter().map(|entry| entry.0).collect())
}

/// A `T` of a JSON object only. By itself a struct can be had of a list as well, field by field.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Object<T>, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

fn attachments(entries: &[Entry<'_>], namespace: &str, problems: &mut Problems) -> Vec<Attachment> {
    let default_networks: HashSet<&str> =
        entries.iter().filter(|entry| entry.is_default()).filter_map(|entry| entry.name.as_deref()).collect();
    let mut attachments = Vec::new();
    let mut beyond = 0;
    for entry in entries {
        let name = entry.name.as_deref().unwrap_or_default();
        // A NetworkAttachmentDefinition may be the default network of a pod and be asked for once more: only a CNI
        // configuration's name, which has no namespace, tells for sure.
        if entry.is_default() || !name.contains('/') && default_networks.contains(name) {
            continue;
        }
        let Some(network) = network(name, namespace) else { continue };
        let ips = entry.ips.as_deref().unwrap_or_default();
        if attachments.len() >= MAX_ATTACHMENTS {
            beyond += usize::from(!ips.is_empty());
            continue;
        }
        let device = entry.device();
        let interface = device.interface.as_deref().unwrap_or("an interface");
        let whose = fmt::from_fn(|f| write!(f, "{interface} on {}", shortened(name, NAME)));
        let addresses = foreign::addresses(ips, &whose, problems);
        if !addresses.is_empty() {
            attachments.push(Attachment { networks: vec![network], addresses, device });
        }
    }
    if beyond > 0 {
        problems.note(|| format!("{beyond} attachments beyond the first {MAX_ATTACHMENTS} are left out"));
    }
    attachments
}

/// The NetworkAttachmentDefinition of this name, if there can be one.
fn network(name: &str, own_namespace: &str) -> Option<Network> {
    let (namespace, name) = name.split_once('/').unwrap_or((own_namespace, name));
    (DNS_LABEL.accepts(namespace) && DNS_SUBDOMAIN.accepts(name)).then(|| Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    })
}

impl Entry<'_> {
    fn is_default(&self) -> bool {
        self.default == Some(true)
    }

    fn device(&self) -> Device {
        let text =
            |raw: Option<&RawValue>| raw.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        let info = self.device_info.and_then(|raw| serde_json::from_str::<DeviceInfo>(raw.get()).ok());
        let function = info.and_then(|info| info.pci.or(info.vdpa));
        let (pci_address, rdma_device) =
            function.map_or((None, None), |function| (function.pci_address, function.rdma_device));
        Device {
            interface: text(self.interface).and_then(|text| foreign::interface(&text)),
            mac: text(self.mac).and_then(|text| foreign::mac(&text)),
            rdma_device: rdma_device.and_then(|text| foreign::rdma_device(&text)),
            pci_address: pci_address.and_then(|text| foreign::pci_address(&text)),
            numa_node: None,
        }
    }
}

/// Why the annotation cannot be read, where, and what to do.
fn unreadable(key: &str, text: &str, error: &serde_json::Error) -> Unreadable {
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let end = line.floor_char_boundary(error.column());
    let start = line.floor_char_boundary(end.saturating_sub(EXCERPT));
    let complaint = error.to_string();
    // The complaint ends with the place, but may be too long for its end to be seen.
    let complaint = complaint.rsplit_once(" at line ").map_or(complaint.as_str(), |(complaint, _)| complaint);
    Unreadable(format!(
        "annotation {key} is unreadable at line {} column {}, after {}: {}; delete the pod to have it written anew",
        error.line(),
        error.column(),
        quoted(&line[start..end]),
        shortened(complaint, COMPLAINT),
    ))
}
