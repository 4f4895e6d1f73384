//! Reads interfaces from Multus' annotation `k8s.v1.cni.cncf.io/network-status`.
//!
//! The format is that of net-attach-def-client, the library that Multus uses: a list of objects,
//! one per interface. Other programs, such as Antrea and OVN-Kubernetes, write it with differences:
//!
//! - The entry of the default network has `"default": true`. It may be at any position. If a
//!   default CNI creates several interfaces, only one entry is marked; the others have the same
//!   name. Such an interface counts if its network is a NetworkAttachmentDefinition: its name is
//!   `namespace/name`, or the pod names it in `v1.multus-cni.io/default-network`.
//! - `name` is `namespace/name` of a NetworkAttachmentDefinition, or only its name. A bare name is
//!   looked up in the [networks that the pod requests](requests), and otherwise belongs to the
//!   pod's namespace. A name that is invalid for an object is that of a CNI configuration, which is
//!   ignored.
//! - A network may occur several times: a pod may be attached to it twice, and an attachment may
//!   have several interfaces.
//! - `ips` is a list of strings, with or without prefix length, or a single string.
//!
//! # Unreadable parts
//!
//! | part | consequence |
//! |---|---|
//! | text that is no JSON list | the whole annotation is ignored |
//! | an entry that is no object | the entry is ignored and reported |
//! | an entry with `name`, `default` or `ips` of another type | the same |
//! | an entry with a bare name that matches several networks | the same |
//! | an invalid address, or one that cannot be published | the address is ignored and reported |
//! | attachments beyond [`MAX_ATTACHMENTS`] | they are ignored and reported |
//! | more than 16 addresses of an attachment | the others are ignored and reported |
//! | unreadable details of the device | the details are ignored |

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;

use multinet_crds::Device;
use multinet_crds::syntax::{INTERFACE, PCI_ADDRESS, RDMA_DEVICE};
use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::value::RawValue;

use super::requests::{self, Meaning, NetworkRequests, definition};
use super::{PodAnnotations, Source};
pub use crate::limits::pods::MAX_ATTACHMENTS;
use crate::model::{Addressless, Attachment, Interfaces, Network, Report, Unreadable};
use crate::untrusted::{self, Problems, quoted, shortened};

/// Key of the pod annotation in which Multus reports interfaces and addresses.
pub const KEY: &str = "k8s.v1.cni.cncf.io/network-status";

/// Key of the annotation until 2020. Multus wrote both for some years. If both exist, only the new
/// one is read.
pub const OLD_KEY: &str = "k8s.v1.cni.cncf.io/networks-status";

/// Key of the annotation with the NetworkAttachmentDefinition that replaces the cluster's default
/// network for the pod.
const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// Maximum length of the excerpt in front of an error's position, in bytes.
const EXCERPT: usize = 40;

/// Maximum length of a network's name in a message, in characters.
const NAME: usize = 80;

/// Maximum length of a parser's error in a message, in characters. The error may quote the
/// annotation.
const COMPLAINT: usize = 80;

/// Source of interfaces that Multus reports in a pod annotation.
pub struct Multus;

impl Source for Multus {
    fn read(&self, pod: &PodAnnotations<'_>, report: &mut Report) {
        let requests = NetworkRequests::of(pod);
        report.requested.extend(requests.networks());
        let annotation = |key| Some((key, pod.get(key)?));
        let Some((key, text)) = annotation(KEY).or_else(|| annotation(OLD_KEY)) else { return };
        let mut problems = Problems::default();
        match parse(text, &mut problems) {
            Ok(entries) => {
                let names = NetworkNames::new(&entries, requests, pod);
                let found = interfaces(&entries, &names, &mut problems);
                report.interfaces.attachments.extend(found.attachments);
                report.interfaces.addressless.extend(found.addressless);
                report.rejected.extend(problems.into_lines());
            }
            Err(error) => report.unreadable.push(unreadable(key, text, &error)),
        }
    }
}

/// An entry of the annotation. A field with another type makes the entry unreadable, unless the
/// field is a `RawValue`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StatusEntry<'a> {
    name: Option<String>,
    default: Option<bool>,
    #[serde(default, deserialize_with = "ips")]
    ips: Vec<String>,
    #[serde(borrow)]
    interface: Option<&'a RawValue>,
    #[serde(borrow)]
    mac: Option<&'a RawValue>,
    #[serde(borrow)]
    device_info: Option<&'a RawValue>,
}

/// Device behind an interface. Devices of the types vhost-user and memif have neither a PCI address
/// nor an RDMA device.
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

/// Field `ips` of an entry: a list of addresses, or one text with commas between them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of addresses")]
enum Ips {
    List(Vec<Option<String>>),
    One(String),
}

impl Ips {
    fn into_texts(self) -> Vec<String> {
        match self {
            Self::List(texts) => texts.into_iter().flatten().collect(),
            Self::One(texts) => texts.split(',').map(|text| text.trim().to_owned()).collect(),
        }
    }
}

fn ips<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Ips>::deserialize(deserializer)?.map(Ips::into_texts).unwrap_or_default())
}

