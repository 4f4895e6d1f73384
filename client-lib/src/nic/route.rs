//! The route that a connection to a peer takes, and sockets that take it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use multinet_rails::nic::lookup::RouteLookup;
use multinet_rails::nic::{
    Interface, LinkState, POD_INTERFACE, is_link_local, is_link_local_v6, local_interfaces,
};
use nix::errno::Errno;
use socket2::SockRef;
use tokio::net::{TcpSocket, UdpSocket};

use super::binding::Binding;
use super::candidate_route::CandidateRoute;
use crate::endpoint::EndpointAddress;

/// Route from this machine to a peer.
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
    /// IP address of the peer.
    pub peer: IpAddr,
    /// Source address of connections that take the route.
    pub source: IpAddr,
    /// Outgoing interface, such as `net1`. If the peer is this machine itself, the interface that
    /// has the peer's address.
    pub interface: String,
    /// Largest packet that the route takes, in bytes, if the kernel knows it.
    pub mtu: Option<u32>,
    /// Whether the interface is that of the default network. The loopback interface never is.
    pub is_default_network: bool,
    /// Second NIC that would lead to the peer if it were up, such as `net1 is down`.
    down: Option<String>,
    is_default_route: bool,
    /// VRF that sockets must be bound to. `None` for the main table.
    vrf: Option<String>,
    binding: Binding,
    is_bound: bool,
}

/// Reason why no route to a peer may be taken.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{RouteError, route_to};
///
/// let route = route_to("192.168.111.5".parse()?).and_then(|route| route.on_second_nic());
/// if let Err(RouteError::DefaultNetwork { interface, .. }) = route {
///     println!("only {interface} leads there: is the second network's annotation missing?");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The kernel has no route to the peer.
    #[error("no route to {peer} ({source}): {}", no_route(*peer, source, down.as_deref()))]
    Unreachable {
        /// IP address of the peer.
        peer: IpAddr,
        /// Error of the kernel.
        source: io::Error,
        /// The second NIC that would lead there if it were up, such as `net1 is down`.
        down: Option<String>,
    },
    /// The route to the peer leads through the default network, which is not allowed.
    #[error(
        "{peer} would be reached through {interface} ({source_address}), the default network{}, or allow it with allow_default_network",
        instead(down.as_deref())
    )]
    DefaultNetwork {
        /// IP address of the peer.
        peer: IpAddr,
        /// Interface of the default network.
        interface: String,
        /// Source address that connections would have on the default network.
        source_address: IpAddr,
        /// The second NIC that would lead there if it were up, such as `net1 is down`.
        down: Option<String>,
    },
    /// The peer's address is an IPv6 link-local one.
    #[error(
        "{peer}: link-local addresses are not supported, for they do not say on which link they are: use another address \
         of the peer's second NIC, IPv4 or of fd00::/8"
    )]
    LinkLocal {
        /// IP address of the peer.
        peer: IpAddr,
    },
    /// The interface that leads to the peer was removed during the lookup.
    #[error("the interface that leads to {peer} has just been removed: try again")]
    Gone {
        /// IP address of the peer.
        peer: IpAddr,
    },
    /// The kernel failed to list this machine's interfaces.
    #[error("cannot read this machine's interfaces: {0}")]
    Interfaces(#[source] io::Error),
}

/// Returns the route that a connection to a peer takes now.
///
/// Of the routes that the kernel knows for the peer, for packets from the address of each second
/// NIC, and in the VRF of each, the most specific one by a second NIC is taken. If none is by a
/// second NIC, the route of the default network is returned.
///
/// Sends nothing, and does not tell whether the peer is there.
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
/// [`RouteError::Unreachable`] without a route, [`RouteError::LinkLocal`], [`RouteError::Gone`] and
/// [`RouteError::Interfaces`]. A route by the default network is no error; [`Route::on_second_nic`]
/// refuses it.
pub fn route_to(peer: IpAddr) -> Result<Route, RouteError> {
    if is_link_local_v6(peer) {
        return Err(RouteError::LinkLocal { peer });
    }
    let interfaces = local_interfaces().map_err(RouteError::Interfaces)?;
    match CandidateRoute::choose(peer, &interfaces) {
        Ok(candidate) => Route::by(peer, candidate, &interfaces),
        Err(source) => Err(RouteError::Unreachable { peer, source, down: down(peer, &interfaces) }),
    }
}

/// Returns the route that packets from one address of this machine take to a peer.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{route_from, second_nics};
///
/// // Two NICs in one subnet: one of them sends for both.
/// for local in second_nics()? {
///     let route = route_from(local.ip, "192.168.111.5".parse()?)?;
///     println!("from {} by {}", local.ip, route.interface);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`route_to`].
pub fn route_from(source: IpAddr, peer: IpAddr) -> Result<Route, RouteError> {
    let interfaces = local_interfaces().map_err(RouteError::Interfaces)?;
    let found = CandidateRoute::find(RouteLookup { from: Some(source), ..RouteLookup::plain(peer) });
    let found = found.map_err(|source| RouteError::Unreachable { peer, source, down: None })?;
    Route::by(peer, found, &interfaces)
}

