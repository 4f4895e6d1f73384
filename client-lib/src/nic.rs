//! Which local address a connection to a peer leaves from, and that it is not one of the default network (DESIGN.md,
//! client-lib).
//!
//! The kernel chooses: a UDP socket that is connected to the peer, over which nothing is sent, has the source address
//! of the route to it. This follows policy routing, metrics and preferred sources, and IPv6's rules of source selection
//! (RFC 6724), which a look at interfaces and netmasks does not.
//!
//! The *default network* is that of the cluster itself, in a pod, which traffic to other pods' second NICs must not take by
//! accident: the interface that has the default route, as a rule. See [`route_table`] for what else there is.
//!
//! Link-local addresses of IPv6 mean nothing without an interface, which DNS does not have: they are refused.

mod route_table;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{LinkAddr, SockaddrStorage, getsockopt, sockopt};

/// Port that the kernel is asked about: any will do, nothing is sent (discard, RFC 863).
const ANY_PORT: u16 = 9;

/// How this machine reaches a peer.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::route_to;
///
/// let route = route_to("192.168.111.5".parse()?)?;
/// if route.mtu.is_some_and(|mtu| mtu < 9000) {
///     println!("{} takes no jumbo frames to {}", route.interface, route.peer);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The peer.
    pub peer: IpAddr,
    /// The address that connections leave from.
    pub source: IpAddr,
    /// The interface that has it, such as `net1`.
    pub interface: String,
    /// The greatest packet that the route takes, in octets, as far as the kernel knows.
    pub mtu: Option<u32>,
    /// Whether the interface is that of the default network. The loopback interface never is.
    pub is_default_network: bool,
}

impl Route {
    /// The route itself, unless it is one of the default network.
    ///
    /// ```
    /// use multinet_client::nic::route_to;
    ///
    /// // The loopback interface is not the default network, and does for tests.
    /// let route = route_to("127.0.0.1".parse()?)?.on_second_nic()?;
    /// assert_eq!(route.interface, "lo");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RouteError::DefaultNetwork`].
    pub fn on_second_nic(self) -> Result<Self, RouteError> {
        match self.is_default_network {
            false => Ok(self),
            true => Err(RouteError::DefaultNetwork {
                peer: self.peer,
                interface: self.interface,
                source_address: self.source,
            }),
        }
    }
}

/// Why there is no way to a peer that may be taken.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{RouteError, route_to};
///
/// let route = route_to("192.168.111.5".parse()?).and_then(|route| route.on_second_nic());
/// if let Err(RouteError::DefaultNetwork { interface, .. }) = route {
///     println!("this pod has only {interface}: is the annotation for the second network missing?");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The kernel knows no way.
    #[error(
        "no route to {peer} ({source}): is this pod attached to the peer's network, and is its interface up? \
         `ip route get {peer}` says more"
    )]
    Unreachable {
        /// The peer.
        peer: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The way would be through the default network.
    #[error(
        "{peer} would be reached through {interface} ({source_address}), the default network: attach this pod to the \
         peer's network, or allow it with allow_default_network"
    )]
    DefaultNetwork {
        /// The peer.
        peer: IpAddr,
        /// Its interface.
        interface: String,
        /// The source address there.
        source_address: IpAddr,
    },
    /// A link-local address of IPv6.
    #[error(
        "{peer}: link-local addresses are not supported, for they do not say on which link they are: use another address \
         of the peer's second NIC, IPv4 or of fd00::/8"
    )]
    LinkLocal {
        /// The peer.
        peer: IpAddr,
    },
    /// The address that the kernel chose is no interface's: it was taken away just now.
    #[error("the way to {peer} is from {source_address}, which no interface has any more: try again")]
    Gone {
        /// The peer.
        peer: IpAddr,
        /// The source address.
        source_address: IpAddr,
    },
    /// The interfaces or routes of this machine cannot be read.
    #[error("cannot read this machine's interfaces: {0}")]
    Interfaces(#[source] io::Error),
}

/// An interface of this machine, in this network namespace.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::local_interfaces;
///
/// let down = local_interfaces()?.into_iter().filter(|interface| !interface.is_up);
/// down.for_each(|interface| println!("{} has no carrier", interface.name));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its name, such as `net1`.
    pub name: String,
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// Hardware address with colons, in lower case.
    pub mac: Option<String>,
    /// The greatest packet, in octets.
    pub mtu: Option<u32>,
    /// Whether it is up and has a carrier.
    pub is_up: bool,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// Whether it is that of the default network.
    pub is_default_network: bool,
}

/// An address of a second NIC.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::second_nics;
///
/// for local in second_nics()? {
///     println!("{} on {}", local.ip, local.interface);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The interface that has it.
    pub interface: String,
}

