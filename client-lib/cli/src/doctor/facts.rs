//! What there is to know, as the machine tells it. What it means is said in `findings`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_client::gid::LinkLayer;
use multinet_client::nic::{AddressState, LinkState, Obstacle};
pub(super) use multinet_client::verbs::Privileges as Process;
use multinet_client::{ResolveError, Resolved};

use super::pci::Function;

/// All of it.
#[derive(Debug)]
pub(super) struct Facts {
    /// The DNS configuration, or why there is none.
    pub(super) dns: Result<Dns, ResolveError>,
    /// The service, if one was given.
    pub(super) service: Option<Service>,
    pub(super) machine: Machine,
    /// Whether connections may leave by the default network.
    pub(super) allows_default_network: bool,
}

/// Whom names are asked of.
#[derive(Debug)]
pub(super) struct Dns {
    pub(super) search: Vec<String>,
    pub(super) ndots: usize,
    /// What each of them was asked for, such as `svc.multinet`, which every zone of multinet has.
    pub(super) probe: String,
    pub(super) servers: Vec<Server>,
}

/// A DNS server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) says: ZoneAnswer,
    /// How long it took.
    pub(super) took: Duration,
    /// Why it does not answer over TCP, if it answers over UDP only.
    pub(super) no_tcp: Option<String>,
}

/// What a DNS server says of the zone.
#[derive(Debug)]
pub(super) enum ZoneAnswer {
    /// It is there, under this full name.
    Zone(String),
    /// It is there, but the search path does not lead to this full name.
    FullNameOnly(String),
    /// There is no such zone.
    NoZone,
    /// It cannot or will not say.
    Fails(ResolveError),
    /// Nothing.
    Silent(ResolveError),
}

/// A service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) port: Option<String>,
    /// All of its ports, with all that is known; absent for an address, which DNS was not asked for.
    pub(super) records: Option<Result<Resolved, ResolveError>>,
    /// The port that was given.
    pub(super) wanted: Option<Result<Resolved, ResolveError>>,
    /// The network that was asked for.
    pub(super) network: Option<String>,
    /// Every address to be connected to.
    pub(super) peers: Vec<Peer>,
}

/// An address of an endpoint, and what came of trying it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) address: SocketAddr,
    pub(super) network: Option<String>,
    pub(super) route: Result<Route, NoRoute>,
    /// How long a connection took. Absent where there is no way that may be taken.
    pub(super) connected: Option<Result<Duration, NoConnection>>,
    /// Absent where nothing can be known.
    pub(super) mtu: Option<Mtu>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct NoConnection {
    /// The kernel's error.
    pub(super) error: String,
    /// The likely cause, if it is known.
    pub(super) obstacle: Option<Obstacle>,
}

/// The way to a peer.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) interface: String,
    /// As far as the kernel knows.
    pub(super) mtu: Option<u32>,
    pub(super) interface_mtu: Option<u32>,
    pub(super) is_default_network: bool,
    /// Connections may not take it.
    pub(super) is_refused: bool,
    /// The second NIC that would be the way if it were up, in words.
    pub(super) down: Option<String>,
}

/// Why there is no way to a peer.
#[derive(Debug)]
pub(super) enum NoRoute {
    Unreachable {
        reason: String,
        /// The second NIC that would be the way if it were up, in words.
        down: Option<String>,
    },
    Other(String),
}

/// What full-size packets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mtu {
    /// One of this size got there in one piece.
    Passes(u32),
    /// A small one gets there, one of this size does not.
    Lost(u32),
    /// The network says that packets may only have this size.
    Smaller(u32),
    /// Nothing comes back, neither for a small one nor for a large one.
    Silent(u32),
}

