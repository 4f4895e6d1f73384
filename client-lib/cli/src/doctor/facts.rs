//! Facts about DNS, the service and this machine. The module `findings` judges them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_client::gid::LinkLayer;
use multinet_client::nic::{AddressState, LinkState, Obstacle};
#[cfg(feature = "devices")]
pub(super) use multinet_client::verbs::Privileges as Process;
use multinet_client::{ResolveError, Resolved};

use super::pci::Function;

/// All facts that `multinet doctor` collects.
#[derive(Debug)]
pub(super) struct Facts {
    /// The DNS configuration and the answers of its servers, or why there is none.
    pub(super) dns: Result<Dns, ResolveError>,
    /// The service that the command line names; `None` if it names none.
    pub(super) service: Option<Service>,
    pub(super) machine: Machine,
    /// Whether connections may leave by the default network.
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
    pub(super) servers: Vec<DnsServer>,
}

/// A DNS server, and its answers to the questions of `multinet doctor`.
#[derive(Debug)]
pub(super) struct DnsServer {
    pub(super) address: SocketAddr,
    pub(super) says: ZoneAnswer,
    /// Time from the question until the server's answer, or until the resolver gave up.
    pub(super) took: Duration,
    /// Reason why it does not answer over TCP, if it answers over UDP only.
    pub(super) no_tcp: Option<String>,
}

/// Answer of a DNS server to the question whether it knows the zone of multinet.
#[derive(Debug)]
pub(super) enum ZoneAnswer {
    /// The zone exists, with this full name, to which the search path leads.
    Zone(String),
    /// The zone exists, but the search path does not lead to this full name.
    FullNameOnly(String),
    /// The server answers that the zone does not exist.
    NoZone,
    /// The server answers that it fails, or refuses to answer.
    Fails(ResolveError),
    /// The server does not answer, or cannot be reached.
    Silent(ResolveError),
}

/// The service that the command line names, its records in DNS, and the tries to reach its
/// endpoints.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) port: Option<String>,
    /// All of its ports, with all that DNS knows; absent for an address, which is not looked up.
    pub(super) records: Option<Result<Resolved, ResolveError>>,
    /// The endpoints of the port that the command line names; `None` if it names none.
    pub(super) wanted: Option<Result<Resolved, ResolveError>>,
    /// Alias of the network that `--network` names; `None` for all networks.
    pub(super) network: Option<String>,
    /// Every address of the endpoints on that network, with the result of trying it.
    pub(super) peers: Vec<Peer>,
}

/// An address of an endpoint of the service, and the result of trying it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) address: SocketAddr,
    pub(super) network: Option<String>,
    pub(super) route: Result<Route, NoRoute>,
    /// Time that the connection to the address took; `None` if no route to it may be taken.
    pub(super) connected: Option<Result<Duration, NoConnection>>,
    /// Whether the peer has answered that it offers payloads to fetch.
    pub(super) offers_payloads: bool,
    /// Size of packets that reach the address; `None` if that could not be tried.
    pub(super) mtu: Option<Mtu>,
}

/// Failure to connect to a peer.
#[derive(Debug)]
pub(super) struct NoConnection {
    /// Text of the kernel's error.
    pub(super) error: String,
    /// Likely cause of the failure; `None` if it is not known.
    pub(super) obstacle: Option<Obstacle>,
}

/// Route by which packets to a peer leave.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) interface: String,
    /// MTU of the route, in bytes, if the kernel knows it.
    pub(super) mtu: Option<u32>,
    pub(super) interface_mtu: Option<u32>,
    pub(super) is_default_network: bool,
    /// Whether the route must not be taken, as it leaves by the default network.
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

/// Result of sending packets to a peer that are as large as the route allows. Sizes are in bytes,
/// headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mtu {
    /// A packet of this size arrives in one piece.
    Passes(u32),
    /// A small packet arrives, but none of this size.
    Lost(u32),
    /// Packets of at most this size arrive, as a router on the way says.
    Smaller(u32),
    /// The peer answers neither a small packet nor one of this size.
    Silent(u32),
}

