//! Objects that the controller reads, reduced to what it needs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use multinet_crds::{Device, NetworkKind, NetworkReference};
use multinet_runtime::ObjectKey;
use serde::Deserialize;

/// A secondary network, identified by the object that describes it. Services that use different
/// aliases for that object refer to the same network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// Kind of the object that describes the network.
    pub kind: NetworkKind,
    /// Namespace of the object that describes the network; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Name of the object that describes the network.
    pub name: String,
}

impl Network {
    /// Returns the network that `reference` means in a service or slice of the namespace `own`.
    pub fn referenced(reference: &NetworkReference, own: &str) -> Self {
        Self {
            kind: reference.kind,
            namespace: reference.namespace(own).map(str::to_owned),
            name: reference.name.clone(),
        }
    }
}

impl fmt::Display for Network {
    /// Writes the network for messages, as in `NetworkAttachmentDefinition vision/rdma-a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.as_str())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// Interfaces of a pod on secondary networks, as the [sources](crate::sources) report them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Interfaces of the pod that have addresses to publish.
    pub attachments: Vec<Attachment>,
    /// Interfaces and devices of the pod that have no address to publish.
    pub addressless: Vec<Addressless>,
}

/// An interface of a pod on a secondary network, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The networks that the interface is on: one for Multus. A device of a claim is on the network
    /// of its DeviceClass. If the claim was made from a ResourceClaimTemplate, it is on that
    /// network too.
    pub networks: Vec<Network>,
    /// Addresses that can be published, each once and in the reported order. None of them is
    /// unspecified, loopback, multicast or IPv4-mapped.
    pub addresses: Vec<IpAddr>,
    /// Details of the device behind the interface. All values are valid in a slice.
    pub device: Device,
    /// The DRA device and its claim; `None` if the interface belongs to no claim.
    pub claimed: Option<ClaimedDevice>,
}

/// An interface or device of a pod on a network that has no address to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressless {
    /// The networks that the interface or device is on; see [`Attachment::networks`].
    pub networks: Vec<Network>,
    /// The DRA device and its claim; `None` if the interface belongs to no claim.
    pub claimed: Option<ClaimedDevice>,
    /// Reason why the interface or device has no address.
    pub reason: NoAddressReason,
}

/// A device of one of a pod's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// Name of the ResourceClaim, which is in the pod's namespace.
    pub claim: String,
    /// Identity of the device.
    pub id: DeviceId,
}

/// Reason why an interface or device has no address to publish. The variants are in ascending order
/// of their use to people; if several reasons apply, the last one is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoAddressReason {
    /// The DRA driver reports that the device carries RDMA only. It never has an address.
    RdmaOnly,
    /// The report contains no address that can be published.
    NoAddress,
    /// All addresses are link-local IPv6, which other pods cannot use.
    LinkLocal,
    /// The device was allocated with `adminAccess`: the pod only observes a device of another pod.
    Observer,
    /// The DRA driver has not reported network data yet.
    NotReported,
    /// The DRA driver reports that the device is not ready. Contains the condition and its message.
    NotReady(String),
}

/// Contents of a pod's annotations about its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Interfaces that the annotations report.
    pub interfaces: Interfaces,
    /// Networks that the pod requests, whether it is attached to them or not.
    pub requested: Vec<Network>,
    /// Annotations that cannot be read at all, one line each.
    pub unreadable: Vec<Unreadable>,
    /// Ignored parts of annotations, one line each: invalid entries and addresses, and those above
    /// a limit. The other parts are used.
    pub rejected: Vec<Unreadable>,
}

/// A pod, reduced to the fields that the controller needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name of the pod.
    pub key: ObjectKey,
    /// The pod's uid, which distinguishes pods of the same name.
    pub uid: String,
    /// Labels of the pod, by which services select it.
    pub labels: BTreeMap<String, String>,
    /// Creation time of the pod.
    pub created: Option<Timestamp>,
    /// Whether the phase is Failed or Succeeded. The addresses in the annotations are then no
    /// longer valid.
    pub terminal: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// Whether the pod's condition Ready is True.
    pub serving: bool,
    /// Time of the last transition of the pod's condition Ready.
    pub serving_changed: Option<Timestamp>,
    /// Host name that the pod requests in DNS: `spec.hostname`, if it is a DNS label.
    pub hostname: Option<String>,
    /// Name of the node that the pod is bound to; `None` before the pod is scheduled.
    pub node: Option<String>,
    /// Whether the pod uses its node's network. Such a pod has no secondary interfaces.
    pub host_network: bool,
    /// Whether the pod has a sandbox: `status.podIPs` is not empty. Without a sandbox, its
    /// annotations are left over from another pod, for example by a restore from a backup.
    pub has_sandbox: bool,
    /// Uid of the KubeVirt VirtualMachineInstance that controls the pod. The pods of a virtual
    /// machine hand their addresses over to each other during a live migration.
    pub machine: Option<String>,
    /// Contents of the annotations about the pod's interfaces.
    pub report: Report,
    /// ResourceClaims that the pod uses.
    pub claims: Vec<PodClaim>,
}

