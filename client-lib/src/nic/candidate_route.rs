//! Routes that a connection to a peer could take, and the choice between them.

use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;

use multinet_rails::nic::lookup::{FibEntry, KernelRoute, RouteLookup};
use multinet_rails::nic::{AddressState, Interface, LocalAddress, own_addresses};

/// Route by which the kernel would send, for one source address or VRF.
#[derive(Clone, Debug)]
pub(super) struct CandidateRoute {
    pub(super) route: KernelRoute,
    pub(super) entry: FibEntry,
    pub(super) vrf: Option<u32>,
}

impl CandidateRoute {
    /// Returns the route that a connection to `peer` takes.
    ///
    /// A program that binds no address and no interface gets the plain route. If that is by a
    /// second NIC, it is taken. Otherwise the most specific route by a second NIC is taken, from
    /// the address of any, unless the plain route is for fewer addresses.
    pub(super) fn choose(peer: IpAddr, interfaces: &[Interface]) -> io::Result<Self> {
        let plain = Self::find(RouteLookup::plain(peer));
        if let Ok(plain) = &plain
            && (plain.route.is_local || plain.entry.prefix > 0 && plain.is_by_second_nic(interfaces))
        {
            return Ok(plain.clone());
        }
        let by_source = own_addresses(interfaces)
            .into_iter()
            .filter(|local| local.ip.is_ipv4() == peer.is_ipv4() && local.state == AddressState::Usable)
            .filter_map(|local| Self::from(peer, &local, interfaces));
        let all = plain.iter().cloned().chain(by_source);
        match (best(all.filter(|candidate| candidate.is_by_second_nic(interfaces))), plain) {
            (Some(second), Ok(plain)) if plain.is_narrower(&second) => Ok(plain),
            (Some(second), _) => Ok(second),
            (None, plain) => plain,
        }
    }

    /// Asks the kernel for the route of a packet, and for the entry of the routing table behind it.
    pub(super) fn find(lookup: RouteLookup) -> io::Result<Self> {
        let route = lookup.route()?;
        // Linux before 4.13 does not return the table's entry.
        let unknown = || FibEntry { prefix: 1, is_on_link: false, interfaces: vec![route.interface] };
        let entry = if route.is_local { unknown() } else { lookup.fib_entry().unwrap_or_else(|_| unknown()) };
        Ok(Self { route, entry, vrf: lookup.vrf })
    }

    /// Asks the kernel for the route to `peer` of packets from a second NIC's address, in the NIC's
    /// VRF.
    fn from(peer: IpAddr, local: &LocalAddress, interfaces: &[Interface]) -> Option<Self> {
        let index = |name: &str| interfaces.iter().find(|its| its.name == name).map(|its| its.index);
        let vrf = match &local.vrf {
            Some(name) => Some(index(name)?),
            None => None,
        };
        let candidate = Self::find(RouteLookup { peer, from: Some(local.ip), vrf }).ok()?;
        // A VRF without a route falls back to the main table, which leads out of the VRF.
        let by = interfaces.iter().find(|its| its.index == candidate.route.interface)?;
        (vrf.is_none() || candidate.route.is_local || by.vrf == local.vrf).then_some(candidate)
    }

    /// Returns whether this route is for fewer addresses than `other`. The default route of a
    /// second NIC, as the plugin `sbr` makes one, does not lead to a peer for which the default
    /// network has a route of its own.
    fn is_narrower(&self, other: &Self) -> bool {
        !other.route.is_local && self.entry.prefix > other.entry.prefix
    }

    fn is_by_second_nic(&self, interfaces: &[Interface]) -> bool {
        let by = interfaces.iter().find(|its| its.index == self.route.interface);
        self.route.is_local || by.is_some_and(|by| !(by.is_default_network || by.is_loopback))
    }
}

/// Returns the most specific route, one without a router before others, and of equals the first.
fn best(candidates: impl Iterator<Item = CandidateRoute>) -> Option<CandidateRoute> {
    candidates.min_by_key(|its| Reverse((its.route.is_local, its.entry.prefix, its.entry.is_on_link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(interface: u32, prefix: u8, is_on_link: bool) -> CandidateRoute {
        CandidateRoute {
            route: KernelRoute { is_local: false, interface, source: None, mtu: None },
            entry: FibEntry { prefix, is_on_link, interfaces: vec![interface] },
            vrf: None,
        }
    }

    #[test]
    fn a_second_nics_default_route_does_not_lead_to_what_has_a_route_of_its_own() {
        let by = |prefix| candidate(1, prefix, false);
        assert!(by(16).is_narrower(&by(0)));
        // The default network's default route is none of its own.
        assert!(!by(0).is_narrower(&by(0)));
        assert!(!by(16).is_narrower(&by(24)));
        let mut local = by(0);
        local.route.is_local = true;
        assert!(!by(32).is_narrower(&local));
    }

    #[test]
    fn the_most_specific_route_is_taken_and_of_equals_the_first() {
        let cases: [(&[CandidateRoute], Option<u32>); 5] = [
            (&[], None),
            (&[candidate(1, 0, false), candidate(2, 0, false)], Some(1)),
            (&[candidate(1, 0, false), candidate(2, 24, false)], Some(2)),
            (&[candidate(1, 24, false), candidate(2, 24, true)], Some(2)),
            (&[candidate(1, 16, true), candidate(2, 24, false)], Some(2)),
        ];
        for (candidates, expected) in cases {
            let best = best(candidates.iter().cloned());
            assert_eq!(best.map(|candidate| candidate.route.interface), expected, "{candidates:?}");
        }
    }
}