/// The way that the kernel would take to a peer now.
///
/// Nothing is sent. Whether the peer is there is another question.
///
/// ```no_run
/// # fn example() -> Result<(), multinet_client::nic::RouteError> {
/// use multinet_client::nic::route_to;
///
/// let route = route_to("192.168.100.7".parse().expect("an address"))?.on_second_nic()?;
/// println!("from {} on {}", route.source, route.interface);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`RouteError::Unreachable`] if there is no way, [`RouteError::LinkLocal`], and what reading the interfaces may give. A way through the default
/// network is none; see [`Route::on_second_nic`].
pub fn route_to(peer: IpAddr) -> Result<Route, RouteError> {
    if is_link_local_v6(peer) {
        return Err(RouteError::LinkLocal { peer });
    }
    let unreachable = |source| RouteError::Unreachable { peer, source };
    let socket = UdpSocket::bind(any_of(peer)).map_err(unreachable)?;
    socket.connect((peer, ANY_PORT)).map_err(unreachable)?;
    let source = socket.local_addr().map_err(unreachable)?.ip();

    let mut interfaces = local_interfaces().map_err(RouteError::Interfaces)?;
    let place = interfaces
        .iter()
        .position(|interface| interface.addresses.contains(&source))
        // All of 127.0.0.0/8 is the loopback interface's, which has but one of them.
        .or_else(|| interfaces.iter().position(|interface| interface.is_loopback && source.is_loopback()))
        .ok_or(RouteError::Gone { peer, source_address: source })?;
    let interface = interfaces.swap_remove(place);
    Ok(Route {
        peer,
        source,
        mtu: path_mtu(&socket).or(interface.mtu),
        interface: interface.name,
        is_default_network: interface.is_default_network,
    })
}

/// The interfaces of this network namespace, sorted by name.
///
/// ```
/// use multinet_client::nic::local_interfaces;
///
/// let interfaces = local_interfaces()?;
/// let default = interfaces.iter().find(|interface| interface.is_default_network);
/// assert!(default.is_none_or(|interface| interface.name != "lo"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the kernel does not tell (`getifaddrs`), or `/proc` is not there.
pub fn local_interfaces() -> io::Result<Vec<Interface>> {
    let default = default_interface()?;
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        // An address may have a label of its own, behind a colon.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let place = interfaces.iter().position(|interface| interface.name == name).unwrap_or_else(|| {
            interfaces.push(describe(name, entry.flags, default.as_deref()));
            interfaces.len() - 1
        });
        if let Some(address) = &entry.address {
            add_address(&mut interfaces[place], address);
        }
    }
    for interface in &mut interfaces {
        interface.addresses.sort_unstable();
    }
    interfaces.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(interfaces)
}

/// The addresses of second NICs, sorted by interface: all that are neither loopback, nor link-local, nor on the
/// interface of the default network. Where there is no default route, every other interface is a second NIC.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Listener;
/// use multinet_client::nic::second_nics;
///
/// // By IPv4 only.
/// let mut listener = Listener::builder();
/// for local in second_nics()?.into_iter().filter(|local| local.ip.is_ipv4()) {
///     listener = listener.address(local.ip);
/// }
/// let listener = listener.bind().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`local_interfaces`].
pub fn second_nics() -> io::Result<Vec<LocalAddress>> {
    Ok(second_of(local_interfaces()?))
}

/// The interface that has an address, unless it is the loopback interface.
pub(crate) fn interface_of(address: IpAddr) -> io::Result<Option<String>> {
    let all = local_interfaces()?;
    let has = all.into_iter().find(|interface| interface.addresses.contains(&address));
    Ok(has.filter(|interface| !interface.is_loopback).map(|interface| interface.name))
}

/// The addresses of second NICs, each with the network that it is on.
pub(crate) fn second_networks() -> io::Result<Vec<(LocalAddress, IpNet)>> {
    let network = |entry: InterfaceAddress| {
        let (address, mask) = (ip_of(&entry.address?)?, ip_of(&entry.netmask?)?);
        Some((address, IpNet::with_netmask(address, mask).ok()?))
    };
    let networks: HashMap<IpAddr, IpNet> =
        getifaddrs().map_err(io::Error::from)?.filter_map(network).collect();
    let second = second_nics()?.into_iter();
    Ok(second.filter_map(|local| networks.get(&local.ip).map(|network| (local, *network))).collect())
}

fn second_of(interfaces: Vec<Interface>) -> Vec<LocalAddress> {
    interfaces
        .into_iter()
        .filter(|interface| !(interface.is_loopback || interface.is_default_network))
        .flat_map(|Interface { name, addresses, .. }| {
            let usable = addresses.into_iter().filter(|ip| !(ip.is_loopback() || is_link_local(*ip)));
            usable.map(move |ip| LocalAddress { ip, interface: name.clone() })
        })
        .collect()
}

