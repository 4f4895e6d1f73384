//! The order in which a peer's addresses are tried. Pods may be on several networks, the rails.
//! Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::endpoint::EndpointAddress;
use crate::near::Near;
use crate::pci::Distance;

/// Preference among a peer's addresses when connecting. Earlier fields outweigh later ones.
pub(super) struct Preference<'p> {
    /// Alias of the only network whose addresses may be used. `None` allows all.
    pub(super) network: Option<&'p str>,
    /// Whether addresses with an RDMA device come first, if the NIC that leads there has one, too.
    pub(super) wants_rdma: bool,
    /// Distances of the NICs that lead to the addresses from a GPU. The nearest comes first, and an
    /// unknown distance last.
    pub(super) distances: &'p HashMap<IpAddr, Near>,
}

/// Rank of a peer's address; the smallest is tried first.
type Rank = (bool, bool, Option<Distance>);

impl Preference<'_> {
    /// Returns the usable addresses in the order in which to try them. Each connection of a peer,
    /// by its index `lane`, begins with another network among the equally good ones, so that
    /// several connections use several rails. Otherwise the order stays, so that the first address
    /// of a network is tried before its others.
    pub(super) fn order<'e>(&self, addresses: &'e [EndpointAddress], lane: u16) -> Vec<&'e EndpointAddress> {
        let mut usable: Vec<_> = usable(addresses, self.network).collect();
        usable.sort_by_key(|address| self.rank(address));
        let Some(best) = usable.first().map(|address| self.rank(address)) else { return usable };
        let is_best = usable.partition_point(|address| self.rank(address) == best);
        take_turns(&mut usable[..is_best], lane);
        usable
    }

    fn rank(&self, address: &EndpointAddress) -> Rank {
        let near = self.distances.get(&address.ip);
        let has_rdma = !address.rdma_devices.is_empty() && near.is_none_or(|near| near.has_rdma);
        let distance = near.and_then(|near| near.distance);
        (self.wants_rdma && !has_rdma, distance.is_none(), distance)
    }
}

/// Returns the addresses on the network, or all if any network may be used.
pub(super) fn usable<'e>(
    addresses: &'e [EndpointAddress],
    network: Option<&str>,
) -> impl Iterator<Item = &'e EndpointAddress> {
    addresses
        .iter()
        .filter(move |address| network.is_none_or(|network| address.network.as_deref() == Some(network)))
}

