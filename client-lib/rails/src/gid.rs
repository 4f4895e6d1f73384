//! The RDMA device, port and GID that stand for a local address.
//!
//! A GID is the address of a port in RDMA: 16 bytes, of which each port has a table. Under RoCE v2
//! (InfiniBand Architecture, annex A17) a GID contains an IP address, from which its packets are
//! sent. So the GID is found by the bytes of the local address, never by a fixed index: tables have
//! holes, and the same address is at index 3 in one pod and at index 7 in the next. The GID also
//! has to belong to our own interface: in the kernel's shared mode, a pod sees the GIDs of all pods
//! on the node, which it cannot use.
//!
//! ```text
//!   nic ──> address, interface ────────────┐
//!                                          ├─> choose ──> GID, and the reasons against others
//!   /sys/class/infiniband ──> local_ports ─┘   (pure)
//! ```
//!
//! The GIDs of InfiniBand contain no IP address. There an interface (IPoIB, RFC 4391) has the GID
//! of its port in its hardware address.

mod sysfs;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

pub use sysfs::{has_devices, kernel_has_rdma, local_ports, port_gid};
pub(crate) use sysfs::{port_gid_in, ports_in};

/// A port of an RDMA device.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::local_ports;
///
/// for port in local_ports()? {
///     match port.state {
///         Ok(()) => println!("{} port {}: {} GIDs", port.device, port.number, port.gids.len()),
///         Err(state) => println!("{} port {} is {state}", port.device, port.number),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// The name of the device, such as `mlx5_2`.
    pub device: String,
    /// The number of the port, from 1.
    pub number: u32,
    /// The link layer, which decides what the port's GIDs contain.
    pub link: LinkLayer,
    /// Whether the port is active; if not, the kernel's name of its state, such as `DOWN`.
    pub state: Result<(), String>,
    /// The used entries of the port's GID table, by index.
    pub gids: Vec<GidEntry>,
}

/// The link layer of a port.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::{LinkLayer, local_ports};
///
/// // InfiniBand needs an interface of IPoIB for the addresses.
/// let is_infiniband = local_ports()?.iter().any(|port| port.link == LinkLayer::InfiniBand);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// RoCE: RDMA over Ethernet, whose GIDs contain IP addresses.
    Ethernet,
    /// InfiniBand itself, whose GIDs contain no IP addresses.
    InfiniBand,
}

/// A GID in the table of a port.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::local_ports;
///
/// // In the kernel's shared mode, the tables also have the GIDs of other pods.
/// let ports = local_ports()?;
/// let gids = ports.iter().flat_map(|port| &port.gids);
/// let ours = gids.filter(|gid| gid.interface.as_deref() == Some("net1"));
/// println!("{} GIDs are net1's", ours.count());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The index in the port's GID table; tables have holes.
    pub index: u32,
    /// The GID itself, 16 bytes.
    pub gid: Ipv6Addr,
    /// The kernel's name of the GID's type, such as `RoCE v2`, if known.
    pub kind: Option<String>,
    /// The network interface that the GID belongs to, such as `net1`, if known.
    pub interface: Option<String>,
}

/// A GID with its device and port.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     local: multinet_rails::gid::SourceAddress<'_>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::{choose, local_ports};
///
/// // What `ib_write_bw -d DEVICE -i PORT -x INDEX` has to be told.
/// if let Some(place) = choose(&local_ports()?, local).chosen {
///     println!("-d {} -i {} -x {}", place.device, place.port, place.index);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGid {
    /// The name of the RDMA device, such as `mlx5_2`.
    pub device: String,
    /// The number of the device's port, from 1.
    pub port: u32,
    /// The link layer of the port, which decides what the GID contains.
    pub link: LinkLayer,
    /// The index of the GID in the port's table.
    pub index: u32,
    /// The GID itself, 16 bytes.
    pub gid: Ipv6Addr,
}

/// A local address, for which a GID is chosen.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::{SourceAddress, port_gid};
/// use multinet_rails::nic::second_nics;
///
/// for local in second_nics()? {
///     let port_gid = port_gid(&local.interface);
///     let local = SourceAddress { address: local.ip, interface: &local.interface, port_gid };
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddress<'a> {
    /// The IP address of this host that connections are made from.
    pub address: IpAddr,
    /// The network interface that has the address, in this process's network namespace.
    pub interface: &'a str,
    /// The GID in the hardware address of an InfiniBand interface ([`port_gid`]); `None` for
    /// others.
    pub port_gid: Option<Ipv6Addr>,
}

/// The GID for an address, and the reasons against all others.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     local: multinet_rails::gid::SourceAddress<'_>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::{choose, local_ports};
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
    /// The chosen GID; `None` if no GID can be used for the address.
    pub chosen: Option<DeviceGid>,
    /// All other GIDs of the given ports, each with the reason why it was not chosen.
    pub rejected: Vec<(DeviceGid, Rejection)>,
}

/// Why a GID was not chosen.
///
/// # Examples
///
/// ```
/// use multinet_rails::gid::Rejection;
///
/// // Most GIDs are of other addresses. Any other reason is worth a line.
/// let rejected = [Rejection::OtherAddress, Rejection::Kind(Some("IB/RoCE v1".to_owned()))];
/// let mut worth = rejected.iter().filter(|reason| **reason != Rejection::OtherAddress);
/// let first = worth.next().map(ToString::to_string);
/// assert_eq!(first.as_deref(), Some("is IB/RoCE v1, not RoCE v2"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The GID contains another IP address, or is that of another InfiniBand port.
    OtherAddress,
    /// The GID's type, if known, is not RoCE v2, whose packets have IP addresses.
    Kind(Option<String>),
    /// The GID belongs to this other interface, or with `None` to one in another network namespace.
    Interface(Option<String>),
    /// The GID's port is not active, but in this state, such as `DOWN`.
    Port(String),
    /// The GID would do, but another one comes before it by device, port or index.
    Second,
}

/// Chooses the GID for a local address: one of type RoCE v2 that contains the address, on an active
/// port, and belongs to the interface of the address. Of several, it chooses the first by device,
/// port and index.
///
/// ```
/// use multinet_rails::gid::{SourceAddress, choose, local_ports};
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

/// Returns the most specific reason why a GID cannot be used for a local address, if there is one.
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

impl Port {
    pub(crate) fn is_of(&self, place: &DeviceGid) -> bool {
        (&self.device, self.number) == (&place.device, place.port)
    }
}

impl GidChoice {
    /// Returns the GIDs that can be used: the chosen one, and then those that are tried if it
    /// fails.
    ///
    /// ```no_run
    /// # fn example(
    /// #     local: multinet_rails::gid::SourceAddress<'_>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_rails::gid::{choose, local_ports};
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

/// Returns the GID that contains an IP address. IPv4 addresses are mapped to `::ffff:a.b.c.d`.
///
/// ```
/// use multinet_rails::gid::gid_of;
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
