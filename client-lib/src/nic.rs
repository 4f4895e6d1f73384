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
mod keeper;
mod obstacle;
mod route;
#[cfg(test)]
mod samples;

pub(crate) use keeper::Keeper;
#[cfg(feature = "rdma")]
pub(crate) use multinet_rails::nic::interface_for;
pub use multinet_rails::nic::{
    Address, AddressState, Interface, LinkState, LocalAddress, local_interfaces, second_nics, shared_subnets,
};
pub(crate) use multinet_rails::nic::{idle, is_link_local_v6, second_networks, vrfs_of};
pub use obstacle::Obstacle;
pub use route::{Route, RouteError, route_from, route_to};
