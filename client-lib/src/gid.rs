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

pub(crate) use sysfs::{has_devices, kernel_has_rdma};
pub use sysfs::{local_ports, port_gid};

/// A port of an RDMA device.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::local_ports;
///
/// for port in local_ports()? {
///     match port.state {
///         Ok(()) => println!("{} port {}: {} rows", port.device, port.number, port.gids.len()),
///         Err(state) => println!("{} port {} is {state}", port.device, port.number),
///     }
/// }
/// # Ok(()) }
/// ```
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
    pub gids: Vec<GidEntry>,
}

/// What lies below a port.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::{LinkLayer, local_ports};
///
/// // InfiniBand needs an interface of IPoIB for the addresses.
/// let is_infiniband = local_ports()?.iter().any(|port| port.link == LinkLayer::InfiniBand);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand itself.
    InfiniBand,
}

/// A row of a port's GID table.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::local_ports;
///
/// // In the kernel's shared mode there are rows of other pods, too.
/// let ports = local_ports()?;
/// let ours = ports.iter().flat_map(|port| &port.gids).filter(|row| row.interface.as_deref() == Some("net1"));
/// println!("{} rows are net1's", ours.count());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
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
///
/// # Examples
///
/// ```no_run
/// # fn example(local: multinet_client::gid::SourceAddress<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::{choose, local_ports};
///
/// // What `ib_write_bw -d DEVICE -i PORT -x INDEX` has to be told.
/// if let Some(place) = choose(&local_ports()?, local).chosen {
///     println!("-d {} -i {} -x {}", place.device, place.port, place.index);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceGid {
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
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::{SourceAddress, port_gid};
/// use multinet_client::nic::route_to;
///
/// let route = route_to("192.168.111.5".parse()?)?;
/// let port_gid = port_gid(&route.interface);
/// let local = SourceAddress { address: route.source, interface: &route.interface, port_gid };
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddress<'a> {
    /// The address that connections leave from.
    pub address: IpAddr,
    /// The interface that has it, in our network namespace.
    pub interface: &'a str,
    /// The GID in the interface's hardware address, if it is one of InfiniBand ([`port_gid`]).
    pub port_gid: Option<Ipv6Addr>,
}

/// The row for an address, and why it is none of the others.
///
/// # Examples
///
/// ```no_run
/// # fn example(local: multinet_client::gid::SourceAddress<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::gid::{choose, local_ports};
///
/// let choice = choose(&local_ports()?, local);
/// match choice.chosen {
///     Some(place) => println!("RDMA by {place}"),
///     None => choice.rejected.iter().for_each(|(place, reason)| println!("{place} {reason}")),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidChoice {
    /// The row, if there is one.
    pub chosen: Option<DeviceGid>,
    /// All other rows that are in use, with the reason.
    pub rejected: Vec<(DeviceGid, Rejection)>,
}

/// Why a row is not the one.
///
/// # Examples
///
/// ```
/// use multinet_client::gid::Rejection;
///
/// // Most rows are of other addresses. Whatever else is wrong with one is worth a line.
/// let rejected = [Rejection::OtherAddress, Rejection::Kind(Some("IB/RoCE v1".to_owned()))];
/// let mut worth = rejected.iter().filter(|reason| **reason != Rejection::OtherAddress);
/// assert_eq!(worth.next().map(ToString::to_string).as_deref(), Some("is IB/RoCE v1, not RoCE v2"));
/// ```
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
///
/// ```
/// use multinet_client::gid::{SourceAddress, choose, local_ports};
///
/// // An address for documentation, which no device has.
/// let local = SourceAddress { address: "192.0.2.1".parse()?, interface: "net1", port_gid: None };
/// let choice = choose(&local_ports()?, local);
/// assert_eq!(choice.chosen, None, "frames go by TCP from there");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn choose(ports: &[Port], local: SourceAddress<'_>) -> GidChoice {
    let mut choice = GidChoice::default();
    for port in ports {
        for entry in &port.gids {
            let place = DeviceGid {
                device: port.device.clone(),
                port: port.number,
                link: port.link,
                index: entry.index,
                gid: entry.gid,
            };
            match reject(port, entry, local) {
                None if choice.chosen.is_none() => choice.chosen = Some(place),
                None => choice.rejected.push((place, Rejection::Second)),
                Some(reason) => choice.rejected.push((place, reason)),
            }
        }
    }
    choice
}

/// The first of the things that are wrong with a row, the one that says most.
fn reject(port: &Port, entry: &GidEntry, local: SourceAddress<'_>) -> Option<Rejection> {
    let wanted = match port.link {
        LinkLayer::Ethernet => Some(gid_of(local.address)),
        LinkLayer::InfiniBand => local.port_gid,
    };
    if wanted != Some(entry.gid) {
        return Some(Rejection::OtherAddress);
    }
    if port.link == LinkLayer::Ethernet {
        if entry.kind.as_deref() != Some("RoCE v2") {
            return Some(Rejection::Kind(entry.kind.clone()));
        }
        if entry.interface.as_deref() != Some(local.interface) {
            return Some(Rejection::Interface(entry.interface.clone()));
        }
    }
    port.state.clone().err().map(Rejection::Port)
}

impl GidChoice {
    /// The rows that will do, in their order: the chosen one, and those that would do as well if it cannot be used after all.
    ///
    /// ```no_run
    /// # fn example(local: multinet_client::gid::SourceAddress<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::gid::{choose, local_ports};
    ///
    /// for place in choose(&local_ports()?, local).usable() {
    ///     println!("tried next: {place}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn usable(&self) -> impl Iterator<Item = &DeviceGid> {
        let others = self.rejected.iter().filter(|(_, reason)| *reason == Rejection::Second);
        self.chosen.iter().chain(others.map(|(place, _)| place))
    }
}

/// An address as a GID: IPv4 as `::ffff:a.b.c.d`.
///
/// ```
/// use multinet_client::gid::gid_of;
///
/// // As `ibv_devinfo -v` and /sys/class/infiniband show it.
/// assert_eq!(gid_of("192.168.111.5".parse()?).to_string(), "::ffff:192.168.111.5");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl fmt::Display for DeviceGid {
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
