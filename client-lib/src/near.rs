//! Which NICs of this machine are near: to a GPU, and to a peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use tracing::warn;

use crate::gid::{self, Local, Port};
use crate::nic;
use crate::pci::{Distance, Function};
use crate::transport::Rdma;

/// A GPU that NICs are near to or far from.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    function: Function,
    rdma: Rdma,
}

/// The NIC that leads to a peer, seen from a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near {
    /// Not known of devices that are not on the PCI bus.
    pub(crate) distance: Option<Distance>,
    /// Whether frames can leave by RDMA there.
    pub(crate) has_rdma: bool,
}

/// A network that a second NIC of this pod is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub(crate) network: IpNet,
    /// The NUMA node of the NIC.
    pub(crate) numa: Option<u32>,
}

/// The networks that this pod's second NICs are on. It reads many files: not for an async task.
pub(crate) fn attached(rdma: &Rdma) -> Vec<Attached> {
    let networks = nic::second_networks().unwrap_or_else(|error| {
        warn!("peers on a network of this pod's count as no nearer than others: {error}");
        Vec::new()
    });
    let ports = ports(rdma);
    let attached = networks.into_iter().map(|(local, network)| {
        let function = function(&local.interface, device(local.ip, &local.interface, &ports).as_deref());
        Attached { network, numa: function.and_then(|function| function.numa) }
    });
    attached.collect()
}

impl Gpu {
    /// None if it is nowhere on this machine's PCI bus.
    pub(crate) fn new(gpu: &dyn multinet_memory::Gpu, rdma: Rdma) -> Option<Self> {
        let function = gpu.pci_address().and_then(Function::at);
        if function.is_none() {
            let gone = |address| format!("{address} is not in /sys/bus/pci/devices");
            let reason = gpu.pci_address().map_or_else(|| "it has no PCI address".to_owned(), gone);
            warn!(gpu = gpu.name(), "no network is nearer to the GPU than others: {reason}");
        }
        Some(Self { function: function?, rdma })
    }

    /// How far the NIC is that leads to each of these addresses, as far as it is known. It reads many files: not for an async task.
    pub(crate) fn distances(&self, peers: Vec<IpAddr>) -> HashMap<IpAddr, Near> {
        let ports = ports(&self.rdma);
        let near = |peer| {
            let route = nic::route_to(peer).ok()?;
            let device = device(route.source, &route.interface, &ports);
            let function = function(&route.interface, device.as_deref());
            let distance = function.map(|function| self.function.distance(&function));
            Some((peer, Near { distance, has_rdma: device.is_some() }))
        };
        peers.into_iter().filter_map(near).collect()
    }
}

/// Those that may be used; none where there is no RDMA.
fn ports(rdma: &Rdma) -> Vec<Port> {
    let mut ports = gid::local_ports().unwrap_or_default();
    rdma.retain(&mut ports);
    ports
}

/// The RDMA device of a local address.
fn device(address: IpAddr, interface: &str, ports: &[Port]) -> Option<String> {
    let local = Local { address, interface, port_gid: gid::port_gid(interface) };
    gid::choose(ports, local).chosen.map(|place| place.device)
}

/// The function of a NIC: of its RDMA device, or of the interface itself. Those that are made of others, such as macvlan's, have none of their own.
fn function(interface: &str, device: Option<&str>) -> Option<Function> {
    let device = device.map(|device| Path::new("/sys/class/infiniband").join(device));
    let interface = Path::new("/sys/class/net").join(interface);
    device.into_iter().chain([interface]).find_map(|folder| Function::read(&folder.join("device")))
}
