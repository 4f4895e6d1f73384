//! Endpoints of a service, as DNS describes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

/// Endpoint of a service: a pod, under the name that SRV records point at.
///
/// A pod that replaces another one under the same name and address is another endpoint. The uid in
/// [`pod`](Self::pod) tells them apart. serde serializes it as `multinet resolve -o json` does.
///
/// # Examples
///
/// ```
/// use multinet_client::Endpoint;
///
/// // One that is known in another way than by DNS, for Connector::follow.
/// let mut endpoint = Endpoint::at("192.168.111.5:18515".parse()?);
/// endpoint.node = Some("gpu-1".to_owned());
/// assert_eq!(endpoint.to_string(), "192-168-111-5:18515");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Endpoint {
    /// First label of [`target`](Self::target): the pod's hostname, or its address with dashes.
    pub host: String,
    /// Full DNS name without the dot at its end, such as
    /// `detect-infer-0.infer.vision.svc.multinet.cluster.local`.
    pub target: String,
    /// TCP port: that of the service's named port.
    pub port: u16,
    /// Addresses; at least one. They are sorted by their networks' aliases, with one for each
    /// network and family.
    pub addresses: Vec<EndpointAddress>,
    /// Kubernetes Node that the pod runs on. `None` if DNS does not name it.
    pub node: Option<String>,
    /// Topology zone of that node. `None` if DNS does not name it.
    pub zone: Option<String>,
    /// Pod behind the endpoint. `None` if DNS does not name it.
    pub pod: Option<PodRef>,
}

/// Address of an endpoint, with the device that has it.
///
/// # Examples
///
/// ```
/// use multinet_client::{Endpoint, EndpointAddress};
///
/// let mut endpoint = Endpoint::at("192.168.111.5:18515".parse()?);
/// let mut other = EndpointAddress::new("192.168.112.5".parse()?);
/// other.rdma_devices.push("mlx5_2".to_owned());
/// endpoint.addresses.push(other);
/// assert!(endpoint.addresses.iter().any(|address| !address.rdma_devices.is_empty()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct EndpointAddress {
    /// IP address of the pod on a secondary network.
    pub ip: IpAddr,
    /// Alias of the address's network, such as `rail0`. `None` if DNS does not name it.
    pub network: Option<String>,
    /// Interface in the pod that has the address, such as `net1`. `None` if DNS does not name it.
    pub interface: Option<String>,
    /// Hardware address of the interface, with colons. `None` if DNS does not name it.
    pub mac: Option<String>,
    /// RDMA devices of the interface, such as `mlx5_2`. Empty if it has none, or none is known.
    pub rdma_devices: Vec<String>,
    /// PCI address of the interface's device, such as `0000:18:00.2`. `None` if DNS does not name
    /// it.
    pub pci: Option<String>,
    /// NUMA node of the interface's device. `None` if DNS does not name it.
    pub numa: Option<u16>,
}

/// Pod behind an endpoint.
///
/// # Examples
///
/// ```
/// use multinet_client::{Endpoint, PodRef};
///
/// let mut pod = PodRef::default();
/// pod.uid = Some("1c6f0f6e-6f0b-4c5e-9b53-3c0d7a5e1f10".to_owned());
/// let mut endpoint = Endpoint::at("192.168.111.5:18515".parse()?);
/// endpoint.pod = Some(pod); // any other pod at this address is refused now
/// assert!(endpoint.uid().is_some_and(|uid| uid.starts_with("1c6f0f6e")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct PodRef {
    /// Namespace of the pod. `None` if unknown.
    pub namespace: Option<String>,
    /// Name of the pod. `None` if unknown.
    pub name: Option<String>,
    /// Uid of the pod. A pod that replaces it under the same name has another uid.
    pub uid: Option<String>,
}

impl Endpoint {
    /// Returns an endpoint of which only the address is known. Its host is the address with dashes,
    /// as in DNS. IPv6 link-local addresses cannot be connected to, even with an interface.
    ///
    /// ```
    /// use multinet_client::Endpoint;
    ///
    /// let endpoint = Endpoint::at("[fd00:111::5]:18515".parse()?);
    /// assert_eq!((&*endpoint.host, endpoint.port), ("fd00-111--5", 18515));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at(address: SocketAddr) -> Self {
        let host = address_label(address.ip());
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

    /// Returns the uid of the pod, if known.
    ///
    /// ```
    /// use multinet_client::Endpoint;
    ///
    /// fn is_replaced(before: &Endpoint, now: &Endpoint) -> bool {
    ///     // Only uids that are known tell pods apart.
    ///     before.uid().zip(now.uid()).is_some_and(|(before, now)| before != now)
    /// }
    /// let endpoint = Endpoint::at("192.168.111.5:18515".parse()?);
    /// assert!(!is_replaced(&endpoint, &endpoint));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn uid(&self) -> Option<&str> {
        self.pod.as_ref()?.uid.as_deref()
    }

    /// Returns the addresses on a network.
    ///
    /// ```
    /// use multinet_client::Endpoint;
    ///
    /// let mut endpoint = Endpoint::at("192.168.111.5:18515".parse()?);
    /// endpoint.addresses[0].network = Some("rail0".to_owned());
    /// assert_eq!(endpoint.on("rail0").count(), 1);
    /// assert!(endpoint.on("rail1").next().is_none(), "its pod is not attached to rail1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(&self, network: &str) -> impl Iterator<Item = &EndpointAddress> {
        self.addresses.iter().filter(move |address| address.network.as_deref() == Some(network))
    }
}

impl EndpointAddress {
    /// Returns an address of which nothing else is known.
    ///
    /// ```
    /// use multinet_client::EndpointAddress;
    ///
    /// let mut address = EndpointAddress::new("192.168.111.5".parse()?);
    /// address.network = Some("rail0".to_owned()); // for ConnectorBuilder::network
    /// assert!(address.rdma_devices.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

/// Returns the label of an endpoint without a hostname: its address with `-` in place of `.` and
/// `:`, and with a `0` where it would begin or end with `-`.
pub(crate) fn address_label(ip: IpAddr) -> String {
    let mut label = ip.to_string().replace(['.', ':'], "-");
    if label.starts_with('-') {
        label.insert(0, '0');
    }
    if label.ends_with('-') {
        label.push('0');
    }
    label
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_hostname_is_named_by_its_address() {
        for (address, host) in
            [("10.0.0.9:1", "10-0-0-9"), ("[::1]:1", "0--1"), ("[fd00::]:1", "fd00--0"), ("[::]:1", "0--0")]
        {
            assert_eq!(Endpoint::at(address.parse().unwrap()).host, host);
        }
    }
}
