//! Facts about DNS, the service and this machine. The module `findings` judges them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_client::gid::LinkLayer;
use multinet_client::nic::{AddressState, LinkState, Obstacle};
pub(super) use multinet_client::verbs::Privileges as Process;
use multinet_client::{ResolveError, Resolved};

use super::pci::Function;

/// All facts.
#[derive(Debug)]
pub(super) struct Facts {
    /// The DNS configuration, or why there is none.
    pub(super) dns: Result<Dns, ResolveError>,
    /// The service, if one was given.
    pub(super) service: Option<Service>,
    pub(super) machine: Machine,
    /// Connections may leave by the default network.
    pub(super) allows_default_network: bool,
}

/// The DNS configuration, and what each server answered.
#[derive(Debug)]
pub(super) struct Dns {
    pub(super) search: Vec<String>,
    pub(super) ndots: usize,
    /// The name that each server was asked for, such as `svc.multinet`, which every zone of
    /// multinet has.
    pub(super) probe: String,
    pub(super) servers: Vec<Server>,
}

/// A DNS server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) says: ZoneAnswer,
    /// Time until the answer.
    pub(super) took: Duration,
    /// Reason why it does not answer over TCP, if it answers over UDP only.
    pub(super) no_tcp: Option<String>,
}

/// Answer of a DNS server about the zone.
#[derive(Debug)]
pub(super) enum ZoneAnswer {
    /// The zone exists, with this full name.
    Zone(String),
    /// The zone exists, but the search path does not lead to this full name.
    FullNameOnly(String),
    /// The zone does not exist.
    NoZone,
    /// The server fails or refuses.
    Fails(ResolveError),
    /// The server does not answer.
    Silent(ResolveError),
}

/// A service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) port: Option<String>,
    /// All of its ports, with all that DNS knows; absent for an address, which is not looked up.
    pub(super) records: Option<Result<Resolved, ResolveError>>,
    /// The endpoints of the port that was given.
    pub(super) wanted: Option<Result<Resolved, ResolveError>>,
    /// The network that was asked for.
    pub(super) network: Option<String>,
    /// Every address that is tried.
    pub(super) peers: Vec<Peer>,
}

/// An address of an endpoint, and the result of trying it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) address: SocketAddr,
    pub(super) network: Option<String>,
    pub(super) route: Result<Route, NoRoute>,
    /// Time that a connection took. Absent if no route may be taken.
    pub(super) connected: Option<Result<Duration, NoConnection>>,
    /// Absent if it could not be tried.
    pub(super) mtu: Option<Mtu>,
}

/// Failure of a connection.
#[derive(Debug)]
pub(super) struct NoConnection {
    /// The kernel's error.
    pub(super) error: String,
    /// The likely cause, if it is known.
    pub(super) obstacle: Option<Obstacle>,
}

/// The route to a peer.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) interface: String,
    /// MTU of the route, if the kernel knows it.
    pub(super) mtu: Option<u32>,
    pub(super) interface_mtu: Option<u32>,
    pub(super) is_default_network: bool,
    /// Connections must not take it.
    pub(super) is_refused: bool,
    /// Description of the second NIC that the route would use if it were up.
    pub(super) down: Option<String>,
}

/// Reason why there is no route to a peer.
#[derive(Debug)]
pub(super) enum NoRoute {
    Unreachable {
        reason: String,
        /// Description of the second NIC that the route would use if it were up.
        down: Option<String>,
    },
    Other(String),
}

/// Result of trying full-size packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mtu {
    /// A packet of this size arrives in one piece.
    Passes(u32),
    /// A small packet arrives, one of this size does not.
    Lost(u32),
    /// A router says that packets may have this size only.
    Smaller(u32),
    /// The peer answers neither a small packet nor a large one.
    Silent(u32),
}

