//! Which of a peer's addresses is tried first: pods may be on several networks, the rails. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::endpoint::EndpointAddress;
use crate::near::Near;
use crate::pci::Distance;

/// What is preferred, first things first.
pub(super) struct Preference<'p> {
    /// Only this network may be used.
    pub(super) network: Option<&'p str>,
    /// Those come first that have a device for RDMA, as far as we have one on the way there, too.
    pub(super) wants_rdma: bool,
    /// Of those, the ones that our nearest NICs lead to: their distance from a GPU. Where that is not known, it is far.
    pub(super) distances: &'p HashMap<IpAddr, Near>,
}

/// How good an address is; the least is the best.
type Rank = (bool, bool, Option<Distance>);

impl Preference<'_> {
    /// The addresses that may be used, those to be tried first at the beginning: of equals the next network for each lane, so that several connections
    /// use several rails. Else their order stays: a network's first address is tried before its others.
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

/// Those on the network, if it has to be a certain one.
pub(super) fn usable<'e>(
    addresses: &'e [EndpointAddress],
    network: Option<&str>,
) -> impl Iterator<Item = &'e EndpointAddress> {
    addresses
        .iter()
        .filter(move |address| network.is_none_or(|network| address.network.as_deref() == Some(network)))
}

/// Begins with another network for each lane.
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

    /// Its network, its last number, and whether it has a device.
    type Address = (&'static str, u8, bool);

    /// With an RDMA device of ours for each.
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
    fn rails_take_turns_by_lane_and_those_with_a_device_come_first() {
        let two = [("rail0", 1, true), ("rail1", 2, true)];
        // Two families on each network, and a network without a device between them.
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
            // By TCP all are equal.
            (&more, None, false, 0, &[1, 2, 3, 4, 5]),
            (&more, None, false, 1, &[3, 4, 5, 1, 2]),
            // Nobody is known to have one.
            (&[("a", 1, false), ("b", 2, false)], None, true, 1, &[2, 1]),
        ];
        for (all, network, wants_rdma, lane, expected) in cases {
            let found = ordered(all, &[], network, wants_rdma, lane);
            assert_eq!(found, expected, "{all:?} {network:?} {wants_rdma} {lane}");
        }
    }

    #[test]
    fn of_equals_the_nearest_to_the_gpu_come_first() {
        use Distance::{Node, Phb, Pix, Sys};
        let four = [("rail0", 1, true), ("rail1", 2, true), ("rail2", 3, true), ("storage", 4, false)];
        type Case<'a> = (&'a [(u8, Distance)], bool, u16, &'a [u8]);
        let cases: [Case<'_>; 8] = [
            (&[(1, Sys), (2, Pix), (3, Node)], true, 0, &[2, 3, 1, 4]),
            // All connections, as nobody else is as near.
            (&[(1, Sys), (2, Pix), (3, Node)], true, 1, &[2, 3, 1, 4]),
            (&[(1, Phb), (2, Sys), (3, Phb)], true, 0, &[1, 3, 2, 4]),
            (&[(1, Phb), (2, Sys), (3, Phb)], true, 1, &[3, 1, 2, 4]),
            // Far is nearer than not known.
            (&[(3, Sys)], true, 0, &[3, 1, 2, 4]),
            // A device for RDMA counts more, if it is wanted.
            (&[(1, Sys), (2, Sys), (3, Sys), (4, Pix)], true, 1, &[2, 3, 1, 4]),
            (&[(1, Sys), (2, Sys), (3, Sys), (4, Pix)], false, 1, &[4, 1, 2, 3]),
            (&[], true, 2, &[3, 1, 2, 4]),
        ];
        for (distances, wants_rdma, lane, expected) in cases {
            let found = ordered(&four, distances, None, wants_rdma, lane);
            assert_eq!(found, expected, "{distances:?} {wants_rdma} {lane}");
        }
        assert_eq!(ordered(&four, &[(2, Pix)], Some("rail0"), true, 0), [1]);
        // Nor does it help that a NIC is near which has none.
        let near = [(1, Sys, true), (2, Pix, false), (3, Node, true)]
            .map(|(number, distance, has_rdma)| (number, Near { distance: Some(distance), has_rdma }));
        assert_eq!(ordered_by(&four, &near, None, true, 0), [3, 1, 2, 4]);
        assert_eq!(ordered_by(&four, &near, None, false, 0), [2, 3, 1, 4]);
        // Neither is on the PCI bus.
        let near =
            [(1, false), (2, true)].map(|(number, has_rdma)| (number, Near { distance: None, has_rdma }));
        assert_eq!(ordered_by(&four[..2], &near, None, true, 0), [2, 1]);
    }
}
