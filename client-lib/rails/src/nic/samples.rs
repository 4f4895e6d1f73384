//! Interfaces for tests.

use std::net::IpAddr;

use super::interfaces::{Address, Interface};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an interface that is up and has these addresses.
pub(super) fn interface(name: &str, index: u32, networks: &[&str]) -> Interface {
    let addresses = networks.iter().map(|text| Address::new(text.parse().unwrap())).collect();
    Interface { addresses, mtu: Some(1500), ..Interface::new(name, index) }
}