/// Parses the annotation's entries. Reports each invalid entry as a problem, and leaves it out.
fn parse<'a>(text: &'a str, problems: &mut Problems) -> serde_json::Result<Vec<StatusEntry<'a>>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // Go encodes a nil slice as null.
    let entries: Option<Vec<&RawValue>> = serde_json::from_str(text)?;
    let mut read = Vec::new();
    for (index, entry) in entries.unwrap_or_default().into_iter().enumerate() {
        let parsed = match serde_json::from_str(entry.get()) {
            // serde would also take a list for the fields in their order.
            _ if !entry.get().starts_with('{') => Err("expected an object".to_owned()),
            parsed => parsed.map_err(|error| error.to_string()),
        };
        match parsed {
            Ok(entry) => read.push(entry),
            Err(complaint) => problems.note(|| {
                let complaint = shortened(&complaint, COMPLAINT);
                format!("entry {} of the network status is left out: {complaint}", index + 1)
            }),
        }
    }
    Ok(read)
}

/// Resolver of network names in a pod's annotation.
struct NetworkNames<'a> {
    own_namespace: &'a str,
    requests: NetworkRequests,
    /// Names of the entries that are marked as default network.
    defaults: HashSet<&'a str>,
    /// Namespace and name of the NetworkAttachmentDefinition that replaces the pod's default
    /// network, if any.
    default_network: Option<(&'a str, &'a str)>,
}

impl<'a> NetworkNames<'a> {
    fn new(entries: &'a [StatusEntry<'_>], requests: NetworkRequests, pod: &PodAnnotations<'a>) -> Self {
        let defaults = entries.iter().filter(|entry| entry.is_default());
        Self {
            own_namespace: pod.namespace,
            requests,
            defaults: defaults.map(StatusEntry::name).collect(),
            default_network: pod.get(DEFAULT_NETWORK).and_then(|name| name.trim().split_once('/')),
        }
    }

    /// Returns the network of an entry; `None` if it is not a NetworkAttachmentDefinition.
    fn network(
        &self,
        entry: &StatusEntry<'_>,
        interface: Option<&str>,
        problems: &mut Problems,
    ) -> Option<Network> {
        let name = entry.name();
        if let Some((namespace, name)) = name.split_once('/') {
            return definition(namespace, name);
        }
        if entry.is_default() || self.defaults.contains(name) {
            let (namespace, _) = self.default_network.filter(|&(_, default)| default == name)?;
            return definition(namespace, name);
        }
        match self.requests.meaning(name, interface) {
            Meaning::Namespace(namespace) => definition(&namespace, name),
            Meaning::NotRequested => definition(self.own_namespace, name),
            Meaning::Ambiguous(networks) => {
                problems.note(|| {
                    let networks: Vec<String> = networks.iter().map(Network::to_string).collect();
                    let interface = interface.unwrap_or("an interface");
                    format!(
                        "{interface} on {} is left out: the pod asks for {}; name an interface for each in annotation {}",
                        shortened(name, NAME),
                        networks.join(" and "),
                        requests::KEY
                    )
                });
                None
            }
        }
    }
}

fn interfaces(entries: &[StatusEntry<'_>], names: &NetworkNames<'_>, problems: &mut Problems) -> Interfaces {
    let mut found = Interfaces::default();
    let mut beyond = 0;
    for entry in entries {
        let device = entry.device();
        let Some(network) = names.network(entry, device.interface.as_deref(), problems) else { continue };
        if found.attachments.len() + found.addressless.len() >= MAX_ATTACHMENTS {
            beyond += usize::from(!entry.ips.is_empty());
            continue;
        }
        let interface = device.interface.as_deref().unwrap_or("an interface");
        let whose = fmt::from_fn(|f| write!(f, "{interface} on {}", shortened(entry.name(), NAME)));
        let networks = vec![network];
        match untrusted::addresses(&entry.ips, &whose, problems) {
            Ok(addresses) => {
                found.attachments.push(Attachment { networks, addresses, device, claimed: None });
            }
            Err(reason) => found.addressless.push(Addressless { networks, claimed: None, reason }),
        }
    }
    if beyond > 0 {
        problems.note(|| format!("{beyond} attachments beyond the first {MAX_ATTACHMENTS} are left out"));
    }
    found
}

impl StatusEntry<'_> {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

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
            interface: text(self.interface).filter(|name| INTERFACE.accepts(name)),
            mac: text(self.mac).and_then(|text| untrusted::mac(&text)),
            rdma_device: rdma_device.filter(|name| RDMA_DEVICE.accepts(name)),
            pci_address: pci_address.filter(|address| PCI_ADDRESS.accepts(address)),
            numa_node: None,
        }
    }
}

/// Describes why the annotation `key` cannot be read, where, and what to do.
fn unreadable(key: &str, text: &str, error: &serde_json::Error) -> Unreadable {
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let end = line.floor_char_boundary(error.column());
    let start = line.floor_char_boundary(end.saturating_sub(EXCERPT));
    let complaint = error.to_string();
    // The error ends with the position. It is removed, since the message contains the position
    // already.
    let complaint = complaint.rsplit_once(" at line ").map_or(complaint.as_str(), |(complaint, _)| complaint);
    Unreadable(format!(
        "annotation {key} is unreadable at line {} column {}, after {}: {}; delete the pod to have it written again",
        error.line(),
        error.column(),
        quoted(&line[start..end]),
        shortened(complaint, COMPLAINT),
    ))
}
