//! Reasons why a selected pod lacks addresses on a network, with remedies.

use multinet_crds::{IpFamily, NetworkKind};

use crate::model::{Addressless, ClaimedDevice, Member, Network, NoAddressReason};

/// Maximum number of devices of a pod that a message names.
const DEVICES: usize = 4;

/// Reason why a selected pod has no address on a network, or fewer than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Missing {
    /// The pod uses its node's network.
    HostNetwork,
    /// The pod is not bound to a node yet.
    NotScheduled,
    /// The pod has no sandbox yet.
    NoSandbox,
    /// An annotation of the pod cannot be read.
    Unreadable,
    /// The pod does not request the network.
    NotRequested(NetworkKind),
    /// The pod requests the network, but was not attached to it.
    NotAttached,
    /// All addresses of the pod are of a family that the service does not publish.
    OtherFamily,
    /// The pod is attached to the network without an address.
    NoAddress,
    /// All addresses of the pod on the network are link-local.
    LinkLocal,
    /// The DRA driver of the pod's device has not reported an address.
    NotReported,
    /// The pod's device carries RDMA only.
    RdmaOnly,
    /// The pod's device is not ready.
    DeviceNotReady,
    /// The pod only observes a device of another pod (`adminAccess`).
    Observer,
    /// The pod shares a claim with another pod, which holds the address.
    SharedClaim,
    /// Another pod of the namespace holds the pod's address.
    Taken,
    /// A limit leaves out all addresses of the pod.
    Capped,
    /// Some devices of the pod have no address; others have one.
    Partly,
    /// The pod has addresses, but none of this family, unlike other pods.
    Family(IpFamily),
}

impl Missing {
    /// Returns the description of the problem, which follows "2 of 9 pods" in a message.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::HostNetwork => "use their node's network (hostNetwork)",
            Self::NotScheduled => "are not scheduled yet",
            Self::NoSandbox => "wait for their network (they have no IP address at all yet)",
            Self::Unreadable => "have an annotation that cannot be read",
            Self::NotRequested(NetworkKind::NetworkAttachmentDefinition) => "are not attached",
            Self::NotRequested(_) => "have no device of it",
            Self::NotAttached => "ask for the network and were not attached",
            Self::OtherFamily => "have addresses of the other family only",
            Self::NoAddress => "are attached without an address",
            Self::LinkLocal => "have a link-local address only",
            Self::NotReported => "have a device whose driver has reported no address",
            Self::RdmaOnly => "have a device that carries RDMA only",
            Self::DeviceNotReady => "have a device that is not ready",
            Self::Observer => "only observe a device (adminAccess)",
            Self::SharedClaim => "share a ResourceClaim, and so the address, with another pod",
            Self::Taken => "have an address that another pod has, too",
            Self::Capped => "have addresses beyond a limit only",
            Self::Partly => "have an address, but not on all of their devices",
            Self::Family(IpFamily::Ipv4) => "have no IPv4 address, unlike others",
            Self::Family(IpFamily::Ipv6) => "have no IPv6 address, unlike others",
        }
    }

    /// Returns advice to the user: how the pods get the missing addresses.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::HostNetwork => "remove hostNetwork from the pod",
            Self::NotScheduled | Self::NoSandbox => "if that lasts, see the pod's events",
            Self::Unreadable => "see the pod's events",
            Self::NotRequested(NetworkKind::NetworkAttachmentDefinition) => {
                "name the network in annotation k8s.v1.cni.cncf.io/networks of the pod"
            }
            Self::NotRequested(NetworkKind::DeviceClass) => {
                "request a device of that class in a resource claim of the pod"
            }
            Self::NotRequested(NetworkKind::ResourceClaimTemplate) => {
                "name the template in spec.resourceClaims of the pod"
            }
            Self::NotAttached => "see the pod's events and the CNI's log; a new pod is attached anew",
            Self::OtherFamily => "add the family to spec.ipFamilies, or have such addresses assigned",
            Self::NoAddress => {
                "have IPAM assign one; an address that only the guest of a virtual machine knows is not reported"
            }
            Self::LinkLocal => "have IPAM assign an address that other nodes can reach",
            Self::NotReported | Self::Partly => "see status.devices of the claim and the driver's log",
            Self::RdmaOnly => "publish a device that has an address",
            Self::DeviceNotReady => "see the driver's log",
            Self::Observer => "request a device without adminAccess",
            Self::SharedClaim => "give each pod a claim of its own, by resourceClaimTemplateName",
            Self::Taken => "see condition AddressConflict",
            Self::Capped => "see condition Capped",
            Self::Family(_) => "have IPAM assign one of each family to every pod",
        }
    }
}