impl Pod {
    /// Returns whether reports about the pod's secondary interfaces can be true. A pod has none
    /// before it has a sandbox, after it has ended, or if it uses its node's network.
    pub fn has_networks(&self) -> bool {
        self.has_sandbox && !self.terminal && !self.host_network
    }

    /// Returns whether the pod is ready and not being deleted.
    pub fn is_ready(&self) -> bool {
        self.serving && !self.terminating
    }
}

/// A ResourceClaim that a pod uses, as the pod refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// Name of the ResourceClaim, which is in the pod's namespace.
    pub claim: String,
    /// Name of the ResourceClaimTemplate that the claim was made from; `None` if the pod names the
    /// claim itself.
    pub template: Option<String>,
}

/// Explanation of what cannot be read about a pod or claim, and where. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// A ResourceClaim, as far as it is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Namespace and name of the claim.
    pub key: ObjectKey,
    /// Uids of the pods that the claim is reserved for. Empty if the claim does not say.
    pub reserved_for: Vec<String>,
    /// Devices of the claim that have addresses.
    pub devices: Vec<ClaimDevice>,
    /// Devices of the claim that are allocated or reported, and have no addresses.
    pub addressless: Vec<AddresslessClaimDevice>,
    /// Description of the unreadable parts of the status, if any. The readable parts are in the
    /// other fields.
    pub unreadable: Option<Unreadable>,
}

/// A device of a claim, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice {
    /// Identity of the device.
    pub id: DeviceId,
    /// Name of the DeviceClass of the request that the device was allocated for.
    pub class: Option<String>,
    /// Addresses of the device; see [`Attachment::addresses`].
    pub addresses: Vec<IpAddr>,
    /// Interface and hardware address from the claim's status. Other details are in the
    /// ResourceSlice.
    pub device: Device,
}

/// A device of a claim that has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddresslessClaimDevice {
    /// Identity of the device.
    pub id: DeviceId,
    /// Name of the DeviceClass of the request that the device was allocated for.
    pub class: Option<String>,
    /// Reason why the device has no address.
    pub reason: NoAddressReason,
}

/// Identity of a DRA device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct DeviceId {
    /// Name of the DRA driver, such as `dra.net`.
    pub driver: String,
    /// Name of the pool. DRANET uses the node's name.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
}

/// A ResourceSlice: a driver's description of some or all devices of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// Name of the ResourceSlice, which has no namespace.
    pub key: ObjectKey,
    /// Name of the DRA driver.
    pub driver: String,
    /// Name of the pool that the devices belong to.
    pub pool: String,
    /// Generation of the pool. Only slices of the highest generation are current.
    pub generation: i64,
    /// Number of ResourceSlices in a complete generation of the pool.
    pub slice_count: usize,
    /// Details of network devices by the name of the device. Contains `interface`, `mac`,
    /// `rdma_device`, `pci_address` and `numa_node`, if they are valid in a slice. Devices without
    /// such details are left out.
    pub devices: BTreeMap<String, Device>,
}

/// A node, reduced to its topology zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the node, which has no namespace.
    pub key: ObjectKey,
    /// Value of the node's label `topology.kubernetes.io/zone`; `None` without that label.
    pub zone: Option<String>,
}

/// A core Service, which MultiNetworkServices may be mirrored to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreService {
    /// Namespace and name of the Service.
    pub key: ObjectKey,
    /// Reason why nothing may be mirrored to the Service: it has a selector, a cluster IP, or the
    /// type ExternalName.
    pub unusable: Option<&'static str>,
}

/// A pod that the service selects, with its interfaces on secondary networks from all sources.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The pod's interfaces.
    pub interfaces: &'a Interfaces,
}
