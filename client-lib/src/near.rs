//! Distances on the PCI bus and NUMA nodes: which NICs of this machine are near to a GPU, and which
//! networks to a peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use tracing::warn;

use crate::gid::{self, Port, SourceAddress};
use crate::nic;
use crate::pci::{Distance, Function};
use crate::transport::Rdma;

/// GPU of this process, from which the distances of NICs are measured.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    function: Function,
    rdma: Rdma,
}

/// NIC that leads to a peer, as seen from a GPU: how near, and with RDMA or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near {
    /// Distance on the PCI bus. `None` for a NIC that is not on it.
    pub(crate) distance: Option<Distance>,
    /// Whether the NIC has an RDMA device that the options of RDMA allow.
    pub(crate) has_rdma: bool,
}

/// Network that a second NIC of this pod is on, and where that NIC is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub(crate) network: IpNet,
    /// NUMA node of the NIC, if known.
    pub(crate) numa: Option<u32>,
}

/// Returns the networks of this pod's second NICs. Reads many files, so that async tasks must not
/// call it.
pub(crate) fn attached(rdma: &Rdma) -> Vec<Attached> {
    let networks = nic::second_networks().unwrap_or_else(|error| {
        warn!("cannot read this pod's networks, so that no peer counts as near by them: {error}");
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
    /// Returns the GPU, or `None` if it is not on this machine's PCI bus.
    pub(crate) fn new(gpu: &dyn multinet_memory::Gpu, rdma: Rdma) -> Option<Self> {
        let function = gpu.pci_address().and_then(Function::at);
        if function.is_none() {
            let gone = |address| format!("{address} is not in /sys/bus/pci/devices");
            let reason = gpu.pci_address().map_or_else(|| "it has no PCI address".to_owned(), gone);
            warn!(
                gpu = gpu.name(),
                "cannot tell which networks are near the GPU, so all count as equally near: {reason}"
            );
        }
        Some(Self { function: function?, rdma })
    }

    /// Returns the distance of the NIC that leads to each address, where the kernel has a route.
    /// Reads many files, so that async tasks must not call it.
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

/// Returns the ports of RDMA devices that may be used. Empty without RDMA.
fn ports(rdma: &Rdma) -> Vec<Port> {
    let mut ports = gid::local_ports().unwrap_or_default();
    rdma.retain(&mut ports);
    ports
}

/// Returns the name of the RDMA device, among these ports, that has a GID of a local address.
fn device(address: IpAddr, interface: &str, ports: &[Port]) -> Option<String> {
    let local = SourceAddress { address, interface, port_gid: gid::port_gid(interface) };
    gid::choose(ports, local).chosen.map(|place| place.device)
}

/// Returns the PCI function of a NIC: that of its RDMA device, or of the interface. Interfaces on
/// top of another, such as macvlan's, have none.
fn function(interface: &str, device: Option<&str>) -> Option<Function> {
    let device = device.map(|device| Path::new("/sys/class/infiniband").join(device));
    let interface = Path::new("/sys/class/net").join(interface);
    device.into_iter().chain([interface]).find_map(|folder| Function::read(&folder.join("device")))
}
