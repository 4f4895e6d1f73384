//! Addresses of second NICs.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::interfaces::{Address, AddressState, Interface, LinkState};
use super::is_link_local;
use super::local::local_interfaces;
use super::lookup;

/// Address of a second NIC.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::nic::second_nics;
///
/// for local in second_nics()? {
///     println!("{} on {}", local.ip, local.interface);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalAddress {
    /// IP address of this machine.
    pub ip: IpAddr,
    /// Interface that has the address. For an address of the loopback interface: a second NIC whose
    /// packets leave with it.
    pub interface: String,
    /// Whether the address can be used.
    pub state: AddressState,
    /// VRF that sockets must be bound to (`SO_BINDTODEVICE`) to use the address. `None` for the
    /// main table.
    pub vrf: Option<String>,
    /// Prefix length of the address's network, in bits.
    pub prefix: u8,
}

/// Returns the addresses of second NICs, sorted by interface, and then the virtual ones.
///
/// These are the addresses that are neither on the default network's interface nor loopback nor
/// link-local. An IPv4 link-local address counts if it is its interface's only one. Interfaces that
/// are down do not count, nor do those that container runtimes create on a node, such as `docker0`
/// and `kube-ipvs0`. An address of the loopback interface counts if packets that leave by a second
/// NIC have it as their source.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::nic::second_nics;
///
/// // By IPv4 only.
/// let addresses = second_nics()?.into_iter().map(|local| local.ip).filter(|ip| ip.is_ipv4());
/// let listeners: Vec<_> = addresses.map(|ip| std::net::TcpListener::bind((ip, 18515))).collect();
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`local_interfaces`].
pub fn second_nics() -> io::Result<Vec<LocalAddress>> {
    let interfaces = local_interfaces()?;
    let mut second = own_addresses(&interfaces);
    if interfaces.iter().any(|interface| interface.virtual_addresses().next().is_some()) {
        second.extend(borrowed(&interfaces, &lookup::preferred_sources()?));
    }
    Ok(second)
}

/// Returns this machine's addresses on second NICs, each with the network that it belongs to.
#[doc(hidden)]
pub fn second_networks() -> io::Result<Vec<(LocalAddress, IpNet)>> {
    let network =
        |local: LocalAddress| IpNet::new(local.ip, local.prefix).ok().map(|network| (local, network));
    Ok(second_nics()?.into_iter().filter_map(network).collect())
}

/// Returns the interface that has an address, unless that is the loopback interface. Of several,
/// returns the one that leads to `peer`.
#[doc(hidden)]
pub fn interface_for(address: IpAddr, peer: IpAddr) -> io::Result<Option<String>> {
    let mut having = local_interfaces()?;
    having.retain(|interface| !interface.is_loopback && interface.has(address));
    if having.len() > 1
        && let Ok(route) =
            (lookup::RouteLookup { from: Some(address), ..lookup::RouteLookup::plain(peer) }).route()
        && having.iter().any(|interface| interface.index == route.interface)
    {
        having.retain(|interface| interface.index == route.interface);
    }
    Ok(having.into_iter().next().map(|interface| interface.name))
}

/// Returns the VRFs in which an interface has the address, with its state in each. The main table
/// is `None`.
#[doc(hidden)]
pub fn vrfs_of(address: IpAddr, interfaces: &[Interface]) -> Vec<(Option<String>, AddressState)> {
    let mut found: Vec<(Option<String>, AddressState)> = Vec::new();
    for interface in interfaces {
        let here = interface.addresses.iter().filter(|its| its.ip == address);
        for its in here {
            match found.iter_mut().find(|(vrf, _)| *vrf == interface.vrf) {
                Some((_, state)) => *state = its.state.min(*state),
                None => found.push((interface.vrf.clone(), its.state)),
            }
        }
    }
    found
}

/// Returns the second NICs that have addresses and cannot send, such as `net1 is down`.
#[doc(hidden)]
pub fn idle(interfaces: &[Interface]) -> Vec<String> {
    let idle = interfaces.iter().filter(|its| its.is_second_nic() && its.link != LinkState::Up);
    let has_addresses = |its: &&Interface| its.addresses.iter().any(|address| !is_link_local(address.ip));
    idle.filter(has_addresses).map(|its| format!("{} {}", its.name, its.link)).collect()
}

