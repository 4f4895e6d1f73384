//! Route lookups: what the kernel would do with a packet.

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

/// Addresses that no network has, and every default route leads to: of IPv4's class E, and of
/// IPv6's documentation (RFC 9637).
const NOWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1))];

/// A packet that the kernel is asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) peer: IpAddr,
    /// Its source address, if it is not for the kernel to choose.
    pub(super) from: Option<IpAddr>,
    /// Index of the VRF that its socket is in.
    pub(super) vrf: Option<u32>,
}

/// The way that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// To this machine itself.
    pub(super) is_local: bool,
    pub(super) interface: u32,
    pub(super) source: Option<IpAddr>,
    /// If the route has one of its own, or one has been learnt.
    pub(super) mtu: Option<u32>,
}

/// The entry of a table that decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// How many bits of the destination it names: 0 is a default route.
    pub(super) prefix: u8,
    /// The destination is on the link itself, as far as the kernel tells: of IPv6 it does not.
    pub(super) is_on_link: bool,
    /// Those that the packets for this destination are shared among.
    pub(super) interfaces: Vec<u32>,
}

impl Question {
    pub(super) fn plain(peer: IpAddr) -> Self {
        Self { peer, from: None, vrf: None }
    }

    /// The kernel's answer.
    pub(super) fn answer(self) -> io::Result<Answer> {
        let route = self.ask(RouteFlags::empty())?;
        let mut answer = Answer {
            is_local: route.header.kind == RouteType::Local,
            interface: 0,
            source: self.from,
            mtu: None,
        };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => answer.interface = *index,
                RouteAttribute::Metrics(metrics) => answer.mtu = mtu(metrics),
                _ => answer.source = answer.source.or_else(|| source(attribute)),
            }
        }
        Ok(answer)
    }

    /// By which entry of its tables.
    pub(super) fn entry(self) -> io::Result<Entry> {
        let route = self.ask(RouteFlags::FibMatch)?;
        Ok(Entry {
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
            return Err(io::Error::other("the kernel answers another question"));
        };
        // IPv4's refusals are errors, IPv6's are routes.
        match route.header.kind {
            RouteType::Unicast | RouteType::Local => Ok(route),
            RouteType::Unreachable => Err(Errno::EHOSTUNREACH.into()),
            RouteType::BlackHole => Err(Errno::EINVAL.into()),
            // Broadcasts and the like are no peers.
            _ => Err(Errno::EACCES.into()),
        }
    }
}

/// The interfaces that routes lead to, each with the source address that its route names.
pub(super) fn preferred_sources() -> io::Result<Vec<(u32, Option<IpAddr>)>> {
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

/// The interfaces that the default route leads to, IPv4's if there is one.
pub(super) fn default_interfaces() -> Vec<u32> {
    let of = |nowhere| Question::plain(nowhere).entry().ok().map(|entry| entry.interfaces);
    NOWHERE.into_iter().find_map(of).unwrap_or_default()
}

/// Whether the kernel has asked an interface's link for this address, and has no answer.
pub(super) fn is_missing(peer: IpAddr, interface: u32) -> bool {
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
            let answer = Question::plain(peer.parse().unwrap()).answer().unwrap();
            assert!(
                answer.is_local && answer.source.is_some_and(|source| source.is_loopback()),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_broadcast_is_no_way_to_a_peer() {
        let error = Question::plain("255.255.255.255".parse().unwrap()).answer().unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }
}
