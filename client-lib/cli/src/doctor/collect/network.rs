//! Reads this pod's NICs and the routes to peers from the kernel, and tries the peers.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use multinet_client::nic::{self, AddressState, Interface, LinkState, RouteError};
use multinet_client::{Endpoint, EndpointAddress};

use super::super::facts::{InSubnet, Nic, NoConnection, NoRoute, Peer, Route, SharedSubnet};
use super::super::probe;

/// Tries a connection, and full-size packets, to an address of a peer.
pub(super) async fn peer(
    service: &str,
    host: String,
    port: u16,
    address: &EndpointAddress,
    allows_default_network: bool,
) -> Peer {
    let peer = |route| Peer {
        host,
        address: SocketAddr::new(address.ip, port),
        network: address.network.clone(),
        route,
        connected: None,
        offers_payloads: false,
        mtu: None,
    };
    let found = match nic::route_to(address.ip) {
        Ok(found) => found,
        Err(error) => return peer(Err(no_route(error))),
    };
    let route = describe(&found);
    let taken = if allows_default_network { Ok(found) } else { found.on_network_of(address) };
    let taken = match taken {
        Ok(taken) => taken,
        Err(RouteError::DefaultNetwork { down, .. }) => {
            return peer(Ok(Route { is_refused: true, down, ..route }));
        }
        Err(error) => return peer(Err(no_route(error))),
    };
    let mut peer = peer(Ok(route));
    let connected = probe::connect(&taken, peer.address).await;
    if connected.is_ok() {
        let mut endpoint = Endpoint::at(peer.address);
        endpoint.addresses = vec![address.clone()];
        peer.offers_payloads = probe::offers_payloads(service, endpoint, allows_default_network).await;
    }
    // A host that does not answer at all is not probed further.
    let is_there = connected.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_there {
        peer.mtu = probe::size(&taken).await;
    }
    peer.connected = Some(
        connected
            .map_err(|error| NoConnection { obstacle: taken.obstacle(&error), error: error.to_string() }),
    );
    peer
}

fn no_route(error: RouteError) -> NoRoute {
    match error {
        RouteError::Unreachable { source, down, .. } => {
            NoRoute::Unreachable { reason: source.to_string(), down }
        }
        other => NoRoute::Other(other.to_string()),
    }
}

fn describe(route: &nic::Route) -> Route {
    let interfaces = nic::local_interfaces().unwrap_or_default();
    let interface = interfaces.iter().find(|interface| interface.name == route.interface);
    Route {
        source: route.source,
        interface: route.interface.clone(),
        mtu: route.mtu,
        interface_mtu: interface.and_then(|interface| interface.mtu),
        is_default_network: route.is_default_network,
        is_refused: false,
        down: None,
    }
}

/// Returns the interface of the default network, and the second NICs.
pub(super) fn nics() -> io::Result<Vec<Nic>> {
    // The library knows which addresses others can connect to.
    let second = nic::second_nics()?;
    let of = |interface: Interface| {
        let own = interface.addresses.iter().filter(|address| !is_link_local_v6(address.ip));
        let unusable = own.clone().filter(|address| address.state != AddressState::Usable);
        let usable = second.iter().filter(|local| local.state == AddressState::Usable);
        let addresses = match interface.is_default_network || interface.link == LinkState::Down {
            true => own.clone().map(|address| address.ip).collect(),
            false => usable.filter(|local| local.interface == interface.name).map(|local| local.ip).collect(),
        };
        Nic {
            addresses,
            unusable: unusable.map(|address| (address.ip, address.state)).collect(),
            mtu: interface.mtu,
            link: interface.link,
            is_default_network: interface.is_default_network,
            name: interface.name,
        }
    };
    let is_wanted = |interface: &Interface| interface.is_default_network || interface.is_second_nic();
    Ok(nic::local_interfaces()?.into_iter().filter(is_wanted).map(of).collect())
}

/// Returns the IPv4 subnets that several second NICs are in, and how packets leave for them.
pub(super) fn shared() -> io::Result<Vec<SharedSubnet>> {
    let subnets = nic::shared_subnets(&nic::local_interfaces()?);
    Ok(subnets.into_iter().map(|(network, nics)| describe_shared(network, &nics)).collect())
}

fn describe_shared(network: IpNet, nics: &[(String, IpAddr)]) -> SharedSubnet {
    // Any other host in the subnet.
    let other = network.hosts().find(|host| !nics.iter().any(|(_, own)| own == host));
    let leaves_by = |source| nic::route_from(source, other?).ok().map(|route| route.interface);
    let in_subnet = |(interface, address): &(String, IpAddr)| InSubnet {
        interface: interface.clone(),
        address: *address,
        leaves_by: leaves_by(*address),
        answers_for_all: arp_ignore(interface) == 0,
    };
    SharedSubnet { network: network.to_string(), nics: nics.iter().map(in_subnet).collect() }
}

/// Returns whether an interface answers ARP for its own addresses only: the greater of two settings
/// counts (ip-sysctl).
fn arp_ignore(interface: &str) -> u32 {
    let of = |interface| {
        let value = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{interface}/arp_ignore"));
        value.ok().and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    of("all").max(of(interface))
}

fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
