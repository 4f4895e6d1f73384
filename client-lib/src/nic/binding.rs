//! Keeps sockets off the default network. The kernel turns to that as soon as the route by a second
//! NIC is gone. A socket that is bound to the NIC cannot follow, but receives less than a plain
//! one.

use std::io;
use std::net::IpAddr;

use multinet_rails::nic::lookup::FibEntry;
use multinet_rails::nic::{Address, Interface, LinkState};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;

/// Restriction that keeps a socket's packets on one interface or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// The socket sends only to destinations on the link (`SO_DONTROUTE`), so that no default route
    /// matches. It receives by any interface.
    OnLink,
    /// The socket sends and receives by this interface only (`SO_BINDTODEVICE`).
    Interface(String),
    /// The socket is not restricted, because either restriction would lose packets.
    Unrestricted,
}

impl Binding {
    /// Returns the restriction for a socket that sends from `source` by `entry`.
    ///
    /// A socket that is bound to an interface loses packets that come in by another one. That
    /// happens on multipath routes, if the address is not the interface's own, and if several
    /// interfaces are in one subnet. In that case each of them answers ARP requests for the
    /// addresses of all (`arp_ignore` is 0 by default), so that chance decides by which one packets
    /// come in.
    pub(super) fn of(source: IpAddr, entry: &FibEntry, interfaces: &[Interface]) -> Self {
        if source.is_ipv4() && entry.is_on_link {
            return Self::OnLink;
        }
        let [index] = entry.interfaces[..] else { return Self::Unrestricted };
        let Some(interface) = interfaces.iter().find(|interface| interface.index == index) else {
            return Self::Unrestricted;
        };
        let own = interface.addresses.iter().find(|address| address.ip == source);
        let Some(network) = own.and_then(Address::network) else { return Self::Unrestricted };
        let others = interfaces.iter().filter(|other| other.index != index && other.link != LinkState::Down);
        let is_shared = others.filter(|other| !other.is_default_network).any(|other| {
            other.addresses.iter().any(|its| {
                // In IPv6, only the interface that has the address answers for it.
                its.ip == source
                    || source.is_ipv4() && its.network().is_some_and(|its| overlap(&its, &network))
            })
        });
        if is_shared { Self::Unrestricted } else { Self::Interface(interface.name.clone()) }
    }

    /// Applies the restriction to a socket, before it connects.
    pub(super) fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        match self {
            Self::OnLink => Ok(setsockopt(&**socket, sockopt::DontRoute, &true)?),
            Self::Interface(interface) => match socket.bind_device(Some(interface.as_bytes())) {
                // Before Linux 5.7 this took CAP_NET_RAW.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                outcome => outcome,
            },
            Self::Unrestricted => Ok(()),
        }
    }
}

fn overlap(one: &ipnet::IpNet, other: &ipnet::IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

#[cfg(test)]
mod tests {
    use super::super::samples::{changed, interface, ip};
    use super::*;

    #[test]
    fn a_socket_is_bound_to_its_interface_only_where_nothing_comes_by_another() {
        let entry = |is_on_link, interfaces: &[u32]| FibEntry {
            prefix: 16,
            is_on_link,
            interfaces: interfaces.to_vec(),
        };
        let (net1, net2) =
            (interface("net1", 2, &["10.9.1.5/24", "fd09::5/64"]), interface("net2", 3, &["10.9.2.5/24"]));
        let twin = interface("net2", 3, &["10.9.1.6/24", "fd09::6/64"]);
        let same = interface("net2", 3, &["10.9.1.5/32", "fd09::5/128"]);
        let down = changed(twin.clone(), |its| its.link = LinkState::Down);
        let lo = interface("lo", 1, &["10.50.0.1/32"]);
        let bound = || Binding::Interface("net1".to_owned());
        let cases: [(&str, &str, FibEntry, &[&Interface], Binding); 11] = [
            ("without a router", "10.9.1.5", entry(true, &[2]), &[&net1], Binding::OnLink),
            ("the same, with a twin", "10.9.1.5", entry(true, &[2]), &[&net1, &twin], Binding::OnLink),
            ("by a router", "10.9.1.5", entry(false, &[2]), &[&net1, &net2], bound()),
            ("with a twin", "10.9.1.5", entry(false, &[2]), &[&net1, &twin], Binding::Unrestricted),
            ("with a twin that is down", "10.9.1.5", entry(false, &[2]), &[&net1, &down], bound()),
            (
                "another's address, too",
                "10.9.1.5",
                entry(false, &[2]),
                &[&net1, &same],
                Binding::Unrestricted,
            ),
            ("IPv6 with a twin", "fd09::5", entry(false, &[2]), &[&net1, &twin], bound()),
            (
                "another's IPv6 address, too",
                "fd09::5",
                entry(false, &[2]),
                &[&net1, &same],
                Binding::Unrestricted,
            ),
            ("shared among two", "10.9.1.5", entry(false, &[2, 3]), &[&net1, &net2], Binding::Unrestricted),
            ("another's address", "10.50.0.1", entry(false, &[2]), &[&lo, &net1], Binding::Unrestricted),
            ("an interface that is gone", "10.9.1.5", entry(false, &[7]), &[&net1], Binding::Unrestricted),
        ];
        for (title, source, entry, interfaces, expected) in cases {
            let interfaces: Vec<Interface> = interfaces.iter().copied().cloned().collect();
            assert_eq!(Binding::of(ip(source), &entry, &interfaces), expected, "{title}");
        }
    }
}
