//! A rail: one second NIC, with all that is known of it.

use std::fmt;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use crate::gid::{self, DeviceGid, LinkLayer, Port, Rejection, SourceAddress};
use crate::gpu::Gpu;
use crate::pci::{Distance, Function};
use crate::sys::{names, text};

/// Second NIC of this pod, or a port of InfiniBand without an interface.
///
/// Formats as one line: `rail0: net1 192.168.111.5/24, mlx5_2 port 1, GID row 7, NUMA 0; GPU 0
/// PIX`.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::{Pod, Sources};
///
/// for rail in &Pod::read(&Sources::default())?.rails {
///     match &rail.rdma {
///         Ok(place) => println!("{:?} sends by {place}", rail.interface),
///         Err(reason) => println!("{:?} has no RDMA: {reason}", rail.interface),
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rail {
    /// Network interface, such as `net1`. `None` for a port of InfiniBand without IPoIB.
    pub interface: Option<String>,
    /// Usable addresses of the interface with their prefix lengths, IPv4 before IPv6. Without an
    /// interface there are none.
    pub addresses: Vec<IpNet>,
    /// Alias of the network, such as `rail0`, if known: the service's own where a service is given
    /// (DNS), else the name of the network in the pod's network-status or of its ResourceClaim.
    pub network: Option<String>,
    /// Largest packet that the interface sends (MTU), in bytes, if known.
    pub mtu: Option<u32>,
    /// Device, port and row of the GID table that stand for the first address which has one, or the
    /// reason why there are none. The device can be opened.
    pub rdma: Result<DeviceGid, NoRdma>,
    /// PCI address of the NIC, such as `0000:19:00.2`. `None` for interfaces on top of others
    /// (macvlan, VLAN, bond) that have no RDMA device.
    pub pci: Option<String>,
    /// NUMA node that the NIC is attached to; `None` if it is not known, or the machine has only
    /// one.
    pub numa: Option<u32>,
    /// GPUs of this pod, the nearest first.
    pub gpus: Vec<GpuDistance>,
}

/// GPU of this pod, as seen from a NIC.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::pci::Distance;
/// use multinet_rails::{Pod, Sources};
///
/// let pod = Pod::read(&Sources::default())?;
/// let near = pod.rails[0].gpus.iter().filter(|gpu| gpu.distance <= Distance::Pxb).count();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDistance {
    /// Number of the GPU among this pod's, in the order of PCI addresses, from 0.
    pub number: usize,
    /// PCI address of the GPU, such as `0000:18:00.0`.
    pub pci: String,
    /// Distance between the GPU and the NIC.
    pub distance: Distance,
}

/// Reason why a NIC has no RDMA.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::{NoRdma, Pod, Sources};
///
/// for rail in Pod::read(&Sources::default())?.rails {
///     if let Err(NoRdma::CannotOpen { device, .. }) = rail.rdma {
///         println!("this pod may not use {device}: request it in the container's resources");
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRdma {
    /// The kernel shows this pod no RDMA device.
    #[error("the kernel shows this pod no RDMA device")]
    NoDevice,
    /// No RDMA device has a usable GID of the interface's addresses.
    #[error("no RDMA device has a usable GID of {}", of(addresses, rejected))]
    NoGid {
        /// Addresses of the interface.
        addresses: Vec<IpAddr>,
        /// GIDs of these addresses that cannot be used, each with the reason.
        rejected: Vec<(DeviceGid, Rejection)>,
    },
    /// The device has a GID of an address, and its device file cannot be opened.
    #[error(
        "{device} cannot be opened ({reason}): request the device in the container's resources, or leave it out"
    )]
    CannotOpen {
        /// Name of the RDMA device, such as `mlx5_2`.
        device: String,
        /// Error of the kernel, with the file.
        reason: String,
    },
}

fn of(addresses: &[IpAddr], rejected: &[(DeviceGid, Rejection)]) -> String {
    let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    match rejected.first() {
        Some((place, reason)) => format!("{addresses} ({place} {reason})"),
        None => addresses,
    }
}

