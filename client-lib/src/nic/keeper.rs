//! Keeps accepted connections off the default network.

use std::io;
use std::net::IpAddr;

use multinet_rails::nic::lookup::RouteLookup;
use multinet_rails::nic::{Interface, local_interfaces, second_nics};
use socket2::SockRef;

use super::binding::Binding;

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
            _ => match interface_with(local, &self.interfaces).map(|(name, it)| (name.to_owned(), it)) {
                Some((name, is_virtual)) if !is_virtual || self.is_second_nics(local)? => {
                    Binding::Interface(name)
                }
                _ => Binding::Unrestricted,
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

/// Returns the name of the interface that has an accepted connection's local address, and whether
/// it is virtual: the loopback interface or a dummy, whose addresses second NICs may send from, or
/// the default network. A connection that is bound to the interface cannot leave by the default
/// network. `None` if the default network's interface has the address, or no interface has it.
fn interface_with(local: IpAddr, interfaces: &[Interface]) -> Option<(&str, bool)> {
    let mut all = interfaces.iter().filter(|interface| interface.has(local));
    if all.clone().any(|interface| interface.is_default_network) {
        return None;
    }
    let is_virtual = |its: &&Interface| its.virtual_addresses().any(|address| address.ip == local);
    let nic = all.clone().find(|its| !its.is_loopback && !is_virtual(its)).map(|its| (&*its.name, false));
    nic.or_else(|| all.find(is_virtual).map(|its| (&*its.name, true)))
}

#[cfg(test)]
mod tests {
    use super::super::samples::{changed, interface, ip};
    use super::*;

    #[test]
    fn an_address_answers_by_the_default_network_only_if_it_is_not_a_second_nics() {
        let dummy = |its: &mut Interface| its.kind = Some("dummy".to_owned());
        let interfaces = [
            interface("lo", 1, &["127.0.0.1/8", "10.50.0.1/32", "192.168.1.7/32", "10.244.0.9/32"]),
            interface("eth0", 2, &["10.244.0.9/24"]),
            interface("net1", 3, &["192.168.1.5/24", "192.168.1.7/24"]),
            changed(interface("vips", 4, &["10.50.0.2/32"]), dummy),
            changed(interface("rdma1", 5, &["10.9.5.1/24"]), dummy),
        ];
        let cases = [
            ("10.244.0.9", None),
            ("192.168.1.5", Some(("net1", false))),
            ("192.168.1.7", Some(("net1", false))),
            ("10.9.5.1", Some(("rdma1", false))),
            ("10.50.0.1", Some(("lo", true))),
            ("10.50.0.2", Some(("vips", true))),
            ("127.0.0.1", None),
            ("192.0.2.1", None),
        ];
        for (local, expected) in cases {
            assert_eq!(interface_with(ip(local), &interfaces), expected, "{local}");
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