/// An unspecified address of the peer's family.
fn any_of(peer: IpAddr) -> SocketAddr {
    match peer {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The interface of the default network. `thread-self`, because network namespaces are a thread's.
fn default_interface() -> io::Result<Option<String>> {
    let v4 = fs::read_to_string("/proc/thread-self/net/route")?;
    let v6 = match fs::read_to_string("/proc/thread-self/net/ipv6_route") {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        outcome => outcome?,
    };
    Ok(route_table::default_interface(&v4, &v6).map(str::to_owned))
}

fn describe(name: &str, flags: InterfaceFlags, default: Option<&str>) -> Interface {
    let is_loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
    Interface {
        name: name.to_owned(),
        addresses: Vec::new(),
        mac: None,
        mtu: interface_mtu(name),
        is_up: flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
        is_loopback,
        is_default_network: !is_loopback && default == Some(name),
    }
}

fn add_address(interface: &mut Interface, address: &SockaddrStorage) {
    if let Some(ip) = ip_of(address) {
        interface.addresses.push(ip);
    } else if let Some(octets) = address.as_link_addr().and_then(LinkAddr::addr) {
        let octets: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        interface.mac = Some(octets.join(":"));
    }
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// The MTU of the route that a connected socket has, IPv6 included.
fn path_mtu(socket: &UdpSocket) -> Option<u32> {
    getsockopt(socket, sockopt::IpMtu).ok().and_then(|mtu| u32::try_from(mtu).ok())
}

fn interface_mtu(name: &str) -> Option<u32> {
    fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(_) => is_link_local_v6(ip),
    }
}

/// Whether an address needs an interface beside it, which IPv4's do not.
pub(crate) fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            mac: None,
            mtu: None,
            is_up: true,
            is_loopback: false,
            is_default_network: false,
        }
    }

    #[test]
    fn the_way_to_this_machine_is_the_loopback_interface() {
        for peer in ["127.0.0.1", "127.1.2.3"] {
            let route = route_to(ip(peer)).unwrap();
            assert!(route.source.is_loopback());
            assert!(!route.is_default_network);
            assert!(route.mtu.is_some_and(|mtu| mtu >= 1280), "{route:?}");
            assert_eq!(route.on_second_nic().unwrap().interface, "lo");
        }
    }

    #[test]
    fn what_has_no_route_names_the_peer() {
        // Sockets may not broadcast unless told to.
        let error = route_to(ip("255.255.255.255")).unwrap_err();
        assert!(error.to_string().starts_with("no route to 255.255.255.255 ("), "{error}");
        assert!(error.to_string().contains("ip route get 255.255.255.255"));
    }

    #[test]
    fn link_local_addresses_are_refused_with_what_to_use_instead() {
        let error = route_to(ip("fe80::5")).unwrap_err();
        assert!(matches!(error, RouteError::LinkLocal { peer } if peer == ip("fe80::5")));
        assert!(error.to_string().starts_with("fe80::5: link-local addresses are not supported"), "{error}");
        assert!(!error.to_string().contains("  "), "{error}");
    }

    #[test]
    fn the_default_network_is_refused_with_the_option_that_allows_it() {
        let route = Route {
            peer: ip("10.1.2.3"),
            source: ip("10.244.0.9"),
            interface: "eth0".to_owned(),
            mtu: None,
            is_default_network: true,
        };
        assert_eq!(
            route.on_second_nic().unwrap_err().to_string(),
            "10.1.2.3 would be reached through eth0 (10.244.0.9), the default network: attach this pod to the peer's \
             network, or allow it with allow_default_network"
        );
    }

    #[test]
    fn interfaces_are_sorted_and_complete() {
        let interfaces = local_interfaces().unwrap();
        assert!(interfaces.is_sorted_by(|a, b| a.name < b.name), "{interfaces:?}");
        let loopback = interfaces.iter().find(|interface| interface.is_loopback).unwrap();
        assert!(loopback.addresses.contains(&ip("127.0.0.1")), "{loopback:?}");
        assert!(!loopback.is_default_network && loopback.is_up);
        assert!(interfaces.iter().filter(|interface| interface.is_default_network).count() <= 1);
    }

    #[test]
    fn second_nics_are_all_but_loopback_link_local_and_the_default_network() {
        let found = second_of(vec![
            Interface { is_default_network: true, ..interface("eth0", &["10.244.0.9"]) },
            Interface { is_loopback: true, ..interface("lo", &["127.0.0.1", "10.9.9.9", "::1"]) },
            interface("net1", &["169.254.1.1", "192.168.1.5", "fe80::1", "fd00::5"]),
            interface("net2", &[]),
        ]);
        let found: Vec<_> = found.iter().map(|local| (local.ip, local.interface.as_str())).collect();
        assert_eq!(found, [(ip("192.168.1.5"), "net1"), (ip("fd00::5"), "net1")]);
        for local in second_nics().unwrap() {
            assert!(!local.ip.is_loopback() && local.interface != "lo");
        }
    }
}
