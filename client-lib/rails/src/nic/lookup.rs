//! Route lookups: the kernel's route for a packet, without sending it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::netlink;

/// Addresses that no network has, so that only default routes lead to them: from IPv4's class E,
/// and from IPv6's documentation prefix (RFC 9637).
const NOWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1))];

/// Lookup of the route that the kernel takes for one packet.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct RouteLookup {
    pub peer: IpAddr,
    /// Source address of the packet. `None` lets the kernel choose one.
    pub from: Option<IpAddr>,
    /// Index of the VRF that the packet's socket is bound to. `None` for the main table.
    pub vrf: Option<u32>,
}

/// Route that the kernel takes for a packet.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Whether the packet's destination is this machine itself.
    pub is_local: bool,
    pub interface: u32,
    pub source: Option<IpAddr>,
    /// MTU of the route, or of the path as the kernel has learnt it.
    pub mtu: Option<u32>,
}

/// Entry of the routing table that a packet matches.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FibEntry {
    /// Prefix length of the entry's destination, in bits; 0 for a default route.
    pub prefix: u8,
    /// Whether the destination is on the link itself. Always false for IPv6, of which the kernel
    /// does not tell it.
    pub is_on_link: bool,
    /// Indices of the outgoing interfaces; more than one for a multipath route.
    pub interfaces: Vec<u32>,
}

impl RouteLookup {
    #[doc(hidden)]
    pub fn plain(peer: IpAddr) -> Self {
        Self { peer, from: None, vrf: None }
    }

    /// Returns the route that the kernel takes for the packet.
    #[doc(hidden)]
    pub fn route(self) -> io::Result<KernelRoute> {
        let route = self.ask(RouteFlags::empty())?;
        let mut found = KernelRoute {
            is_local: route.header.kind == RouteType::Local,
            interface: 0,
            source: self.from,
            mtu: None,
        };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => found.interface = *index,
                RouteAttribute::Metrics(metrics) => found.mtu = mtu(metrics),
                _ => found.source = found.source.or_else(|| source(attribute)),
            }
        }
        Ok(found)
    }

    /// Returns the entry of the routing table that the packet matches.
    #[doc(hidden)]
    pub fn fib_entry(self) -> io::Result<FibEntry> {
        let route = self.ask(RouteFlags::FibMatch)?;
        Ok(FibEntry {
            prefix: route.header.destination_prefix_length,
            is_on_link: matches!(route.header.scope, RouteScope::Link | RouteScope::Host),
            interfaces: interfaces(&route),
        })
    }

    fn ask(self, flags: RouteFlags) -> io::Result<RouteMessage> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(self.peer);
        message.header.destination_prefix_length = bits(self.peer);
        message.header.flags = flags;
        message.attributes.push(RouteAttribute::Destination(self.peer.into()));
        if let Some(from) = self.from {
            message.header.source_prefix_length = bits(from);
            message.attributes.push(RouteAttribute::Source(from.into()));
        }
        message.attributes.extend(self.vrf.map(RouteAttribute::Oif));
        let answer = netlink::get(RouteNetlinkMessage::GetRoute(message))?;
        let RouteNetlinkMessage::NewRoute(route) = answer else {
            return Err(io::Error::other("the kernel's reply is not a route"));
        };
        // The kernel refuses IPv4 by an error, and IPv6 by a route of a special type.
        match route.header.kind {
            RouteType::Unicast | RouteType::Local => Ok(route),
            RouteType::Unreachable => Err(Errno::EHOSTUNREACH.into()),
            RouteType::BlackHole => Err(Errno::EINVAL.into()),
            // Multicast and broadcast are no peers.
            _ => Err(Errno::EACCES.into()),
        }
    }
}

/// Returns the outgoing interface of each route, with the preferred source that the route names.
pub(crate) fn preferred_sources() -> io::Result<Vec<(u32, Option<IpAddr>)>> {
    let routes = netlink::dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
    let of = |route| match route {
        RouteNetlinkMessage::NewRoute(route) if route.header.kind == RouteType::Unicast => {
            let source = route.attributes.iter().find_map(source);
            interfaces(&route).into_iter().map(|index| (index, source)).collect()
        }
        _ => Vec::new(),
    };
    Ok(routes.into_iter().flat_map(of).collect())
}

/// Returns the interfaces of the default route: of IPv4's, or of IPv6's where IPv4 has none.
pub(crate) fn default_interfaces() -> Vec<u32> {
    let of = |nowhere| RouteLookup::plain(nowhere).fib_entry().ok().map(|entry| entry.interfaces);
    NOWHERE.into_iter().find_map(of).unwrap_or_default()
}

/// Returns whether the kernel has asked on an interface's link for this address, and got no answer.
#[doc(hidden)]
pub fn is_missing(peer: IpAddr, interface: u32) -> bool {
    let mut message = NeighbourMessage::default();
    message.header.family = family(peer);
    message.header.ifindex = interface;
    message.attributes.push(NeighbourAttribute::Destination(match peer {
        IpAddr::V4(peer) => NeighbourAddress::Inet(peer),
        IpAddr::V6(peer) => NeighbourAddress::Inet6(peer),
    }));
    let answer = netlink::get(RouteNetlinkMessage::GetNeighbour(message));
    let Ok(RouteNetlinkMessage::NewNeighbour(neighbour)) = answer else { return false };
    matches!(neighbour.header.state, NeighbourState::Failed | NeighbourState::Incomplete)
}

fn interfaces(route: &RouteMessage) -> Vec<u32> {
    let of = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    };
    route.attributes.iter().flat_map(of).collect()
}

fn source(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(source)) => Some((*source).into()),
        RouteAttribute::PrefSource(RouteAddress::Inet6(source)) => Some((*source).into()),
        _ => None,
    }
}

fn mtu(metrics: &[RouteMetric]) -> Option<u32> {
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_reached_by_its_loopback_interface() {
        for peer in ["127.0.0.1", "127.1.2.3"] {
            let answer = RouteLookup::plain(peer.parse().unwrap()).route().unwrap();
            assert!(
                answer.is_local && answer.source.is_some_and(|source| source.is_loopback()),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_broadcast_address_is_refused() {
        let error = RouteLookup::plain("255.255.255.255".parse().unwrap()).route().unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }
}
