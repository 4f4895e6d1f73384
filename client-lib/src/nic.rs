//! Which way a connection to a peer takes, and that it is not the default network's (DESIGN.md,
//! client-lib).
//!
//! The kernel says so: it is asked by rtnetlink (rtnetlink(7), RTM_GETROUTE), which follows rules,
//! metrics, preferred sources, VRFs and IPv6's selection of sources (RFC 6724). A look at
//! interfaces and netmasks does not.
//!
//! ```text
//!   the peer alone ─────────────────────┐
//!   the peer, from each second NIC ─────┼─> the most specific route by a second NIC ──> source, interface
//!   the peer, in each second NIC's VRF ─┘
//! ```
//!
//! The first question is that of a program which knows nothing of NICs. The others find routes that
//! are for packets *from* a NIC's address only (the CNI plugin `sbr`), or for sockets in its VRF.
//!
//! The *default network* is that of the cluster itself, in a pod, which traffic to other pods'
//! second NICs must not take by accident. Its interface is `eth0`, the name that container runtimes
//! give to it, wherever the default route is: Multus' `default-route` moves that to another one.
//! Where no `eth0` has an address, as on most nodes, it is the interface of the default route.
//!
//! Link-local addresses of IPv6 mean nothing without an interface, which DNS does not have: they
//! are refused.

mod candidate;
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
mod stay;

use std::net::IpAddr;

pub use interfaces::{Address, AddressState, Interface, LinkState};
pub(crate) use keeper::Keeper;
pub use local::local_interfaces;
pub use obstacle::Obstacle;
pub use route::{Route, RouteError, route_from, route_to};
pub use second::{LocalAddress, second_nics};
pub(crate) use second::{idle, interface_for, second_networks, vrfs_of};

/// Whether an address needs an interface beside it, which IPv4's do not.
pub(crate) fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(_) => is_link_local_v6(ip),
    }
}