/// Rotates equally good addresses, so that each lane begins with another network.
fn take_turns(equals: &mut [&EndpointAddress], lane: u16) {
    let mut rails: Vec<Option<&str>> = Vec::new();
    for address in equals.iter() {
        if !rails.contains(&address.network.as_deref()) {
            rails.push(address.network.as_deref());
        }
    }
    let first = usize::from(lane) % rails.len().max(1);
    let turn = |address: &EndpointAddress| {
        let rail = rails.iter().position(|rail| *rail == address.network.as_deref()).unwrap_or_default();
        (rail + rails.len() - first) % rails.len()
    };
    equals.sort_by_key(|address| turn(address));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Network, last byte of the address, and whether it has an RDMA device.
    type Address = (&'static str, u8, bool);

    /// Returns the last bytes of the addresses in order. All NICs of this machine have an RDMA
    /// device.
    fn ordered(
        all: &[Address],
        distances: &[(u8, Distance)],
        network: Option<&str>,
        wants_rdma: bool,
        lane: u16,
    ) -> Vec<u8> {
        let near = |&(number, distance)| (number, Near { distance: Some(distance), has_rdma: true });
        let near: Vec<_> = distances.iter().map(near).collect();
        ordered_by(all, &near, network, wants_rdma, lane)
    }

    fn ordered_by(
        all: &[Address],
        near: &[(u8, Near)],
        network: Option<&str>,
        wants_rdma: bool,
        lane: u16,
    ) -> Vec<u8> {
        let ip = |number: u8| IpAddr::from([10, 9, 0, number]);
        let distances = near.iter().map(|&(number, near)| (ip(number), near)).collect();
        let address = |&(network, number, has_device): &Address| {
            let mut address = EndpointAddress::new(ip(number));
            address.network = Some(network.to_owned()).filter(|network| !network.is_empty());
            address.rdma_devices = if has_device { vec!["mlx5_0".to_owned()] } else { Vec::new() };
            address
        };
        let all: Vec<_> = all.iter().map(address).collect();
        let number = |address: &EndpointAddress| match address.ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        let preference = Preference { network, wants_rdma, distances: &distances };
        preference.order(&all, lane).into_iter().map(number).collect()
    }

    #[test]
    fn connections_rotate_over_rails_and_rails_with_a_device_come_first() {
        let two = [("rail0", 1, true), ("rail1", 2, true)];
        // Two addresses on each network, and a network without a device between them.
        let more = [
            ("rail0", 1, true),
            ("rail0", 2, true),
            ("storage", 3, false),
            ("rail1", 4, true),
            ("rail1", 5, true),
        ];
        type Case<'a> = (&'a [Address], Option<&'a str>, bool, u16, &'a [u8]);
        let cases: [Case<'_>; 12] = [
            (&[], None, true, 3, &[]),
            (&[("", 1, false)], None, true, 3, &[1]),
            (&two, None, true, 0, &[1, 2]),
            (&two, None, true, 1, &[2, 1]),
            (&two, None, true, 2, &[1, 2]),
            (&two, Some("rail1"), true, 0, &[2]),
            (&two, Some("rail2"), true, 0, &[]),
            (&more, None, true, 0, &[1, 2, 4, 5, 3]),
            (&more, None, true, 1, &[4, 5, 1, 2, 3]),
            // All are equal for TCP.
            (&more, None, false, 0, &[1, 2, 3, 4, 5]),
            (&more, None, false, 1, &[3, 4, 5, 1, 2]),
            // No address has a known device.
            (&[("a", 1, false), ("b", 2, false)], None, true, 1, &[2, 1]),
        ];
        for (all, network, wants_rdma, lane, expected) in cases {
            let found = ordered(all, &[], network, wants_rdma, lane);
            assert_eq!(found, expected, "{all:?} {network:?} {wants_rdma} {lane}");
        }
    }

    #[test]
    fn equally_good_addresses_are_sorted_by_their_distance_from_the_gpu() {
        use Distance::{Node, Phb, Pix, Sys};
        let four = [("rail0", 1, true), ("rail1", 2, true), ("rail2", 3, true), ("storage", 4, false)];
        type Case<'a> = (&'a [(u8, Distance)], bool, u16, &'a [u8]);
        let cases: [Case<'_>; 8] = [
            (&[(1, Sys), (2, Pix), (3, Node)], true, 0, &[2, 3, 1, 4]),
            // All connections use the nearest.
            (&[(1, Sys), (2, Pix), (3, Node)], true, 1, &[2, 3, 1, 4]),
            (&[(1, Phb), (2, Sys), (3, Phb)], true, 0, &[1, 3, 2, 4]),
            (&[(1, Phb), (2, Sys), (3, Phb)], true, 1, &[3, 1, 2, 4]),
            // A far NIC counts as nearer than one at an unknown distance.
            (&[(3, Sys)], true, 0, &[3, 1, 2, 4]),
            // If RDMA is wanted, a device counts more than the distance.
            (&[(1, Sys), (2, Sys), (3, Sys), (4, Pix)], true, 1, &[2, 3, 1, 4]),
            (&[(1, Sys), (2, Sys), (3, Sys), (4, Pix)], false, 1, &[4, 1, 2, 3]),
            (&[], true, 2, &[3, 1, 2, 4]),
        ];
        for (distances, wants_rdma, lane, expected) in cases {
            let found = ordered(&four, distances, None, wants_rdma, lane);
            assert_eq!(found, expected, "{distances:?} {wants_rdma} {lane}");
        }
        assert_eq!(ordered(&four, &[(2, Pix)], Some("rail0"), true, 0), [1]);
        // A near NIC without an RDMA device does not help.
        let near = [(1, Sys, true), (2, Pix, false), (3, Node, true)]
            .map(|(number, distance, has_rdma)| (number, Near { distance: Some(distance), has_rdma }));
        assert_eq!(ordered_by(&four, &near, None, true, 0), [3, 1, 2, 4]);
        assert_eq!(ordered_by(&four, &near, None, false, 0), [2, 3, 1, 4]);
        // Neither NIC is on the PCI bus.
        let near =
            [(1, false), (2, true)].map(|(number, has_rdma)| (number, Near { distance: None, has_rdma }));
        assert_eq!(ordered_by(&four[..2], &near, None, true, 0), [2, 1]);
    }
}