impl Route {
    fn by(
        peer: IpAddr,
        CandidateRoute { route, entry, vrf }: CandidateRoute,
        interfaces: &[Interface],
    ) -> Result<Self, RouteError> {
        let gone = || RouteError::Gone { peer };
        let by_index = |index| interfaces.iter().find(|its| its.index == index);
        let own = || interfaces.iter().find(|its| its.has(peer));
        let by = if route.is_local {
            own().or_else(|| by_index(route.interface))
        } else {
            by_index(route.interface)
        };
        let by = by.ok_or_else(gone)?;
        let source = route.source.or_else(|| route.is_local.then_some(peer)).ok_or_else(gone)?;
        Ok(Self {
            peer,
            source,
            interface: by.name.clone(),
            mtu: route.mtu.or_else(|| by_index(route.interface).and_then(|its| its.mtu)),
            is_default_network: by.is_default_network,
            down: if by.is_default_network { down(peer, interfaces) } else { None },
            is_default_route: entry.prefix == 0,
            vrf: vrf.and_then(by_index).map(|vrf| vrf.name.clone()),
            binding: if route.is_local {
                Binding::Unrestricted
            } else {
                Binding::of(source, &entry, interfaces)
            },
            is_bound: false,
        })
    }

    /// Returns the route, unless it leads through the default network. Sockets that take it stay
    /// off the default network even if the second NIC goes down.
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
            false => Ok(Self { is_bound: true, ..self }),
            true => Err(RouteError::DefaultNetwork {
                peer: self.peer,
                interface: self.interface,
                source_address: self.source,
                down: self.down,
            }),
        }
    }

    /// Returns the route as [`on_second_nic`](Self::on_second_nic) does, and also a route by the
    /// default network if DNS puts the peer's address on that network.
    ///
    /// That is so if the address belongs to a network of the service, and either is on the peer's
    /// `eth0` or has a route on this machine that is not the default route.
    ///
    /// ```no_run
    /// # use multinet_client::Endpoint;
    /// # fn example(endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::nic::route_to;
    ///
    /// for address in &endpoint.addresses {
    ///     let route = route_to(address.ip)?.on_network_of(address)?;
    ///     println!("{} from {}", address.ip, route.source);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RouteError::DefaultNetwork`].
    pub fn on_network_of(self, address: &EndpointAddress) -> Result<Self, RouteError> {
        let theirs = address.interface.as_deref();
        // The address of a peer's second NIC is never on the default network. Nor is it while this
        // machine's NIC on the peer's network is down: a wide route through `eth0` then matches by
        // accident.
        let is_routed = !self.is_default_route
            && self.down.is_none()
            && theirs.is_none_or(|interface| interface == self.interface);
        let is_primary = theirs == Some(POD_INTERFACE) || is_routed;
        if self.is_default_network && address.network.is_some() && is_primary {
            return Ok(self);
        }
        self.on_second_nic()
    }

    /// Returns a TCP socket whose connection takes this route.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::nic::route_to;
    ///
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let route = route_to("127.0.0.1".parse()?)?;
    /// let stream = route.tcp_socket()?.connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.local_addr()?.ip(), route.source);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The kernel's error, if the source address or the interface has gone.
    pub fn tcp_socket(&self) -> io::Result<TcpSocket> {
        let socket = if self.source.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        self.take(&SockRef::from(&socket))?;
        Ok(socket)
    }

    /// Returns a UDP socket whose datagrams take this route.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::nic::route_to;
    ///
    /// let socket = route_to("127.0.0.1".parse()?)?.udp_socket()?;
    /// socket.connect("127.0.0.1:9").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`tcp_socket`](Self::tcp_socket).
    pub fn udp_socket(&self) -> io::Result<UdpSocket> {
        let domain = socket2::Domain::for_address(SocketAddr::new(self.source, 0));
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        self.take(&SockRef::from(&socket))?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket.into())
    }

    /// Binds a socket to this route. It binds the source address, too: without that, a change of
    /// routes before the connection is made would change the source.
    fn take(&self, socket: &SockRef<'_>) -> io::Result<()> {
        match &self.vrf {
            Some(vrf) => socket.bind_device(Some(vrf.as_bytes()))?,
            None if self.is_bound => self.binding.apply(socket)?,
            None => {}
        }
        socket.bind(&SocketAddr::new(self.source, 0).into())
    }
}

