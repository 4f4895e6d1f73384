//! Makes endpoints out of DNS records. Pure.
//!
//! ```text
//!  SRV     0 50 18515 <target>   one endpoint per target, port and pod (pods may share a name)
//!  A AAAA  <target>              addresses of the target
//!  TXT     <target> addr=… net=… facts about one address and its pod
//! ```
//!
//! Records are untrusted input. Addresses that cannot be connected to are dropped. A text counts
//! only if an A or AAAA record has its address. Too many endpoints or addresses are an error before
//! they are built. The order of the records makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::facts::Facts;
use crate::endpoint::{Endpoint, EndpointAddress, PodRef, address_label};

/// Maximum number of endpoints that a service may have.
pub(super) const MAX_ENDPOINTS: usize = 10_000;
/// Limit on the addresses of all endpoints together. An answer ends at 64 KiB, but records
/// multiply: a target with a thousand ports has all of its addresses for each of them, and a
/// thousand targets have an answer each.
const MAX_ADDRESSES: usize = 1 << 16;

/// Error: a service has more endpoints or addresses than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Target and port of an SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SrvTarget {
    /// Full name of the target in lower case, without the dot at its end.
    pub(super) target: String,
    pub(super) port: u16,
}

/// Records of an SRV record's target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetRecords {
    /// Addresses of the target, from A and AAAA records.
    pub(super) addresses: Vec<IpAddr>,
    /// Facts about the target's addresses, from TXT records.
    pub(super) facts: Vec<Facts>,
}

/// Count of the addresses of all targets of a service, which is limited.
#[derive(Debug, Default)]
pub(super) struct AddressCount(usize);

impl AddressCount {
    /// Adds a target. Its texts count like addresses: all of them are parsed, even if one counts in
    /// the end.
    pub(super) fn add(&mut self, owned: &TargetRecords) -> Result<(), TooMany> {
        self.0 += owned.addresses.len().max(owned.facts.len());
        if self.0 > MAX_ADDRESSES { Err(TooMany) } else { Ok(()) }
    }
}

/// Returns the endpoints of SRV records, sorted. `owned` has the records of each target.
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

/// Returns an endpoint for each address of a service, sorted, where only a port's number is known.
/// The host of each is the address with dashes, as multinet-dns names an endpoint without a
/// hostname.
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

/// Returns whether the texts have the same addresses as the address records, so that none is
/// missing.
pub(super) fn is_complete(owned: &TargetRecords) -> bool {
    let distinct =
        |ips: &mut dyn Iterator<Item = IpAddr>| ips.filter(is_usable).collect::<BTreeSet<IpAddr>>();
    let addresses = distinct(&mut owned.addresses.iter().copied());
    !addresses.is_empty() && addresses == distinct(&mut owned.facts.iter().map(|facts| facts.address.ip))
}

/// Returns an endpoint for each pod that has addresses under the target's name.
fn endpoints_of(service: &SrvTarget, owned: &TargetRecords) -> impl Iterator<Item = Endpoint> {
    let mut known: BTreeMap<IpAddr, &Facts> = BTreeMap::new();
    for facts in &owned.facts {
        // Of contradicting texts the smallest counts, so that their order does not matter.
        known.entry(facts.address.ip).and_modify(|other| *other = facts.min(*other)).or_insert(facts);
    }
    let distinct: BTreeSet<IpAddr> = owned.addresses.iter().copied().filter(is_usable).collect();
    let mut pods: BTreeMap<PodRef, Vec<Facts>> = BTreeMap::new();
    for ip in distinct {
        let facts = known.get(&ip).map_or_else(|| Facts::unknown(ip), |facts| (*facts).clone());
        pods.entry(identity(&facts.pod)).or_default().push(facts);
    }
    pods.into_values().map(|addresses| endpoint(service, addresses))
}

/// Returns what identifies a pod: its uid, or its name where the texts have no uid.
fn identity(pod: &PodRef) -> PodRef {
    match &pod.uid {
        Some(_) => PodRef { uid: pod.uid.clone(), ..PodRef::default() },
        None => pod.clone(),
    }
}

/// Builds the endpoint of an SRV record from the facts about its addresses, of which there is at
/// least one.
fn endpoint(service: &SrvTarget, mut addresses: Vec<Facts>) -> Endpoint {
    // Addresses on unknown networks come last.
    addresses.sort_by(|Facts { address: a, .. }, Facts { address: b, .. }| {
        (a.network.is_none(), &a.network, a.ip).cmp(&(b.network.is_none(), &b.network, b.ip))
    });
    let first = |fact: fn(&Facts) -> &Option<String>| addresses.iter().find_map(|facts| fact(facts).clone());
    let pod = PodRef {
        namespace: first(|facts| &facts.pod.namespace),
        name: first(|facts| &facts.pod.name),
        uid: first(|facts| &facts.pod.uid),
    };
    Endpoint {
        host: first_label(&service.target).to_owned(),
        target: service.target.clone(),
        port: service.port,
        node: first(|facts| &facts.node),
        zone: first(|facts| &facts.zone),
        pod: (pod != PodRef::default()).then_some(pod),
        addresses: addresses.into_iter().map(|facts| facts.address).collect(),
    }
}

fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns whether a connection to the address can be tried. An IPv4-mapped IPv6 address would
/// duplicate the IPv4 one. Unspecified and multicast addresses belong to no host.
fn is_usable(ip: &IpAddr) -> bool {
    let is_mapped = matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    !(is_mapped || ip.is_unspecified() || ip.is_multicast())
}

#[cfg(test)]
mod tests;
