//! Distances to peers, for [`Choice::Nearest`](crate::Choice::Nearest). Pure.

use crate::endpoint::{Endpoint, EndpointAddress};
use crate::near::Attached;

/// Location of this process, to compute the distance to each peer.
#[derive(Debug, Default)]
pub(crate) struct Location {
    pub(crate) node: Option<String>,
    pub(crate) zone: Option<String>,
    /// Alias of the only network whose addresses may be used. `None` allows all.
    pub(crate) network: Option<String>,
}

impl Location {
    /// Returns the distance to an endpoint; 0 is nearest. It depends first on the node, then on the
    /// zone, then on the rail (whether this pod has a NIC on a network of the endpoint), and last
    /// on whether the NICs on such a network have the same NUMA node.
    pub(super) fn distance(&self, endpoint: &Endpoint, attached: &[Attached]) -> u8 {
        let is_same = |mine: &Option<String>, other: &Option<String>| mine.is_some() && mine == other;
        let place = match endpoint {
            _ if is_same(&self.node, &endpoint.node) => 0,
            _ if is_same(&self.zone, &endpoint.zone) => 1,
            _ => 2,
        };
        let is_usable =
            |address: &&EndpointAddress| self.network.is_none() || self.network == address.network;
        let usable = endpoint.addresses.iter().filter(is_usable);
        3 * place + usable.map(|address| rail(address, attached)).min().unwrap_or(2)
    }
}

/// Returns 0 for an address on a network and NUMA node of this pod's, 1 for one on such a network,
/// and 2 for others.
fn rail(address: &EndpointAddress, attached: &[Attached]) -> u8 {
    let numa = address.numa.map(u32::from);
    let here = attached.iter().filter(|here| here.network.contains(&address.ip));
    here.map(|here| u8::from(numa.is_none() || here.numa != numa)).min().unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node, zone, and addresses with their NUMA nodes.
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, Option<u16>)]);

    fn endpoint((node, zone, addresses): Case<'_>) -> Endpoint {
        let known = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let address = |(ip, numa): &(&str, Option<u16>)| {
            let mut address = EndpointAddress::new(ip.parse().unwrap());
            address.numa = *numa;
            address
        };
        let mut endpoint = Endpoint::at("192.0.2.1:1".parse().unwrap());
        (endpoint.node, endpoint.zone) = (known(node), known(zone));
        endpoint.addresses = addresses.iter().map(address).collect();
        endpoint
    }

    #[test]
    fn distance_depends_on_node_zone_rail_and_numa_in_this_order() {
        let mut place = Location { node: Some("n1".to_owned()), zone: Some("a".to_owned()), network: None };
        let attached = [("10.9.0.0/24", Some(0)), ("10.9.1.0/24", Some(1)), ("fd09::/64", None)]
            .map(|(network, numa)| Attached { network: network.parse().unwrap(), numa });
        // Sorted from the nearest to the farthest. Endpoints in one list are equally far.
        let cases: [&[Case<'_>]; 9] = [
            &[
                ("n1", "a", &[("10.9.0.7", Some(0))]),
                // The nearest address counts.
                ("n1", "a", &[("10.9.2.7", Some(0)), ("10.9.0.7", Some(1)), ("10.9.1.7", Some(1))]),
            ],
            &[
                ("n1", "a", &[("10.9.0.7", Some(1))]),
                ("n1", "a", &[("10.9.0.7", None)]),
                // An unknown NUMA node counts as a different one.
                ("n1", "a", &[("fd09::7", Some(0))]),
                ("n1", "b", &[("fd09::7", None)]),
            ],
            &[("n1", "a", &[("10.9.2.7", Some(0))]), ("n1", "a", &[])],
            &[("n2", "a", &[("10.9.1.7", Some(1))])],
            &[("n2", "a", &[("10.9.1.7", Some(0))]), ("", "a", &[("10.9.1.7", None)])],
            &[("n2", "a", &[("10.9.2.7", Some(1))])],
            &[("n2", "b", &[("10.9.1.7", Some(1))]), ("", "", &[("10.9.1.7", Some(1))])],
            &[("n2", "b", &[("10.9.1.7", Some(0))])],
            &[("n2", "b", &[("10.9.2.7", Some(1))]), ("", "", &[])],
        ];
        for (expected, cases) in (0..).zip(cases) {
            for &case in cases {
                assert_eq!(place.distance(&endpoint(case), &attached), expected, "{case:?}");
            }
        }
        // Without a known location, no peer counts as near.
        assert_eq!(Location::default().distance(&endpoint(("", "", &[("10.9.0.7", Some(0))])), &attached), 6);
        assert_eq!(place.distance(&endpoint(("n1", "a", &[("10.9.0.7", Some(0))])), &[]), 2);
        // Addresses that may not be used do not count.
        place.network = Some("rail1".to_owned());
        let mut two = endpoint(("n1", "a", &[("10.9.0.7", Some(0)), ("10.9.1.7", Some(0))]));
        assert_eq!(place.distance(&two, &attached), 2);
        two.addresses[1].network = place.network.clone();
        assert_eq!(place.distance(&two, &attached), 1);
    }
}