/// Returns the second NIC that cannot send, with its state: the one on the peer's network, or, if
/// no second NIC is up, any that has an address.
fn down(peer: IpAddr, interfaces: &[Interface]) -> Option<String> {
    let idle = || interfaces.iter().filter(|its| its.is_second_nic() && its.link != LinkState::Up);
    let is_there = |its: &&Interface| {
        its.addresses.iter().any(|its| its.network().is_some_and(|network| network.contains(&peer)))
    };
    let is_idle = !interfaces.iter().any(|its| its.is_second_nic() && its.link == LinkState::Up);
    // Kernels create NICs without addresses in every namespace, such as tunl0: those do not count.
    let is_wanted =
        |its: &&Interface| is_idle && its.addresses.iter().any(|address| !is_link_local(address.ip));
    let found = idle().find(is_there).or_else(|| idle().find(is_wanted));
    found.map(|its| format!("{} {}", its.name, its.link))
}

fn no_route(peer: IpAddr, error: &io::Error, down: Option<&str>) -> String {
    let code = error.raw_os_error().map(Errno::from_raw);
    match (down, code) {
        (Some(down), _) => format!("{down}, bring it up"),
        (None, Some(Errno::EACCES | Errno::EINVAL | Errno::EHOSTUNREACH)) => format!(
            "a route or rule of this pod forbids it (prohibit, blackhole, unreachable), or it is no host's address; `ip rule` and \
             `ip route get {peer}` say more"
        ),
        (None, _) => format!(
            "is this pod attached to the peer's network, and is its interface up? `ip route get {peer}` says more"
        ),
    }
}

fn instead(down: Option<&str>) -> String {
    match down {
        Some(down) => format!(", since {down}: bring it up"),
        None => ": attach this pod to the peer's network".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use multinet_rails::nic::lookup::{FibEntry, KernelRoute};

    use super::super::samples::{changed, interface, ip};
    use super::*;

    #[test]
    fn the_route_to_this_machine_is_by_the_loopback_interface() {
        for peer in ["127.0.0.1", "127.1.2.3"] {
            let route = route_to(ip(peer)).unwrap();
            assert!(route.source.is_loopback());
            assert!(!route.is_default_network);
            assert!(route.mtu.is_some_and(|mtu| mtu >= 1280), "{route:?}");
            assert_eq!(route.on_second_nic().unwrap().interface, "lo");
        }
    }

    #[test]
    fn an_address_without_a_route_is_an_error_that_names_it() {
        let error = route_to(ip("255.255.255.255")).unwrap_err();
        assert!(error.to_string().starts_with("no route to 255.255.255.255 ("), "{error}");
        assert!(error.to_string().contains("ip route get 255.255.255.255"), "{error}");
    }

    #[test]
    fn link_local_addresses_are_refused_with_what_to_use_instead() {
        let error = route_to(ip("fe80::5")).unwrap_err();
        assert!(matches!(error, RouteError::LinkLocal { peer } if peer == ip("fe80::5")));
        assert!(error.to_string().starts_with("fe80::5: link-local addresses are not supported"), "{error}");
        assert!(!error.to_string().contains("  "), "{error}");
    }

    /// Route through `eth0`, beside a NIC on the peer's network.
    fn by_default_network(link: LinkState, prefix: u8) -> Route {
        let eth0 = interface("eth0", 2, &["10.244.0.9/24"]);
        let net1 = changed(interface("net1", 3, &["10.1.2.5/24"]), |its| its.link = link);
        let route = KernelRoute { is_local: false, interface: 2, source: Some(ip("10.244.0.9")), mtu: None };
        let entry = FibEntry { prefix, is_on_link: false, interfaces: vec![2] };
        Route::by(ip("10.1.2.3"), CandidateRoute { route, entry, vrf: None }, &[eth0, net1]).unwrap()
    }

    #[test]
    fn the_default_network_is_refused_with_what_to_do() {
        let refused = "10.1.2.3 would be reached through eth0 (10.244.0.9), the default network";
        let allow = "or allow it with allow_default_network";
        let cases = [
            (LinkState::Up, ": attach this pod to the peer's network, "),
            (LinkState::Down, ", since net1 is down: bring it up, "),
            (LinkState::NoCarrier, ", since net1 has no carrier: bring it up, "),
        ];
        for (link, reason) in cases {
            let error = by_default_network(link, 0).on_second_nic().unwrap_err();
            assert_eq!(error.to_string(), format!("{refused}{reason}{allow}"));
        }
    }

    #[test]
    fn the_default_network_is_allowed_where_the_service_names_it() {
        // Prefix length of the route; network alias and interface of the address, as DNS has them.
        let cases = [
            (0, None, None, false),
            (16, None, Some("eth0"), false),
            (0, Some("rail0"), None, false),
            (0, Some("rail0"), Some("net1"), false),
            (0, Some("rail0"), Some("eth0"), true),
            (16, Some("rail0"), None, true),
            (16, Some("rail0"), Some("net1"), false),
        ];
        for (prefix, network, interface, expected) in cases {
            let mut address = EndpointAddress::new(ip("10.1.2.3"));
            address.network = network.map(str::to_owned);
            address.interface = interface.map(str::to_owned);
            let outcome = by_default_network(LinkState::Up, prefix).on_network_of(&address);
            assert_eq!(outcome.is_ok(), expected, "{prefix} {network:?} {interface:?}");
        }
    }
}
