//! What DNS says of the endpoints of a service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// One endpoint of a service: a pod, under the name that SRV records point at.
///
/// A pod that is replaced under the same name and address by another one is another endpoint, which
/// [`pod`](Self::pod) tells apart by its uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Endpoint {
    /// First label of [`target`](Self::target): the pod's hostname, or its address with dashes.
    pub host: String,
    /// Full name in DNS, without the dot at the end, such as
    /// `detect-infer-0.infer.vision.svc.multinet.cluster.local`.
    pub target: String,
    /// Port of the named service port.
    pub port: u16,
    /// Its addresses, at least one, one for each network and family, in the order of the networks' aliases.
    pub addresses: Vec<EndpointAddress>,
    /// Node that the pod runs on, if known.
    pub node: Option<String>,
    /// Zone of that node, if known.
    pub zone: Option<String>,
    /// The pod, if known.
    pub pod: Option<PodRef>,
}

/// One address of an endpoint, and the device that has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct EndpointAddress {
    /// The address, on a secondary network.
    pub ip: IpAddr,
    /// Alias of that network, such as `rail0`.
    pub network: Option<String>,
    /// Interface in the pod, such as `net1`.
    pub interface: Option<String>,
    /// Hardware address, with colons.
    pub mac: Option<String>,
    /// RDMA devices, such as `mlx5_2`; empty where there is none.
    pub rdma_devices: Vec<String>,
    /// PCI address of the device, such as `0000:18:00.2`.
    pub pci: Option<String>,
    /// NUMA node of the device.
    pub numa: Option<u16>,
}

/// The pod behind an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: Option<String>,
    /// Name of the pod.
    pub name: Option<String>,
    /// Uid of the pod: another pod of the same name has another one.
    pub uid: Option<String>,
}

impl Endpoint {
    /// An endpoint of which only the address is known. Its host is the address with dashes, as DNS would call it.
    pub fn at(address: SocketAddr) -> Self {
        let host = address.ip().to_string().replace(['.', ':'], "-");
        Self {
            target: host.clone(),
            host,
            port: address.port(),
            addresses: vec![EndpointAddress::new(address.ip())],
            node: None,
            zone: None,
            pod: None,
        }
    }

    /// Uid of the pod, if known.
    pub fn uid(&self) -> Option<&str> {
        self.pod.as_ref()?.uid.as_deref()
    }

    /// Its address on a network.
    pub fn on(&self, network: &str) -> impl Iterator<Item = &EndpointAddress> {
        self.addresses.iter().filter(move |address| address.network.as_deref() == Some(network))
    }
}

impl EndpointAddress {
    /// An address of which nothing else is known.
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            network: None,
            interface: None,
            mac: None,
            rdma_devices: Vec::new(),
            pci: None,
            numa: None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        match self.pod.as_ref().and_then(|pod| pod.name.as_deref()) {
            Some(pod) => write!(f, " (pod {pod})"),
            None => Ok(()),
        }
    }
}
