//! This pod's own view: its rails, and which endpoint of a service it is.

use std::io;

use multinet_rails::{Pod, Rail, Sources};

use crate::endpoint::Endpoint;
use crate::resolve::Resolved;

/// Returns the facts about this pod: its rails, each with interface, addresses, network, RDMA
/// device, GID row and nearest GPUs.
///
/// The aliases of networks come from files in the container, if these exist; those that a service
/// has come from [`Resolved::name_rails`]. Reads some hundred small files, so that async tasks must
/// call it by `spawn_blocking`.
///
/// ```no_run
/// # async fn example(
/// #     resolver: &multinet_client::Resolver,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut pod = multinet_client::local()?;
/// resolver.resolve("infer.vision.svc.multinet", "rdma").await?.name_rails(&mut pod);
/// for rail in &pod.rails {
///     println!("{rail}");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The kernel's, if it does not list interfaces or RDMA devices.
pub fn local() -> io::Result<Pod> {
    Pod::read(&Sources::default())
}

impl Resolved {
    /// Returns the endpoint that is this pod: one that has an address of its rails. `None` if the
    /// service does not have this pod.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     resolver: &multinet_client::Resolver,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let pod = multinet_client::local()?;
    /// let service = resolver.resolve("train.vision.svc.multinet", "rdma").await?;
    /// println!("this pod is {:?}", service.own(&pod).map(|endpoint| &endpoint.host));
    /// # Ok(()) }
    /// ```
    pub fn own(&self, pod: &Pod) -> Option<&Endpoint> {
        let is_own = |endpoint: &&Endpoint| {
            let mut addresses = endpoint.addresses.iter();
            addresses.any(|address| pod.rails.iter().any(|rail| has(rail, address.ip)))
        };
        self.endpoints.iter().find(is_own)
    }

    /// Gives the rails of this pod the aliases that the service has for their networks.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     resolver: &multinet_client::Resolver,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut pod = multinet_client::local()?;
    /// resolver.resolve("train.vision.svc.multinet", "rdma").await?.name_rails(&mut pod);
    /// # Ok(()) }
    /// ```
    pub fn name_rails(&self, pod: &mut Pod) {
        let addresses = || self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        for rail in &mut pod.rails {
            let alias = addresses().find(|its| has(rail, its.ip)).and_then(|its| its.network.clone());
            rail.network = alias.or_else(|| rail.network.take());
        }
    }
}

fn has(rail: &Rail, ip: std::net::IpAddr) -> bool {
    rail.addresses.iter().any(|own| own.addr() == ip)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use multinet_rails::nic::{Address, Interface, own_addresses};

    use super::*;
    use crate::endpoint::EndpointAddress;

    fn endpoint(host: &str, ip: &str, alias: Option<&str>) -> Endpoint {
        let mut endpoint = Endpoint::at((ip.parse::<std::net::IpAddr>().unwrap(), 18515).into());
        endpoint.host = host.to_owned();
        let mut address = EndpointAddress::new(ip.parse().unwrap());
        address.network = alias.map(str::to_owned);
        endpoint.addresses = vec![address];
        endpoint
    }

    #[test]
    fn a_service_tells_which_endpoint_is_this_pod_and_the_aliases_of_its_rails() {
        let mut interfaces = [Interface::new("net1", 3), Interface::new("net2", 4)];
        interfaces[0].addresses = vec![Address::new("192.168.111.5/24".parse().unwrap())];
        interfaces[1].addresses = vec![Address::new("192.168.112.5/24".parse().unwrap())];
        let mut sources = Sources::default();
        sources.root = "/nonexistent".into();
        let mut pod = Pod::of(&interfaces, &own_addresses(&interfaces), &sources).unwrap();
        pod.rails[1].network = Some("from-a-file".to_owned());
        let resolved = |endpoints| Resolved { name: "train".to_owned(), endpoints, ttl: Duration::ZERO };

        let others = resolved(vec![endpoint("worker-0", "192.168.111.4", Some("rail0"))]);
        assert_eq!(others.own(&pod), None);
        let service = resolved(vec![
            endpoint("worker-0", "192.168.111.4", Some("rail0")),
            endpoint("worker-1", "192.168.111.5", Some("rail0")),
        ]);
        assert_eq!(service.own(&pod).map(|endpoint| endpoint.host.as_str()), Some("worker-1"));
        service.name_rails(&mut pod);
        let aliases: Vec<_> = pod.rails.iter().map(|rail| rail.network.as_deref()).collect();
        assert_eq!(aliases, [Some("rail0"), Some("from-a-file")]);
    }
}
