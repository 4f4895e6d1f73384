//! Interfaces for tests.

use std::net::IpAddr;

use multinet_rails::nic::{Address, Interface};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an interface that is up and has these addresses.
pub(super) fn interface(name: &str, index: u32, networks: &[&str]) -> Interface {
    let mut interface = Interface::new(name, index);
    interface.addresses = networks.iter().map(|text| Address::new(text.parse().unwrap())).collect();
    interface.mtu = Some(1500);
    interface
}

/// Returns an interface after a change.
pub(super) fn changed(mut interface: Interface, change: impl FnOnce(&mut Interface)) -> Interface {
    change(&mut interface);
    interface
}
