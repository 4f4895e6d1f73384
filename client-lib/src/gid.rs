//! Which RDMA device, port and GID stand for a local address (DESIGN.md, client-lib).
//!
//! A GID is what an address is to RDMA: 16 bytes, of which a port has a table. Under RoCE v2 (InfiniBand Architecture, annex A17) they are
//! those of an IP address, and packets leave with it. So the row is found by the bytes of the address that the kernel's route begins
//! with, never by index: in one pod it is row 3, in the next one row 7, and a table has holes. And it must be a row of our own interface:
//! in the kernel's shared mode a pod sees the GIDs of all other pods on the node, which it cannot use.
//!
//! ```text
//!   nic::route_to ──> address, interface ──┐
//!                                          ├─> choose ──> row, and why not the others
//!   /sys/class/infiniband ──> local_ports ─┘   (pure)
//! ```
//!
//! InfiniBand has no IP addresses in its GIDs. There an interface (IPoIB, RFC 4391) carries the GID of its port in its hardware address.

mod sysfs;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

pub use sysfs::{local_ports, port_gid};

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// The device, such as `mlx5_2`.
    pub device: String,
    /// Its port, from 1.
    pub number: u32,
    /// What lies below.
    pub link: LinkLayer,
    /// Whether the port is active; if not, what the kernel calls its state, such as `DOWN`.
    pub state: Result<(), String>,
    /// The rows of its table that are in use, by index.
    pub rows: Vec<Row>,
}

/// What lies below a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand itself.
    InfiniBand,
}

/// A row of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Where it stands in the table.
    pub index: u32,
    /// The GID.
    pub gid: Ipv6Addr,
    /// What the kernel calls its type, such as `RoCE v2`; `None` if it does not tell.
    pub kind: Option<String>,
    /// The interface that it belongs to; `None` if the kernel does not tell.
    pub interface: Option<String>,
}

/// A row, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// What lies below.
    pub link: LinkLayer,
    /// Index of the row.
    pub index: u32,
    /// Its GID.
    pub gid: Ipv6Addr,
}

/// What a local address is to RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local<'a> {
    /// The address that connections leave from.
    pub address: IpAddr,
    /// The interface that has it, in our network namespace.
    pub interface: &'a str,
    /// The GID in the interface's hardware address, if it is one of InfiniBand ([`port_gid`]).
    pub port_gid: Option<Ipv6Addr>,
}

/// The row for an address, and why it is none of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The row, if there is one.
    pub chosen: Option<Place>,
    /// All other rows that are in use, with the reason.
    pub rejected: Vec<(Place, Rejection)>,
}

/// Why a row is not the one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// It is of another address.
    OtherAddress,
    /// It is not RoCE v2, whose packets have IP addresses.
    Kind(Option<String>),
    /// It belongs to another interface, or to one that is not in this network namespace.
    Interface(Option<String>),
    /// The port is not active.
    Port(String),
    /// Another row, which comes before it, does as well.
    Second,
}

/// The row for a local address: on an active port, of the address's bytes, RoCE v2, and of the address's interface. Of several the one
/// on the first device and port, with the least index.
pub fn choose(ports: &[Port], local: Local<'_>) -> Choice {
    let mut choice = Choice::default();
    for port in ports {
        for row in &port.rows {
            let place = Place {
                device: port.device.clone(),
                port: port.number,
                link: port.link,
                index: row.index,
                gid: row.gid,
            };
            match reject(port, row, local) {
                None if choice.chosen.is_none() => choice.chosen = Some(place),
                None => choice.rejected.push((place, Rejection::Second)),
                Some(reason) => choice.rejected.push((place, reason)),
            }
        }
    }
    choice
}

/// The first of the things that are wrong with a row, the one that says most.
fn reject(port: &Port, row: &Row, local: Local<'_>) -> Option<Rejection> {
    let wanted = match port.link {
        LinkLayer::Ethernet => Some(gid_of(local.address)),
        LinkLayer::InfiniBand => local.port_gid,
    };
    if wanted != Some(row.gid) {
        return Some(Rejection::OtherAddress);
    }
    if port.link == LinkLayer::Ethernet {
        if row.kind.as_deref() != Some("RoCE v2") {
            return Some(Rejection::Kind(row.kind.clone()));
        }
        if row.interface.as_deref() != Some(local.interface) {
            return Some(Rejection::Interface(row.interface.clone()));
        }
    }
    port.state.clone().err().map(Rejection::Port)
}

/// An address as a GID: IPv4 as `::ffff:a.b.c.d`.
pub fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, index, gid, .. } = self;
        write!(f, "{device} port {port} GID {index} ({gid})")
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherAddress => f.write_str("is of another address"),
            Self::Kind(Some(kind)) => write!(f, "is {kind}, not RoCE v2"),
            Self::Kind(None) => f.write_str("is of no type that the kernel tells"),
            Self::Interface(Some(name)) => write!(f, "belongs to the interface {name}"),
            Self::Interface(None) => f.write_str("belongs to no interface of this network namespace"),
            Self::Port(state) => write!(f, "is on a port that is {state}"),
            Self::Second => f.write_str("would do as well"),
        }
    }
}

#[cfg(test)]
mod tests;