impl Rail {
    /// Returns the address that peers reach this rail at: the first one.
    ///
    /// ```no_run
    /// use multinet_rails::{Pod, Sources};
    ///
    /// let pod = Pod::read(&Sources::default())?;
    /// let own = pod.rails.iter().find_map(|rail| rail.address());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn address(&self) -> Option<IpAddr> {
        self.addresses.first().map(IpNet::addr)
    }

    /// Returns the name by which messages call the rail: its interface, else its RDMA device.
    ///
    /// ```no_run
    /// use multinet_rails::{Pod, Sources};
    ///
    /// let pod = Pod::read(&Sources::default())?;
    /// let names: Vec<&str> = pod.rails.iter().map(|rail| rail.name()).collect();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        let device = self.rdma.as_ref().map_or("", |place| &place.device);
        self.interface.as_deref().unwrap_or(device)
    }

    /// Returns why the rail lacks an RDMA device that is its own: one that has its GID, and cannot
    /// be used.
    pub(crate) fn lost(&self) -> Option<String> {
        match &self.rdma {
            Err(NoRdma::NoGid { rejected, .. }) if rejected.is_empty() => None,
            Err(NoRdma::NoDevice) | Ok(_) => None,
            Err(reason) => Some(format!("{} is used without RDMA: {reason}", self.name())),
        }
    }

    /// Returns the rail of an interface with these addresses.
    pub(crate) fn of_interface(
        machine: &Machine<'_>,
        interface: &str,
        mut addresses: Vec<IpNet>,
        mtu: Option<u32>,
    ) -> Self {
        addresses.sort_by_key(|address| address.addr().is_ipv6());
        let rdma = machine.rdma(interface, &addresses);
        let device = rdma.as_ref().ok().map(|place| place.device.as_str());
        let function = machine.function(Some(interface), device);
        Self { interface: Some(interface.to_owned()), addresses, mtu, rdma, ..machine.rail(function) }
    }

    /// Returns the rail of a port of InfiniBand that has no interface.
    pub(crate) fn of_port(machine: &Machine<'_>, place: DeviceGid) -> Self {
        let function = machine.function(None, Some(&place.device));
        Self { rdma: Ok(place), ..machine.rail(function) }
    }

    /// Adds facts about the NIC that the kernel does not tell.
    pub(crate) fn at_function(self, machine: &Machine<'_>, function: Function) -> Self {
        let Self { pci, numa, gpus, .. } = machine.rail(Some(function));
        Self { pci, numa, gpus, ..self }
    }
}

/// Facts about the machine that all rails share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) root: &'a Path,
    pub(crate) ports: &'a [Port],
    pub(crate) gpus: &'a [Gpu],
}

