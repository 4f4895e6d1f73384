//! Routes to peers, and how connections keep off the default network.
//!
//! The kernel chooses the route: it answers route lookups (rtnetlink(7), RTM_GETROUTE) by its
//! rules, metrics, preferred sources, VRFs and IPv6 source selection (RFC 6724). Interfaces and
//! netmasks alone would not tell.
//!
//! ```text
//!   plain lookup ────────────────────┐
//!   lookup from each second NIC ─────┼─> most specific route by a second NIC ──> source, interface
//!   lookup in each second NIC's VRF ─┘
//! ```
//!
//! The plain lookup is that of a program which binds neither an address nor an interface. The
//! others find routes that exist only for packets *from* a NIC's address (the CNI plugin `sbr`), or
//! for sockets in its VRF.
//!
//! The *default network* is the pod network of the cluster. Traffic to second NICs of other pods
//! must not take it by accident. Its interface is `eth0`, as container runtimes name it, even if
//! the default route is elsewhere: Multus' `default-route` can move that to another NIC. Where no
//! `eth0` has an address, as on most nodes, it is the interface of the default route.
//!
//! IPv6 link-local addresses are refused. They mean nothing without an interface, and DNS does not
//! tell one.

mod binding;
mod candidate_route;
mod interfaces;
mod keeper;
mod local;
mod lookup;
mod netlink;
mod obstacle;
mod route;
#[cfg(test)]
mod samples;
mod second;

use std::net::IpAddr;

pub use interfaces::{Address, AddressState, Interface, LinkState};
pub(crate) use keeper::Keeper;
pub use local::local_interfaces;
pub use obstacle::Obstacle;
pub use route::{Route, RouteError, route_from, route_to};
#[cfg(feature = "rdma")]
pub(crate) use second::interface_for;
pub use second::{LocalAddress, second_nics};
pub(crate) use second::{idle, second_networks, vrfs_of};

/// Returns whether an address needs an interface beside it, as IPv6 link-local ones do.
pub(crate) fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(_) => is_link_local_v6(ip),
    }
}
