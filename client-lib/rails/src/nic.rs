//! Network interfaces of this network namespace, their addresses, and which of them are second
//! NICs.
//!
//! The *default network* is the pod network of the cluster. Its interface is `eth0`, as container
//! runtimes name it, even if the default route is elsewhere: Multus' `default-route` can move that
//! to another NIC. Where no `eth0` has an address, as on most nodes, it is the interface of the
//! default route.

mod interfaces;
mod local;
#[doc(hidden)]
pub mod lookup;
mod netlink;
#[cfg(test)]
mod samples;
mod second;

use std::net::IpAddr;

pub use interfaces::{Address, AddressState, Interface, LinkState, POD_INTERFACE};
pub use local::local_interfaces;
pub use second::{
    LocalAddress, idle, interface_for, own_addresses, second_networks, second_nics, shared_subnets, vrfs_of,
};

/// Returns whether an address needs an interface beside it, as IPv6 link-local ones do.
#[doc(hidden)]
pub fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns whether an address is link-local.
#[doc(hidden)]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(_) => is_link_local_v6(ip),
    }
}
