//! Network interfaces and their addresses, and which of them are second NICs.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{is_link_local, is_link_local_v6};

/// Name that container runtimes give to the pod's interface on the default network.
#[doc(hidden)]
pub const POD_INTERFACE: &str = "eth0";

/// Prefixes of the names of interfaces that container runtimes and CNI plugins create on a node,
/// for the node itself and for pods' default network. Calico leaves out nearly the same ones when
/// it detects a node's address.
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

/// Interface in the network namespace of this process.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::nic::{LinkState, local_interfaces};
///
/// let idle = local_interfaces()?.into_iter().filter(|interface| interface.link != LinkState::Up);
/// idle.for_each(|interface| println!("{} {}", interface.name, interface.link));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Name of the interface, such as `net1`.
    pub name: String,
    /// Addresses of the interface, sorted.
    pub addresses: Vec<Address>,
    /// Hardware address with colons, in lower case. `None` if the interface has none.
    pub mac: Option<String>,
    /// Largest packet that the interface sends (MTU), in bytes. `None` if the kernel does not tell
    /// it.
    pub mtu: Option<u32>,
    /// Whether packets can leave by the interface.
    pub link: LinkState,
    /// VRF of which the interface is a part. A VRF has routes of its own.
    pub vrf: Option<String>,
    /// Whether the interface is the loopback interface.
    pub is_loopback: bool,
    /// Whether the interface belongs to the cluster's default network.
    pub is_default_network: bool,
    /// Index of the interface in its network namespace.
    pub index: u32,
    /// Kind of the interface, as `ip -details link` names it, such as `macvlan`. `None` for
    /// hardware.
    pub kind: Option<String>,
}

/// Address of an interface.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::nic::{AddressState, local_interfaces};
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
    /// IP address of the interface.
    pub ip: IpAddr,
    /// Prefix length of the address's network, in bits.
    pub prefix: u8,
    /// Whether the address can be used.
    pub state: AddressState,
}

/// State of an address in duplicate address detection (RFC 4862), which IPv6 has.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::nic::{AddressState, second_nics};
///
/// let is_settled = second_nics()?.iter().all(|local| local.state != AddressState::Tentative);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AddressState {
    /// The address can be used.
    Usable,
    /// It cannot be used yet: the kernel asks whether another host has it.
    Tentative,
    /// The address cannot be used: another host has it.
    Duplicate,
}

/// Whether packets can leave by an interface.
///
/// # Examples
///
/// ```
/// use multinet_rails::nic::LinkState;
///
/// assert_eq!(format!("net1 {}", LinkState::NoCarrier), "net1 has no carrier");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// Packets can leave: the interface is up, and has a carrier.
    Up,
    /// The interface is set down, so no packets can leave.
    Down,
    /// The interface is up, and nothing is at the other end: no cable, or a peer that is down.
    NoCarrier,
}

impl Interface {
    /// Returns an interface that is up and has no addresses, to describe a pod without the kernel.
    ///
    /// ```
    /// use multinet_rails::nic::{Address, Interface};
    ///
    /// let mut net1 = Interface::new("net1", 3);
    /// net1.addresses.push(Address::new("192.168.111.5/24".parse()?));
    /// assert!(net1.is_second_nic());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(name: &str, index: u32) -> Self {
        Self {
            name: name.to_owned(),
            addresses: Vec::new(),
            mac: None,
            mtu: None,
            link: LinkState::Up,
            vrf: None,
            is_loopback: name == "lo",
            is_default_network: name == POD_INTERFACE,
            index,
            kind: None,
        }
    }

    /// Returns whether the interface leads to another network than the default one, or would if it
    /// were up. Interfaces that container runtimes and CNI plugins create on a node, such as
    /// `docker0` and `kube-ipvs0`, do not count.
    ///
    /// ```
    /// use multinet_rails::nic::local_interfaces;
    ///
    /// let lo = local_interfaces()?.into_iter().find(|interface| interface.is_loopback);
    /// assert!(lo.is_none_or(|lo| !lo.is_second_nic()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_second_nic(&self) -> bool {
        let is_idle_bridge = self.is_of_kind("bridge") && self.link != LinkState::Up;
        !(self.is_loopback
            || self.is_default_network
            || self.is_of_kind("vrf")
            || is_idle_bridge
            || OF_THE_NODE.iter().any(|prefix| self.name.starts_with(prefix)))
    }

    /// Returns whether it is the pod's own interface on the default network. An `eth0` without an
    /// address is a port of a bond or bridge.
    pub(super) fn is_of_the_pod(&self) -> bool {
        self.name == POD_INTERFACE && self.addresses.iter().any(|address| !is_link_local_v6(address.ip))
    }

    /// Returns whether the interface has an address.
    #[doc(hidden)]
    pub fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }

    /// Returns the addresses that belong to no network: those of the loopback interface, and single
    /// ones (/32, /128) of dummy interfaces.
    #[doc(hidden)]
    pub fn virtual_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| self.is_virtual(address))
    }

    fn is_of_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    pub(super) fn is_virtual(&self, address: &Address) -> bool {
        let is_single = address.prefix == if address.ip.is_ipv4() { 32 } else { 128 };
        let may = self.is_loopback || (self.is_of_kind("dummy") && is_single);
        may && !address.ip.is_loopback() && !is_link_local(address.ip)
    }

    pub(super) fn v4(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(|address| address.ip.is_ipv4())
    }
}

impl Address {
    /// Returns an address that can be used.
    ///
    /// ```
    /// use multinet_rails::nic::{Address, AddressState};
    ///
    /// let address = Address::new("192.168.111.5/24".parse()?);
    /// assert_eq!((address.prefix, address.state), (24, AddressState::Usable));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(network: IpNet) -> Self {
        Self { ip: network.addr(), prefix: network.prefix_len(), state: AddressState::Usable }
    }

    /// Returns the address with its prefix length. `None` if the prefix length is invalid.
    #[doc(hidden)]
    pub fn network(&self) -> Option<IpNet> {
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
