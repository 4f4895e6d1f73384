//! What the controller keeps of the objects that it reads: stripped to what endpoints are made of.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use multinet_crds::{Device, NetworkKind, NetworkReference};
use multinet_runtime::ObjectKey;

/// A secondary network: the object that describes it. Two services that refer to it under different aliases mean
/// the same network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// The kind of the object.
    pub kind: NetworkKind,
    /// Its namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Network {
    /// The network that a service or slice in namespace `own` refers to.
    pub fn referenced(reference: &NetworkReference, own: &str) -> Self {
        Self {
            kind: reference.kind,
            namespace: reference.namespace(own).map(str::to_owned),
            name: reference.name.clone(),
        }
    }
}

impl fmt::Display for Network {
    /// As people write it: `NetworkAttachmentDefinition vision/rdma-a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.as_str())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// The interfaces of a pod on secondary networks, as the [sources](crate::sources) report them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Interfaces with addresses.
    pub attachments: Vec<Attachment>,
    /// Interfaces and devices without any.
    pub addressless: Vec<Addressless>,
}

/// An interface of a pod on a secondary network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The networks that it is on. One for Multus. A device of a claim is on the network of its DeviceClass, and on that of the
    /// ResourceClaimTemplate that the claim was made from, if it was.
    pub networks: Vec<Network>,
    /// Its addresses that can be published: neither unspecified, loopback, multicast nor IPv4-mapped; each once, in the order in
    /// which they were reported.
    pub addresses: Vec<IpAddr>,
    /// What is known of the device. Every field is one that the schema of slices accepts.
    pub device: Device,
    /// The device, if it is one of a claim.
    pub claimed: Option<ClaimedDevice>,
}

/// An interface or a device of a pod that is on a network and has no address to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressless {
    /// The networks that it is on; see [`Attachment::networks`].
    pub networks: Vec<Network>,
    /// The device, if it is one of a claim.
    pub claimed: Option<ClaimedDevice>,
    /// Why it has no address.
    pub reason: NoAddressReason,
}

/// A device of one of a pod's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// The ResourceClaim, in the pod's namespace.
    pub claim: String,
    /// Which device.
    pub id: DeviceId,
}

/// Why an interface or a device has no address to publish; where there are several reasons, the last one here tells people most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoAddressReason {
    /// The DRA driver reports that the device carries RDMA only, so that it never has an address.
    RdmaOnly,
    /// Its report names no address that can be published.
    NoAddress,
    /// It has link-local IPv6 addresses only, which are of no use to other pods.
    LinkLocal,
    /// The device was allocated with `adminAccess`: the pod observes what is another's.
    Observer,
    /// The DRA driver has not reported network data (yet).
    NotReported,
    /// The DRA driver reports the device as not ready: the condition, and what it says.
    NotReady(String),
}

/// Report of a pod's interfaces, by its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The interfaces.
    pub interfaces: Interfaces,
    /// The networks that the pod asks for, attached or not.
    pub requested: Vec<Network>,
    /// Annotations that cannot be read at all, one line each.
    pub unreadable: Vec<Unreadable>,
    /// Entries and addresses that were left out of an annotation, one line each: those that cannot be used, and those beyond a
    /// limit. Everything else is in use.
    pub rejected: Vec<Unreadable>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Tells pods of one name apart.
    pub uid: String,
    /// What services select by.
    pub labels: BTreeMap<String, String>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its containers have ended for good: phase Failed or Succeeded. What its annotations say of addresses is history.
    pub terminal: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// Its condition Ready is True.
    pub serving: bool,
    /// Since when condition Ready is as it is.
    pub serving_changed: Option<Timestamp>,
    /// The name that it asks to have in DNS: `spec.hostname`, if it is a DNS label.
    pub hostname: Option<String>,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// It has its node's network instead of one of its own, and hence no second NIC.
    pub host_network: bool,
    /// It has a sandbox: `status.podIPs` is not empty. Before that its annotations are those of another life, from a backup or a
    /// template.
    pub has_sandbox: bool,
    /// The uid of the VirtualMachineInstance that it runs (KubeVirt), if it is the pod's controller. Its pods hand their addresses
    /// over to each other in a live migration.
    pub machine: Option<String>,
    /// The report of its interfaces, by its annotations.
    pub report: Report,
    /// The claims that it uses.
    pub claims: Vec<PodClaim>,
}

impl Pod {
    /// Whether what is written about its second NICs can be so. It has none before it has a sandbox, after it has ended, and if it
    /// has its node's network.
    pub fn has_networks(&self) -> bool {
        self.has_sandbox && !self.terminal && !self.host_network
    }

    /// Whether it serves and is to go on serving.
    pub fn is_ready(&self) -> bool {
        self.serving && !self.terminating
    }
}

/// A claim of a pod, by what the pod says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// The ResourceClaim's name, in the pod's namespace.
    pub claim: String,
    /// The ResourceClaimTemplate that it was made from, in the pod's namespace; `None` if the pod names the claim itself.
    pub template: Option<String>,
}

/// Why what was reported of a pod or claim cannot be read: one line, with the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// A ResourceClaim, as far as it has been allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The uids of the pods that it is reserved for. (Empty where nobody has said so.)
    pub reserved_for: Vec<String>,
    /// Its devices that have addresses.
    pub devices: Vec<ClaimDevice>,
    /// Its devices that have none, allocated or reported.
    pub addressless: Vec<AddresslessClaimDevice>,
    /// What of its status cannot be read, if anything; the rest is in `devices`.
    pub unreadable: Option<Unreadable>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice {
    /// Which device.
    pub id: DeviceId,
    /// The DeviceClass of the request that it was allocated for.
    pub class: Option<String>,
    /// Its addresses; see [`Attachment::addresses`].
    pub addresses: Vec<IpAddr>,
    /// What the status says of it: interface and mac. The rest is in the ResourceSlice.
    pub device: Device,
}

/// A device of a claim that has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddresslessClaimDevice {
    /// Which device.
    pub id: DeviceId,
    /// The DeviceClass of the request that it was allocated for.
    pub class: Option<String>,
    /// Why it has no address.
    pub reason: NoAddressReason,
}

/// A device, wherever it is spoken of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The DRA driver: `dra.net`.
    pub driver: String,
    /// The pool; DRANET's is the node's name.
    pub pool: String,
    /// The device's name in its pool.
    pub device: String,
}

/// A ResourceSlice: what a driver says of the devices of a pool, or of some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// Its name; it has no namespace.
    pub key: ObjectKey,
    /// The driver and pool that it belongs to, and the generation of the pool: only the slices of the highest one are true.
    pub driver: String,
    /// See `driver`.
    pub pool: String,
    /// See `driver`.
    pub generation: i64,
    /// How many slices make that generation complete.
    pub slice_count: usize,
    /// What is known of each network device, by its name in the pool. Only `interface`, `mac`, `rdma_device`, `pci_address` and
    /// `numa_node` are kept, and only as far as the schema of slices accepts them; devices of which nothing is known are left out.
    pub devices: BTreeMap<String, Device>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name; it has no namespace.
    pub key: ObjectKey,
    /// Its label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
}

/// A core Service, as a mirror sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreService {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Why nothing may be mirrored to it, if so: it has a selector, a cluster IP, or is an ExternalName.
    pub unusable: Option<&'static str>,
}

/// A pod that the service selects, with all its interfaces on secondary networks, whatever source reports them.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its interfaces.
    pub interfaces: &'a Interfaces,
}