/// This machine, or pod.
#[derive(Debug)]
pub(super) struct Machine {
    /// The interface of the default network and the second NICs, or the reason why they cannot be
    /// read.
    pub(super) interfaces: Result<Vec<Nic>, String>,
    /// Subnets that several second NICs are in.
    pub(super) shared: Vec<SharedSubnet>,
    /// Soft and hard limit of locked memory, in bytes.
    pub(super) memlock: Option<(u64, u64)>,
    pub(super) process: Process,
    /// Names in `/sys/class/infiniband`.
    pub(super) rdma_devices: Vec<String>,
    /// Names in `/dev/infiniband`.
    pub(super) rdma_files: Vec<String>,
    /// Success of loading libibverbs, or the reason why it fails.
    pub(super) verbs: Result<(), Failure>,
    /// The GID of each address of a second NIC, if the node has RDMA devices.
    pub(super) gids: Vec<Gid>,
    /// Mode in which network namespaces share RDMA devices, or the reason why that is not known.
    /// Absent if the kernel has no RDMA.
    pub(super) namespaces: Option<Result<Namespaces, String>>,
    /// Devices that could write to themselves, by name, and whether they take dma-bufs.
    pub(super) dma_bufs: Vec<(String, Result<DmaBuf, Failure>)>,
    /// The kernel module that lets RDMA devices register memory of NVIDIA's GPUs by its address, if
    /// one is loaded.
    pub(super) peermem: Option<&'static str>,
    pub(super) gpus: Gpus,
    /// The number of GPUs that CUDA finds, or the reason why it cannot be used. Absent if this pod
    /// has no GPU.
    pub(super) cuda: Option<Result<u32, String>>,
    /// The PCI functions of the devices that have a GID of this pod, by name. Virtual devices have
    /// none.
    pub(super) functions: Vec<(String, Function)>,
}

/// Mode in which network namespaces share RDMA devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespaces {
    /// Each namespace sees all devices.
    Shared,
    /// Each namespace sees the devices that have been moved to it.
    Exclusive,
}

/// Ability of a device to register memory of a GPU as a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DmaBuf {
    Taken,
    /// Its driver cannot register one.
    Refused,
    /// This libibverbs has no function for it.
    NoCall,
}

/// NVIDIA's GPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct Gpus {
    /// Number of GPUs of the node.
    pub(super) on_node: usize,
    /// GPUs that this pod may use.
    pub(super) of_pod: Vec<Function>,
}

impl Machine {
    /// Returns whether `/dev/infiniband`, which has these files, lets this pod use verbs.
    pub(super) fn has_uverbs(files: &[String]) -> bool {
        files.iter().any(|file| file.starts_with("uverbs"))
    }
}

/// The GID of an address of this pod, if an RDMA device has one.
#[derive(Debug, Clone)]
pub(super) struct Gid {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// The row of a device's GID table that has the address.
    pub(super) row: Option<Row>,
    /// Rows with this address that cannot be used, each with the reason.
    pub(super) rejected: Vec<String>,
    /// The rows with other addresses.
    pub(super) others: Vec<String>,
}

/// A row of a device's GID table, and the result of trying it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) place: String,
    /// The device that has the table.
    pub(super) device: String,
    /// Link layer of the device's port.
    pub(super) link: LinkLayer,
    /// The path MTU, in bytes of payload, if the device could write to itself by this GID; or the
    /// reason why not. Absent if it could not be tried.
    pub(super) writes: Option<Result<u32, Failure>>,
}

/// A failure, and its fix.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) what: String,
    /// Fix, if one is known.
    pub(super) fix: Option<&'static str>,
}

/// An interface.
#[derive(Debug, Clone)]
pub(super) struct Nic {
    pub(super) name: String,
    /// Addresses to which peers can connect.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses that cannot be used now, and their states.
    pub(super) unusable: Vec<(IpAddr, AddressState)>,
    pub(super) mtu: Option<u32>,
    pub(super) link: LinkState,
    pub(super) is_default_network: bool,
}

/// A subnet of several second NICs.
#[derive(Debug, Clone)]
pub(super) struct SharedSubnet {
    pub(super) network: String,
    pub(super) nics: Vec<InSubnet>,
}

/// A NIC in a subnet of several NICs.
#[derive(Debug, Clone)]
pub(super) struct InSubnet {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// The interface by which packets from the address leave for the subnet.
    pub(super) leaves_by: Option<String>,
    /// The NIC answers for the addresses of the other ones, too (ARP).
    pub(super) answers_for_all: bool,
}
