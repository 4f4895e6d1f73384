//! Keeps accepted connections off the default network.

use std::io;
use std::net::IpAddr;

use socket2::SockRef;

use super::binding::Binding;
use super::interfaces::Interface;
use super::local::local_interfaces;
use super::lookup::RouteLookup;
use super::second::second_nics;

/// Binds accepted connections so that their packets do not leave by the default network.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Interfaces, which are read again only if a route leads to one that is not among them.
    interfaces: Vec<Interface>,
    /// Addresses that second NICs have sent from, even if their routes have gone since.
    second: Vec<IpAddr>,
}

impl Keeper {
    pub(crate) fn new() -> io::Result<Self> {
        let second = second_nics()?.into_iter().map(|local| local.ip).collect();
        Ok(Self { interfaces: local_interfaces()?, second })
    }

    /// Binds a connection between two addresses so that its packets leave by second NICs, unless
    /// the local address is one of the default network's.
    pub(crate) fn keep(&mut self, socket: &SockRef<'_>, (local, peer): (IpAddr, IpAddr)) -> io::Result<()> {
        // A socket in a VRF stays in it.
        if socket.device()?.is_some() {
            return Ok(());
        }
        let lookup = RouteLookup { from: Some(local), ..RouteLookup::plain(peer) };
        let route = lookup.route();
        let index = match &route {
            Ok(route) if route.is_local => return Ok(()),
            Ok(route) => Some(route.interface),
            Err(_) => None,
        };
        if index.is_some_and(|index| !self.interfaces.iter().any(|interface| interface.index == index)) {
            self.interfaces = local_interfaces()?;
        }
        let by = self.interfaces.iter().find(|interface| Some(interface.index) == index);
        let binding = match (by, lookup.fib_entry()) {
            (Some(by), Ok(entry)) if !by.is_default_network => Binding::of(local, &entry, &self.interfaces),
            // No answer is better than one by the default network.
            _ => match holder(local, &self.interfaces) {
                Holder::Other => Binding::Unrestricted,
                Holder::Nic(interface) => Binding::Interface(interface.to_owned()),
                Holder::Virtual(interface) => {
                    let interface = interface.to_owned();
                    if self.is_second_nics(local)? {
                        Binding::Interface(interface)
                    } else {
                        Binding::Unrestricted
                    }
                }
            },
        };
        binding.apply(socket)
    }

    /// Tells whether a second NIC sends from a virtual address, or has done so.
    fn is_second_nics(&mut self, local: IpAddr) -> io::Result<bool> {
        if self.second.contains(&local) {
            return Ok(true);
        }
        let is_now = second_nics()?.iter().any(|its| its.ip == local);
        self.second.extend(is_now.then_some(local));
        Ok(is_now)
    }
}

/// Interface that has an accepted connection's local address. A connection that is bound to the
/// interface cannot leave by the default network.
#[derive(Debug, PartialEq, Eq)]
enum Holder<'a> {
    /// A NIC that is not on the default network. The field is its name.
    Nic(&'a str),
    /// The loopback interface or a dummy. Second NICs may send from the address, or the default
    /// network may.
    Virtual(&'a str),
    /// The default network's interface has the address, or no interface has it.
    Other,
}

fn holder(local: IpAddr, interfaces: &[Interface]) -> Holder<'_> {
    let mut holders = interfaces.iter().filter(|interface| interface.has(local));
    if holders.clone().any(|interface| interface.is_default_network) {
        return Holder::Other;
    }
    let is_virtual = |its: &&Interface| its.virtual_addresses().any(|address| address.ip == local);
    let nic = holders.clone().find(|its| !its.is_loopback && !is_virtual(its));
    match (nic, holders.find(is_virtual)) {
        (Some(nic), _) => Holder::Nic(&nic.name),
        (None, Some(its)) => Holder::Virtual(&its.name),
        (None, None) => Holder::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::interfaces::Kind;
    use super::super::samples::{interface, ip};
    use super::*;

    #[test]
    fn an_address_answers_by_the_default_network_only_if_it_is_not_a_second_nics() {
        let interfaces = [
            interface("lo", 1, &["127.0.0.1/8", "10.50.0.1/32", "192.168.1.7/32", "10.244.0.9/32"]),
            interface("eth0", 2, &["10.244.0.9/24"]),
            interface("net1", 3, &["192.168.1.5/24", "192.168.1.7/24"]),
            Interface { kind: Kind::Dummy, ..interface("vips", 4, &["10.50.0.2/32"]) },
            Interface { kind: Kind::Dummy, ..interface("rdma1", 5, &["10.9.5.1/24"]) },
        ];
        let cases = [
            ("10.244.0.9", Holder::Other),
            ("192.168.1.5", Holder::Nic("net1")),
            ("192.168.1.7", Holder::Nic("net1")),
            ("10.9.5.1", Holder::Nic("rdma1")),
            ("10.50.0.1", Holder::Virtual("lo")),
            ("10.50.0.2", Holder::Virtual("vips")),
            ("127.0.0.1", Holder::Other),
            ("192.0.2.1", Holder::Other),
        ];
        for (local, expected) in cases {
            assert_eq!(holder(ip(local), &interfaces), expected, "{local}");
        }
    }

    #[test]
    fn an_address_that_a_second_nic_has_sent_from_stays_a_second_nics() {
        let local = ip("192.0.2.77");
        let mut keeper = Keeper { interfaces: Vec::new(), second: vec![local] };
        assert!(keeper.is_second_nics(local).unwrap());
        assert!(!keeper.is_second_nics(ip("192.0.2.78")).unwrap());
    }
}