impl Machine<'_> {
    /// Returns the device and GID for the first address that has one.
    fn rdma(&self, interface: &str, addresses: &[IpNet]) -> Result<DeviceGid, NoRdma> {
        if self.ports.is_empty() {
            return Err(NoRdma::NoDevice);
        }
        let port_gid = gid::port_gid_in(self.root, interface);
        let (mut rejected, mut unopened) = (Vec::new(), None);
        for address in addresses.iter().map(IpNet::addr) {
            let choice = gid::choose(self.ports, SourceAddress { address, interface, port_gid });
            for place in choice.usable() {
                match can_open(self.root, &place.device) {
                    Ok(()) => return Ok(place.clone()),
                    Err(reason) => unopened = unopened.or_else(|| Some((place.device.clone(), reason))),
                }
            }
            let is_of_address =
                |(_, reason): &(_, Rejection)| !matches!(reason, Rejection::OtherAddress | Rejection::Second);
            rejected.extend(choice.rejected.into_iter().filter(is_of_address));
        }
        Err(match unopened {
            Some((device, reason)) => NoRdma::CannotOpen { device, reason },
            None => NoRdma::NoGid { addresses: addresses.iter().map(IpNet::addr).collect(), rejected },
        })
    }

    /// Returns the active ports of InfiniBand that none of these rails uses and this pod may open.
    pub(crate) fn bare_ports(&self, rails: &[Rail]) -> Vec<DeviceGid> {
        let is_bare = |port: &&Port| {
            let is_used = |place: &DeviceGid| port.is_of(place);
            port.link == LinkLayer::InfiniBand
                && port.state.is_ok()
                && !rails.iter().filter_map(|rail| rail.rdma.as_ref().ok()).any(is_used)
                && can_open(self.root, &port.device).is_ok()
        };
        let place = |port: &Port| {
            let entry = port.gids.first()?;
            let (device, gid) = (port.device.clone(), entry.gid);
            Some(DeviceGid { device, port: port.number, link: port.link, index: entry.index, gid })
        };
        self.ports.iter().filter(is_bare).filter_map(place).collect()
    }

    /// Returns the PCI function of a NIC: that of its RDMA device, or of the interface. Interfaces
    /// on top of another, such as macvlan's, have none.
    fn function(&self, interface: Option<&str>, device: Option<&str>) -> Option<Function> {
        let class = self.root.join("sys/class");
        let device = device.map(|device| class.join("infiniband").join(device));
        let interface = interface.map(|interface| class.join("net").join(interface));
        device.into_iter().chain(interface).find_map(|folder| Function::read(&folder.join("device")))
    }

    /// Returns a rail of which only the PCI function is known.
    fn rail(&self, function: Option<Function>) -> Rail {
        let near = |(number, gpu): (usize, &Gpu)| {
            let distance = function.as_ref()?.distance(&gpu.function);
            Some(GpuDistance { number, pci: gpu.function.path.address.clone(), distance })
        };
        let mut gpus: Vec<GpuDistance> = self.gpus.iter().enumerate().filter_map(near).collect();
        gpus.sort_by_key(|gpu| gpu.distance);
        Rail {
            interface: None,
            addresses: Vec::new(),
            network: None,
            mtu: None,
            rdma: Err(NoRdma::NoDevice),
            pci: function.as_ref().map(|function| function.path.address.clone()),
            numa: function.and_then(|function| function.numa),
            gpus,
        }
    }
}

/// Opens the device file of an RDMA device and closes it again. A pod sees devices in `/sys` whose
/// files it does not have, or may not open.
fn can_open(root: &Path, device: &str) -> Result<(), String> {
    let folder = root.join("sys/class/infiniband_verbs");
    let is_its = |name: &String| text(&folder.join(name).join("ibdev")).is_some_and(|its| its == device);
    let name = names(&folder).into_iter().find(is_its);
    let name = name.ok_or("/sys/class/infiniband_verbs has no device file of it")?;
    let file = root.join("dev/infiniband").join(&name);
    match OpenOptions::new().read(true).write(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("/dev/infiniband/{name}: {error}")),
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(network) = &self.network {
            write!(f, "{network}: ")?;
        }
        f.write_str(self.interface.as_deref().unwrap_or("no interface"))?;
        for address in &self.addresses {
            write!(f, " {address}")?;
        }
        match &self.rdma {
            Ok(DeviceGid { device, port, link: LinkLayer::InfiniBand, .. }) => {
                write!(f, ", {device} port {port} (InfiniBand)")?;
            }
            Ok(DeviceGid { device, port, index, .. }) => {
                write!(f, ", {device} port {port}, GID row {index} (RoCE v2)")?;
            }
            Err(_) => f.write_str(", no RDMA")?,
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(numa) = self.numa {
            write!(f, ", NUMA {numa}")?;
        }
        let nearest = self.gpus.first().map(|gpu| gpu.distance);
        let nearest: Vec<String> = self
            .gpus
            .iter()
            .filter(|gpu| Some(gpu.distance) == nearest)
            .map(|gpu| format!("GPU {} {}", gpu.number, gpu.distance))
            .collect();
        if nearest.is_empty() { Ok(()) } else { write!(f, "; {}", nearest.join(", ")) }
    }
}