/// Returns the IPv4 subnets that several second NICs are in, with the address of each. (By IPv6,
/// only that NIC answers for an address which has it.)
///
/// The kernel sends a subnet's packets by one of its NICs, and by default each NIC answers ARP
/// requests for the addresses of all.
///
/// ```no_run
/// use multinet_rails::nic::{local_interfaces, shared_subnets};
///
/// for (subnet, nics) in shared_subnets(&local_interfaces()?) {
///     println!("{} NICs share {subnet}", nics.len());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn shared_subnets(interfaces: &[Interface]) -> Vec<(IpNet, Vec<(String, IpAddr)>)> {
    let second = interfaces.iter().filter(|its| its.is_second_nic() && its.link != LinkState::Down);
    let mut subnets: Vec<(IpNet, Vec<(String, IpAddr)>)> = Vec::new();
    for interface in second.filter(|its| its.vrf.is_none()) {
        for address in interface.v4().filter(|address| address.prefix < 31) {
            let Some(subnet) = address.network().map(|network| network.trunc()) else { continue };
            let here = (interface.name.clone(), address.ip);
            match subnets.iter_mut().find(|(known, _)| *known == subnet) {
                Some((_, nics)) if nics.iter().any(|(name, _)| *name == interface.name) => {}
                Some((_, nics)) => nics.push(here),
                None => subnets.push((subnet, vec![here])),
            }
        }
    }
    subnets.retain(|(_, nics)| nics.len() > 1);
    subnets
}

/// Returns the addresses that are configured on second NICs, without those of virtual interfaces.
#[doc(hidden)]
pub fn own_addresses(interfaces: &[Interface]) -> Vec<LocalAddress> {
    let second = interfaces.iter().filter(|interface| leads_out(interface));
    second
        .flat_map(|interface| {
            let has_only_link_local = interface.v4().all(|address| is_link_local(address.ip));
            let is_usable = move |address: &&Address| match address.ip {
                IpAddr::V4(ip) => !ip.is_loopback() && (has_only_link_local || !ip.is_link_local()),
                IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unicast_link_local()),
            };
            let own = interface.addresses.iter().filter(|its| !interface.is_virtual(its));
            own.filter(is_usable).map(|address| LocalAddress::on(interface, address))
        })
        .collect()
}

/// Returns the virtual addresses with which packets leave by a second NIC. Hosts that announce an
/// address by BGP have such ones on the loopback interface.
///
/// They are preferred sources of routes, or are chosen by the kernel where the NIC has no address
/// of its own. `sources` has the outgoing interface and the preferred source of each route.
fn borrowed(interfaces: &[Interface], sources: &[(u32, Option<IpAddr>)]) -> Vec<LocalAddress> {
    let by = |address: IpAddr| {
        interfaces.iter().filter(|interface| leads_out(interface)).find(|interface| {
            let has_none = !interface
                .addresses
                .iter()
                .any(|its| its.ip.is_ipv4() == address.is_ipv4() && !is_link_local(its.ip));
            sources.iter().any(|(index, source)| {
                *index == interface.index
                    && match source {
                        Some(source) => *source == address,
                        None => has_none,
                    }
            })
        })
    };
    let virtual_ones = interfaces.iter().flat_map(Interface::virtual_addresses);
    virtual_ones
        .filter_map(|address| by(address.ip).map(|interface| LocalAddress::on(interface, address)))
        .collect()
}

/// Returns whether packets leave by the interface, now or when its link gets a carrier.
fn leads_out(interface: &Interface) -> bool {
    interface.is_second_nic() && interface.link != LinkState::Down
}

