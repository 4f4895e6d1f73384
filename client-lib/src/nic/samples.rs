//! Interfaces for tests.

use std::net::IpAddr;

use super::interfaces::{Address, AddressState, Interface, LinkState};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an interface that is up and has these addresses.
pub(super) fn interface(name: &str, index: u32, networks: &[&str]) -> Interface {
    let address = |text: &&str| {
        let network: ipnet::IpNet = text.parse().unwrap();
        Address { ip: network.addr(), prefix: network.prefix_len(), state: AddressState::Usable }
    };
    Interface {
        name: name.to_owned(),
        addresses: networks.iter().map(address).collect(),
        mac: None,
        mtu: Some(1500),
        link: LinkState::Up,
        vrf: None,
        is_loopback: name == "lo",
        is_default_network: name == "eth0",
        index,
        kind: None,
    }
}
