//! Records in, endpoints out: pure, and the only place that knows what the records of a service mean together.
//!
//! ```text
//!  SRV     0 50 18515 <target>       one endpoint per target and port, and per pod where several share a hostname
//!  A AAAA  <target>                  its addresses
//!  TXT     <target> addr=… net=…     what is known of each of them, and of the pod
//! ```
//!
//! Nothing here trusts what it reads: addresses that nobody can connect to are dropped, texts count only for
//! addresses that an A or AAAA record has, what is too much is an error before it is built, and the outcome does not
//! depend on the order of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::facts::Facts;
use crate::endpoint::{Endpoint, EndpointAddress, PodRef, address_label};

/// The most endpoints of a service.
pub(super) const MAX_ENDPOINTS: usize = 10_000;
/// The most addresses of all of them together. An answer ends at 64 KiB, but of a target with a thousand ports each has
/// all of its addresses, and a thousand targets have an answer each.
const MAX_ADDRESSES: usize = 1 << 16;

/// There are more endpoints or addresses than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// What an SRV record points at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SrvTarget {
    /// Full name in lower case, without the dot at its end.
    pub(super) target: String,
    pub(super) port: u16,
}

/// What the name of a target owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetRecords {
    /// From A and AAAA records.
    pub(super) addresses: Vec<IpAddr>,
    /// From TXT records.
    pub(super) facts: Vec<Facts>,
}

/// How much all targets of an answer own together.
#[derive(Debug, Default)]
pub(super) struct AddressCount(usize);

impl AddressCount {
    /// Adds what a target owns: addresses, and texts, which are work though not all of them count.
    pub(super) fn add(&mut self, owned: &TargetRecords) -> Result<(), TooMany> {
        self.0 += owned.addresses.len().max(owned.facts.len());
        if self.0 > MAX_ADDRESSES { Err(TooMany) } else { Ok(()) }
    }
}

/// The endpoints behind SRV records, sorted. `owned` is what is known of each target.
pub(super) fn endpoints(
    services: &[SrvTarget],
    owned: &BTreeMap<String, TargetRecords>,
) -> Result<Vec<Endpoint>, TooMany> {
    let distinct: BTreeSet<&SrvTarget> = services.iter().collect();
    let known: Vec<(&SrvTarget, &TargetRecords)> = distinct
        .into_iter()
        .filter(|service| service.port != 0)
        .filter_map(|service| Some((service, owned.get(&service.target)?)))
        .collect();
    let mut size = AddressCount::default();
    known.iter().try_for_each(|(_, owned)| size.add(owned))?;
    let mut endpoints: Vec<Endpoint> =
        known.into_iter().flat_map(|(service, owned)| endpoints_of(service, owned)).collect();
    if endpoints.len() > MAX_ENDPOINTS {
        return Err(TooMany);
    }
    endpoints.sort_unstable();
    Ok(endpoints)
}

/// The endpoints behind the addresses of a service when a port's number is all that is known: each address is one,
/// sorted. Their host is the address with dashes, which is the name of an endpoint without a hostname.
pub(super) fn endpoints_by_address(addresses: &[IpAddr], port: u16, service: &str) -> Vec<Endpoint> {
    let distinct: BTreeSet<IpAddr> = addresses.iter().copied().filter(is_usable).collect();
    let mut endpoints: Vec<Endpoint> = distinct
        .into_iter()
        .map(|ip| {
            let host = address_label(ip);
            let target = format!("{host}.{service}");
            let addresses = vec![EndpointAddress::new(ip)];
            Endpoint { host, target, port, addresses, node: None, zone: None, pod: None }
        })
        .collect();
    endpoints.sort_unstable();
    endpoints
}

/// Whether texts tell the same addresses as address records do: then neither is missing one.
pub(super) fn is_complete(owned: &TargetRecords) -> bool {
    let distinct =
        |ips: &mut dyn Iterator<Item = IpAddr>| ips.filter(is_usable).collect::<BTreeSet<IpAddr>>();
    let addresses = distinct(&mut owned.addresses.iter().copied());
    !addresses.is_empty() && addresses == distinct(&mut owned.facts.iter().map(|facts| facts.ip))
}

/// One endpoint per pod that has addresses under the name.
fn endpoints_of(service: &SrvTarget, owned: &TargetRecords) -> impl Iterator<Item = Endpoint> {
    let mut known: BTreeMap<IpAddr, &Facts> = BTreeMap::new();
    for facts in &owned.facts {
        // Of contradicting texts the smallest counts, so that their order does not.
        known.entry(facts.ip).and_modify(|other| *other = facts.min(*other)).or_insert(facts);
    }
    let distinct: BTreeSet<IpAddr> = owned.addresses.iter().copied().filter(is_usable).collect();
    let mut pods: BTreeMap<PodKey, Vec<Facts>> = BTreeMap::new();
    for ip in distinct {
        let facts = known.get(&ip).map_or_else(|| Facts::unknown(ip), |facts| (*facts).clone());
        pods.entry(PodKey::of(&facts)).or_default().push(facts);
    }
    pods.into_values().map(|addresses| endpoint(service, addresses))
}

/// What tells pods apart: the uid, or their names where texts have none.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum PodKey {
    Uid(String),
    Name(Option<String>, Option<String>),
}

impl PodKey {
    fn of(facts: &Facts) -> Self {
        match &facts.uid {
            Some(uid) => Self::Uid(uid.clone()),
            None => Self::Name(facts.namespace.clone(), facts.pod.clone()),
        }
    }
}

/// The endpoint that has these addresses, of which there is at least one.
fn endpoint(service: &SrvTarget, mut addresses: Vec<Facts>) -> Endpoint {
    // Unknown networks last.
    addresses.sort_by(|a, b| {
        (a.network.is_none(), &a.network, a.ip).cmp(&(b.network.is_none(), &b.network, b.ip))
    });
    let first = |fact: fn(&Facts) -> &Option<String>| addresses.iter().find_map(|facts| fact(facts).clone());
    let pod = PodRef {
        namespace: first(|facts| &facts.namespace),
        name: first(|facts| &facts.pod),
        uid: first(|facts| &facts.uid),
    };
    let is_known = pod.namespace.is_some() || pod.name.is_some() || pod.uid.is_some();
    Endpoint {
        host: first_label(&service.target).to_owned(),
        target: service.target.clone(),
        port: service.port,
        node: first(|facts| &facts.node),
        zone: first(|facts| &facts.zone),
        pod: is_known.then_some(pod),
        addresses: addresses.into_iter().map(address).collect(),
    }
}

fn address(facts: Facts) -> EndpointAddress {
    EndpointAddress {
        ip: facts.ip,
        network: facts.network,
        interface: facts.interface,
        mac: facts.mac,
        rdma_devices: facts.rdma_devices,
        pci: facts.pci,
        numa: facts.numa,
    }
}

fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Whether a connection to the address can be tried. An IPv4 address in IPv6's clothes would be a second way to
/// the same address; the others are nobody's.
fn is_usable(ip: &IpAddr) -> bool {
    let is_mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    !(is_mapped || ip.is_unspecified() || ip.is_multicast())
}

#[cfg(test)]
mod tests;