/// This machine, or pod.
#[derive(Debug)]
pub(super) struct Machine {
    /// The interface of the default network and the second NICs, or why they cannot be read.
    pub(super) interfaces: Result<Vec<Nic>, String>,
    /// Subnets that several second NICs are in.
    pub(super) shared: Vec<SharedSubnet>,
    /// Soft and hard limit of locked memory, in octets.
    pub(super) memlock: Option<(u64, u64)>,
    pub(super) process: Process,
    /// `/sys/class/infiniband`.
    pub(super) rdma_devices: Vec<String>,
    /// `/dev/infiniband`.
    pub(super) rdma_files: Vec<String>,
    /// Whether libibverbs can be loaded.
    pub(super) verbs: Result<(), Failure>,
    /// Of each address of a second NIC, if there are RDMA devices.
    pub(super) gids: Vec<Gid>,
    /// How network namespaces share RDMA devices, or why that is not known. Absent where the kernel has no RDMA.
    pub(super) namespaces: Option<Result<Namespaces, String>>,
    /// Of each device that could write to itself, by name: whether it takes dma-bufs.
    pub(super) dma_bufs: Vec<(String, Result<DmaBuf, Failure>)>,
    /// The kernel module by which RDMA knows the addresses of NVIDIA's GPUs, if one is loaded.
    pub(super) peermem: Option<&'static str>,
    pub(super) gpus: Gpus,
    /// How many GPUs CUDA finds, or why it cannot be used. Nobody asks where this pod has none.
    pub(super) cuda: Option<Result<u32, String>>,
    /// The PCI functions of the devices that have a row for this pod, by name. Virtual devices have none.
    pub(super) functions: Vec<(String, Function)>,
}

/// How network namespaces share RDMA devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespaces {
    /// Each sees all devices.
    Shared,
    /// Each sees those that have been moved to it.
    Exclusive,
}

/// Whether a device can register memory of a GPU as a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DmaBuf {
    Taken,
    /// Its driver cannot.
    Refused,
    /// This libibverbs has no call for it.
    NoCall,
}

/// NVIDIA's GPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct Gpus {
    /// How many the node has.
    pub(super) on_node: usize,
    /// Those that this pod may use.
    pub(super) of_pod: Vec<Function>,
}

impl Machine {
    /// Whether `/dev/infiniband`, which has these files, lets this pod use verbs.
    pub(super) fn has_uverbs(files: &[String]) -> bool {
        files.iter().any(|file| file.starts_with("uverbs"))
    }
}

/// What an address is to RDMA.
#[derive(Debug, Clone)]
pub(super) struct Gid {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// The row of a device's GID table that stands for it.
    pub(super) row: Option<Row>,
    /// Rows of this address that cannot be used, each with the reason.
    pub(super) rejected: Vec<String>,
    /// All other rows that there are: those of other addresses.
    pub(super) others: Vec<String>,
}

/// A row of a device's GID table, and what came of trying it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) place: String,
    /// The device that it is of.
    pub(super) device: String,
    /// What lies below its port.
    pub(super) link: LinkLayer,
    /// The path MTU, in bytes of payload, of a device that could write to itself by this GID; or why it could not. Absent where it
    /// could not be tried.
    pub(super) writes: Option<Result<u32, Failure>>,
}

/// What fails.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) what: String,
    /// What to do about it, if that is known.
    pub(super) fix: Option<&'static str>,
}

/// An interface.
#[derive(Debug, Clone)]
pub(super) struct Nic {
    pub(super) name: String,
    /// Those that others can connect to.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses that cannot be used now, and why not.
    pub(super) unusable: Vec<(IpAddr, AddressState)>,
    pub(super) mtu: Option<u32>,
    pub(super) link: LinkState,
    pub(super) is_default_network: bool,
}

/// A subnet that several second NICs are in.
#[derive(Debug, Clone)]
pub(super) struct SharedSubnet {
    pub(super) network: String,
    pub(super) nics: Vec<InSubnet>,
}

/// A NIC in a subnet that others are in, too.
#[derive(Debug, Clone)]
pub(super) struct InSubnet {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// The interface by which packets from that address leave for the subnet.
    pub(super) leaves_by: Option<String>,
    /// It answers for the addresses of the other ones, too (ARP).
    pub(super) answers_for_all: bool,
}