impl LocalAddress {
    fn on(interface: &Interface, address: &Address) -> Self {
        Self {
            ip: address.ip,
            interface: interface.name.clone(),
            state: address.state,
            vrf: interface.vrf.clone(),
            prefix: address.prefix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{interface, ip};
    use super::*;

    fn found(interfaces: &[Interface]) -> Vec<(String, String)> {
        let own = own_addresses(interfaces).into_iter();
        own.map(|local| (local.ip.to_string(), local.interface)).collect()
    }

    #[test]
    fn second_nics_are_those_that_lead_to_other_networks_than_the_default_one() {
        let (up, down) = (LinkState::Up, LinkState::Down);
        let of = |name, kind: Option<&str>, link, networks: &[&str]| Interface {
            kind: kind.map(str::to_owned),
            link,
            ..interface(name, 9, networks)
        };
        let cases: [(&str, Interface, &[&str]); 17] = [
            ("the default network", of("eth0", None, up, &["10.244.0.9/24"]), &[]),
            ("the loopback interface", of("lo", None, up, &["127.0.0.1/8", "10.9.9.9/32", "::1/128"]), &[]),
            (
                "a second NIC",
                of("net1", None, up, &["169.254.1.1/16", "192.168.1.5/24", "fe80::1/64", "fd00::5/64"]),
                &["192.168.1.5", "fd00::5"],
            ),
            (
                "with loopback addresses, too",
                of("net1", None, up, &["127.0.0.53/8", "::1/128", "192.168.1.5/24"]),
                &["192.168.1.5"],
            ),
            ("without addresses", of("net2", None, up, &[]), &[]),
            ("link-local only", of("enp1s0", None, up, &["169.254.3.7/16", "fe80::1/64"]), &["169.254.3.7"]),
            ("that is down", of("net1", None, down, &["192.168.1.5/24"]), &[]),
            ("with no cable", of("net1", None, LinkState::NoCarrier, &["192.168.1.5/24"]), &["192.168.1.5"]),
            ("a node's network", of("br-storage", Some("bridge"), up, &["10.7.0.5/24"]), &["10.7.0.5"]),
            (
                "a bridge to nowhere",
                of("br-9f2c", Some("bridge"), LinkState::NoCarrier, &["172.18.0.1/16"]),
                &[],
            ),
            ("Docker's", of("docker0", Some("bridge"), up, &["172.17.0.1/16"]), &[]),
            ("a CNI plugin's", of("cni0", Some("bridge"), up, &["10.244.3.1/24"]), &[]),
            ("Services' addresses", of("kube-ipvs0", Some("dummy"), up, &["10.96.0.1/32"]), &[]),
            ("the same, of another name", of("vips", Some("dummy"), up, &["10.96.0.1/32"]), &[]),
            (
                "a network that only plays one",
                of("rdma1", Some("dummy"), up, &["10.9.5.1/24"]),
                &["10.9.5.1"],
            ),
            ("a VRF itself", of("blue", Some("vrf"), up, &["10.9.6.1/32"]), &[]),
            ("a tunnel of two", of("net1", None, up, &["10.9.7.1/32"]), &["10.9.7.1"]),
        ];
        for (title, interface, expected) in cases {
            let found: Vec<String> = found(&[interface]).into_iter().map(|(ip, _)| ip).collect();
            assert_eq!(found, expected, "{title}");
        }
    }

    #[test]
    fn a_virtual_address_counts_if_packets_leave_with_it_by_a_second_nic() {
        let lo = interface("lo", 1, &["127.0.0.1/8", "10.50.0.2/32"]);
        let eth0 = interface("eth0", 2, &["10.244.0.9/24"]);
        let bare = interface("lan0", 3, &["fe80::1/64"]);
        let numbered = interface("lan0", 3, &["192.168.1.5/24"]);
        let named = Some(ip("10.50.0.2"));
        type Sources<'a> = &'a [(u32, Option<IpAddr>)];
        let cases: [(&str, &Interface, Sources<'_>, bool); 6] = [
            ("no route", &bare, &[], false),
            ("named by a route", &bare, &[(3, named)], true),
            ("named by a route of a NIC with others", &numbered, &[(3, named)], true),
            ("the only one there is", &bare, &[(3, None)], true),
            ("another is nearer", &numbered, &[(3, None)], false),
            ("by the default network", &bare, &[(2, named)], false),
        ];
        for (title, lan0, sources, expected) in cases {
            let found = borrowed(&[lo.clone(), eth0.clone(), lan0.clone()], sources);
            let found: Vec<_> = found.iter().map(|local| (local.ip, local.interface.as_str())).collect();
            let here = [(ip("10.50.0.2"), "lan0")];
            assert_eq!(found, if expected { &here[..] } else { &[] }, "{title}");
        }
    }

    #[test]
    fn an_address_is_looked_for_in_every_vrf() {
        let blue = || Some("blue".to_owned());
        let net1 = interface("net1", 2, &["10.9.1.5/24"]);
        let twin = Interface { vrf: blue(), ..interface("net2", 3, &["10.9.1.5/24"]) };
        let mut failed = interface("net3", 4, &["10.9.1.5/24"]);
        failed.addresses[0].state = AddressState::Duplicate;
        let address = ip("10.9.1.5");
        assert_eq!(vrfs_of(address, &[]), []);
        let both = [(None, AddressState::Usable), (blue(), AddressState::Usable)];
        assert_eq!(vrfs_of(address, &[failed.clone(), net1, twin]), both);
        assert_eq!(vrfs_of(address, &[failed]), [(None, AddressState::Duplicate)]);
    }
}