/// Facts about this machine, or pod: its NICs, RDMA devices, GPUs and locked memory.
#[derive(Debug)]
pub(super) struct Machine {
    /// The interface of the default network and the second NICs, or the reason why they cannot be
    /// read.
    pub(super) interfaces: Result<Vec<Nic>, String>,
    /// IPv4 subnets that several second NICs of this machine are in.
    pub(super) shared: Vec<SharedSubnet>,
    /// Soft and hard limit of locked memory, in bytes; `None` if they cannot be read.
    #[cfg(feature = "devices")]
    pub(super) memlock: Option<(u64, u64)>,
    #[cfg(feature = "devices")]
    pub(super) process: Process,
    /// Names of RDMA devices in `/sys/class/infiniband`.
    pub(super) rdma_devices: Vec<String>,
    /// Names of device files in `/dev/infiniband`.
    pub(super) rdma_files: Vec<String>,
    /// Success of loading libibverbs, or the reason why it fails. Absent if this build of multinet
    /// cannot load libraries.
    pub(super) verbs: Option<Result<(), FailedCall>>,
    /// The GID of each address of a second NIC, if the node has RDMA devices.
    pub(super) gids: Vec<Gid>,
    /// Mode in which network namespaces share RDMA devices, or the reason why that is not known.
    /// Absent if the kernel has no RDMA.
    pub(super) namespaces: Option<Result<Namespaces, String>>,
    /// Devices that could write to themselves, by name, and whether they take dma-bufs.
    pub(super) dma_bufs: Vec<(String, Result<DmaBuf, FailedCall>)>,
    /// The kernel module that lets RDMA devices register memory of NVIDIA's GPUs by its address, if
    /// one is loaded.
    pub(super) peermem: Option<&'static str>,
    pub(super) gpus: Gpus,
    /// The number of GPUs that CUDA finds, or the reason why it cannot be used. Absent if this pod
    /// has no GPU, or this build of multinet cannot load libraries.
    pub(super) cuda: Option<Result<u32, String>>,
    /// The PCI functions of the devices that have a GID of this pod, by name. Virtual devices have
    /// none.
    pub(super) functions: Vec<(String, Function)>,
}

/// Mode in which network namespaces share RDMA devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespaces {
    /// Each network namespace sees all RDMA devices.
    Shared,
    /// Each network namespace sees only the RDMA devices that have been moved to it.
    Exclusive,
}

/// Ability of a device to register memory of a GPU as a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "devices"), expect(dead_code, reason = "this build tries no device"))]
pub(super) enum DmaBuf {
    Taken,
    /// The device's driver cannot register a dma-buf.
    Refused,
    /// This libibverbs has no function to register a dma-buf.
    NoCall,
}

/// NVIDIA's GPUs in this node, and those of this pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Gpus {
    /// Number of NVIDIA GPUs of the node.
    pub(super) on_node: usize,
    /// NVIDIA GPUs of the node that this pod may use.
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
    /// Usable entry of an RDMA device's GID table that has the address; `None` if there is none.
    pub(super) entry: Option<Entry>,
    /// Rows with this address that cannot be used, each with the reason.
    pub(super) rejected: Vec<String>,
    /// Rows of the GID tables that have other addresses.
    pub(super) others: Vec<String>,
}

/// An entry of a device's GID table, and the result of trying it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) place: String,
    /// Name of the RDMA device that has the table.
    pub(super) device: String,
    /// Link layer of the RDMA device's port: Ethernet (RoCE) or InfiniBand.
    pub(super) link: LinkLayer,
    /// The path MTU, in bytes of payload, if the device could write to itself by this GID; or the
    /// reason why not. Absent if it could not be tried.
    pub(super) writes: Option<Result<u32, FailedCall>>,
}

/// Failure of a check of RDMA or a GPU, and its fix.
#[derive(Debug, Clone)]
pub(super) struct FailedCall {
    pub(super) what: String,
    /// Fix for the failure; `None` if none is known.
    pub(super) fix: Option<&'static str>,
}

/// A second NIC of this pod, or its interface on the default network.
#[derive(Debug, Clone)]
pub(super) struct Nic {
    pub(super) name: String,
    /// Addresses of the interface to which peers can connect.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses of the interface that cannot be used now, and their states.
    pub(super) unusable: Vec<(IpAddr, AddressState)>,
    pub(super) mtu: Option<u32>,
    pub(super) link: LinkState,
    pub(super) is_default_network: bool,
}

/// A subnet that several second NICs of this machine are in.
#[derive(Debug, Clone)]
pub(super) struct SharedSubnet {
    pub(super) network: String,
    pub(super) nics: Vec<InSubnet>,
}

/// A second NIC, with its address in a subnet that other second NICs are in, too.
#[derive(Debug, Clone)]
pub(super) struct InSubnet {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// Interface by which packets from the address leave for the subnet; `None` if that is not
    /// known.
    pub(super) leaves_by: Option<String>,
    /// Whether the NIC answers ARP requests for the addresses of the other NICs, too.
    pub(super) answers_for_all: bool,
}