/// Returns the reason why a pod has no address on a network, or not on all of its devices, with a
/// detail for the message. `is_other_family` tells whether the pod has addresses on the network in
/// a family that the service does not publish.
pub(crate) fn missing_reason(
    member: Member<'_>,
    network: &Network,
    is_published: bool,
    is_other_family: bool,
) -> Option<(Missing, Option<String>)> {
    let (pod, interfaces) = (member.pod, member.interfaces);
    let addressless: Vec<&Addressless> =
        interfaces.addressless.iter().filter(|addressless| addressless.networks.contains(network)).collect();
    if is_published {
        return partly(member, network, &addressless);
    }
    let reason = if pod.host_network {
        Missing::HostNetwork
    } else if !pod.has_sandbox {
        if pod.node.is_none() { Missing::NotScheduled } else { Missing::NoSandbox }
    } else if is_other_family {
        Missing::OtherFamily
    } else if let Some(worst) = addressless.iter().max_by_key(|addressless| &addressless.reason) {
        return Some((Missing::of(&worst.reason), detail(worst)));
    } else if !pod.report.unreadable.is_empty() {
        Missing::Unreadable
    } else if pod.report.requested.contains(network) {
        Missing::NotAttached
    } else {
        Missing::NotRequested(network.kind)
    };
    Some((reason, None))
}

/// Returns [`Missing::Partly`] if some of the pod's devices on the network have no address. Only
/// devices of a claim and driver that also provide an address count: devices of other drivers, such
/// as GPUs, may never have one.
fn partly(
    member: Member<'_>,
    network: &Network,
    addressless: &[&Addressless],
) -> Option<(Missing, Option<String>)> {
    let attachments =
        member.interfaces.attachments.iter().filter(|attachment| attachment.networks.contains(network));
    let siblings: Vec<&ClaimedDevice> =
        attachments.filter_map(|attachment| attachment.claimed.as_ref()).collect();
    let is_sibling = |device: &ClaimedDevice| {
        siblings.iter().any(|known| known.claim == device.claim && known.id.driver == device.id.driver)
    };
    let has_no_address = |addressless: &&&Addressless| {
        matches!(
            addressless.reason,
            NoAddressReason::NotReported | NoAddressReason::NotReady(_) | NoAddressReason::NoAddress
        )
    };
    let devices =
        addressless.iter().filter(has_no_address).filter_map(|addressless| addressless.claimed.as_ref());
    let devices = devices.filter(|device| is_sibling(device));
    let names: Vec<&str> = devices.map(|device| device.id.device.as_str()).collect();
    let some = names.iter().take(DEVICES).copied().collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| {
        let more = names.len().saturating_sub(DEVICES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (Missing::Partly, Some(format!("no address on {some}{more}")))
    })
}

fn detail(addressless: &Addressless) -> Option<String> {
    let device = addressless.claimed.as_ref()?;
    let about = format!("device {} of claim {}", device.id.device, device.claim);
    Some(match &addressless.reason {
        NoAddressReason::NotReady(condition) => format!("{about}: {condition}"),
        _ => about,
    })
}

impl Missing {
    fn of(reason: &NoAddressReason) -> Self {
        match reason {
            NoAddressReason::NoAddress => Self::NoAddress,
            NoAddressReason::LinkLocal => Self::LinkLocal,
            NoAddressReason::NotReported => Self::NotReported,
            NoAddressReason::RdmaOnly => Self::RdmaOnly,
            NoAddressReason::NotReady(_) => Self::DeviceNotReady,
            NoAddressReason::Observer => Self::Observer,
        }
    }
}
