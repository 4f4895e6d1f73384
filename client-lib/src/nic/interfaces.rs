//! Network interfaces and their addresses, and which of them are second NICs.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{is_link_local, is_link_local_v6};

/// The name that container runtimes give to the interface of a pod's default network.
pub(super) const POD_INTERFACE: &str = "eth0";

/// How the names of interfaces begin that container runtimes and CNI plugins make on a node, for
/// itself and the pods' default network. Calico leaves out much the same ones where it looks for a
/// node's address.
const OF_THE_NODE: [&str; 16] = [
    "antrea-",
    "cali",
    "cbr",
    "cilium_",
    "cni",
    "docker",
    "flannel",
    "kube-ipvs",
    "lxcbr",
    "nerdctl",
    "nodelocaldns",
    "ovn-k8s-mp",
    "podman",
    "tunl",
    "virbr",
    "vxlan.calico",
];

/// An interface of this machine, in this network namespace.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{LinkState, local_interfaces};
///
/// let idle = local_interfaces()?.into_iter().filter(|interface| interface.link != LinkState::Up);
/// idle.for_each(|interface| println!("{} {}", interface.name, interface.link));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its name, such as `net1`.
    pub name: String,
    /// Its addresses, sorted.
    pub addresses: Vec<Address>,
    /// Hardware address with colons, in lower case.
    pub mac: Option<String>,
    /// The greatest packet, in octets.
    pub mtu: Option<u32>,
    /// Whether packets can leave.
    pub link: LinkState,
    /// The VRF that it is in, which has routes of its own.
    pub vrf: Option<String>,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// Whether it is that of the default network.
    pub is_default_network: bool,
    pub(super) index: u32,
    pub(super) kind: Kind,
}

/// An address of an interface.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{AddressState, local_interfaces};
///
/// for address in local_interfaces()?.iter().flat_map(|interface| &interface.addresses) {
///     if address.state == AddressState::Duplicate {
///         println!("another host has {}/{}, too", address.ip, address.prefix);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// How many of its first bits all addresses of its network have in common.
    pub prefix: u8,
    /// Whether it can be used.
    pub state: AddressState,
}

/// Whether an address can be used, by duplicate address detection (RFC 4862), which IPv6 has.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{AddressState, second_nics};
///
/// let is_settled = second_nics()?.iter().all(|local| local.state != AddressState::Tentative);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AddressState {
    /// It can.
    Usable,
    /// Not yet: the kernel asks whether another host has it.
    Tentative,
    /// It cannot: another host has it.
    Duplicate,
}

/// Whether packets can leave by an interface.
///
/// # Examples
///
/// ```
/// use multinet_client::nic::LinkState;
///
/// assert_eq!(format!("net1 {}", LinkState::NoCarrier), "net1 has no carrier");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// They can.
    Up,
    /// It is not set up.
    Down,
    /// There is nothing at the other end of the cable, or it is not set up.
    NoCarrier,
}

/// Kind of an interface, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bridge,
    Dummy,
    Vrf,
    Other,
}

impl Interface {
    /// Whether it leads to another network than the default one, or would if it were up. Those do
    /// not that container runtimes and CNI plugins make on a node, such as `docker0` and
    /// `kube-ipvs0`.
    ///
    /// ```
    /// use multinet_client::nic::local_interfaces;
    ///
    /// let lo = local_interfaces()?.into_iter().find(|interface| interface.is_loopback);
    /// assert!(lo.is_none_or(|lo| !lo.is_second_nic()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_second_nic(&self) -> bool {
        let is_idle_bridge = self.kind == Kind::Bridge && self.link != LinkState::Up;
        !(self.is_loopback
            || self.is_default_network
            || self.kind == Kind::Vrf
            || is_idle_bridge
            || OF_THE_NODE.iter().any(|prefix| self.name.starts_with(prefix)))
    }

    /// Whether it is the pod's own interface on the default network. One that is a part of a bond
    /// has no address.
    pub(super) fn is_of_the_pod(&self) -> bool {
        self.name == POD_INTERFACE && self.addresses.iter().any(|address| !is_link_local_v6(address.ip))
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }

    /// Addresses that are of no network: of the loopback interface, and single ones of dummy
    /// interfaces.
    pub(super) fn virtual_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| self.is_virtual(address))
    }

    pub(super) fn is_virtual(&self, address: &Address) -> bool {
        let is_single = address.prefix == if address.ip.is_ipv4() { 32 } else { 128 };
        let may = self.is_loopback || (self.kind == Kind::Dummy && is_single);
        may && !address.ip.is_loopback() && !is_link_local(address.ip)
    }

    pub(super) fn v4(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| address.ip.is_ipv4())
    }
}

impl Address {
    /// The network that it is of.
    pub(super) fn network(&self) -> Option<IpNet> {
        IpNet::new(self.ip, self.prefix).ok()
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "is up",
            Self::Down => "is down",
            Self::NoCarrier => "has no carrier",
        })
    }
}
