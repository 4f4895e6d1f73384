//! The endpoints of one service: its pods' addresses on its networks (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use multinet_crds::{
    Endpoint, EndpointConditions, EndpointCounts, IpFamily, MultiNetworkServiceSpec, NetworkReference,
    TargetReference,
};
use multinet_runtime::ObjectKey;

use crate::conflicts::{Holder, Ledger};
use crate::model::{Attachment, Network, Pod};
use crate::slices::Group;

/// A pod that the service selects, with all its interfaces on secondary networks, whoever reported them.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its interfaces.
    pub attachments: &'a [Attachment],
}

/// What endpoints depend on besides the service and its pods.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Who has which address.
    pub ledger: &'a Ledger,
    /// The zone of each node that has one.
    pub zones: &'a HashMap<String, String>,
}

/// The endpoints of a service, and what a person should know of how they came about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// One per network and family, in the order of the spec.
    pub groups: Vec<Group>,
    /// Over all groups.
    pub counts: EndpointCounts,
    /// How many of them are of pods that are being deleted.
    pub terminating: u32,
    /// Addresses of the service's pods that other pods of the same network have, too.
    pub conflicts: BTreeMap<(Network, IpAddr), Conflict>,
    /// Selected pods that are no endpoints, with the reason.
    pub left_out: Vec<(String, LeftOut)>,
    /// How many pods are selected, terminal ones apart.
    pub pods: usize,
}

/// Pods that share an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The one that is published.
    pub kept: ObjectKey,
    /// The others.
    pub left_out: Vec<ObjectKey>,
}

/// Why a selected pod is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeftOut {
    /// It has its node's network.
    HostNetwork,
    /// What is reported of its networks cannot be read.
    Unreadable,
    /// It has no address on the service's networks (yet).
    NoAddress,
}

/// Collects the endpoints of the service in namespace `own`. Terminal pods are passed over. The order of the members is
/// that of the endpoints.
pub fn collect<'a>(
    own: &str,
    spec: &MultiNetworkServiceSpec,
    members: impl Iterator<Item = Member<'a>>,
    around: Surroundings<'_>,
) -> Collected {
    let networks: Vec<(Network, NetworkReference)> = spec
        .networks
        .iter()
        .map(|reference| (Network::referenced(reference, own), resolved(reference, own)))
        .collect();
    let families: BTreeSet<IpFamily> = spec.ip_families.iter().copied().collect();
    let mut collected = Collected::default();
    let mut groups: Vec<Vec<(IpFamily, Vec<Endpoint>)>> =
        networks.iter().map(|_| families.iter().map(|&family| (family, Vec::new())).collect()).collect();
    for member in members.filter(|member| !member.pod.terminal) {
        collected.pods += 1;
        let mut has_address = false;
        for ((network, _), groups) in networks.iter().zip(&mut groups) {
            for (address, attachment) in addresses(member, network) {
                let Some((_, endpoints)) =
                    groups.iter_mut().find(|(family, _)| *family == IpFamily::of(address))
                else {
                    continue;
                };
                has_address = true;
                note_conflict(&mut collected, network, address, around.ledger);
                if is_kept(member.pod, network, address, around.ledger) {
                    endpoints.push(endpoint(member.pod, address, attachment, spec, around.zones));
                }
            }
        }
        if let Some(reason) = left_out(member.pod, has_address) {
            collected.left_out.push((member.pod.key.name.clone(), reason));
        }
    }
    for ((_, reference), groups) in networks.into_iter().zip(groups) {
        for (family, endpoints) in groups {
            count(&mut collected, &endpoints);
            collected.groups.push(Group { network: reference.clone(), family, endpoints });
        }
    }
    collected
}

impl Collected {
    /// What a mirror shows: the ready endpoints of one network, or of all of them, each address once; but for those that core
    /// [refuses](is_refused_by_core), and the whole slice with them.
    pub fn mirrored(&self, alias: Option<&str>) -> Vec<(IpFamily, Endpoint)> {
        let endpoints = self.ready(alias).filter(|(_, endpoint)| !is_refused_by_core(endpoint));
        endpoints.map(|(family, endpoint)| (family, endpoint.clone())).collect()
    }

    /// The addresses that a mirror does not show because core refuses them.
    pub fn not_mirrored(&self, alias: Option<&str>) -> Vec<&str> {
        let endpoints = self.ready(alias).filter(|(_, endpoint)| is_refused_by_core(endpoint));
        endpoints.filter_map(|(_, endpoint)| endpoint.addresses.first()).map(String::as_str).collect()
    }

    fn ready(&self, alias: Option<&str>) -> impl Iterator<Item = (IpFamily, &Endpoint)> {
        let groups =
            self.groups.iter().filter(move |group| alias.is_none_or(|alias| group.network.alias() == alias));
        let mut seen = HashSet::new();
        let endpoints =
            groups.flat_map(|group| group.endpoints.iter().map(move |endpoint| (group.family, endpoint)));
        endpoints
            .filter(|(_, endpoint)| endpoint.is_ready())
            .filter(move |(_, endpoint)| seen.insert(endpoint.addresses.first()))
    }
}

/// Whether Kubernetes takes no EndpointSlice with this endpoint: its address is link-local, in IPv4. (Neither does it take link-local
/// ones of IPv6, loopback, unspecified and multicast addresses, but those never become endpoints.)
fn is_refused_by_core(endpoint: &Endpoint) -> bool {
    matches!(endpoint.address(), Some(Ok(IpAddr::V4(address))) if address.is_link_local())
}

/// The reference with nothing left to defaults, since a slice may be read apart from its service.
fn resolved(reference: &NetworkReference, own: &str) -> NetworkReference {
    NetworkReference {
        kind: reference.kind,
        name: reference.name.clone(),
        namespace: reference.namespace(own).map(str::to_owned),
        alias: Some(reference.alias().to_owned()),
    }
}

/// The pod's addresses on a network, each once.
fn addresses<'a>(member: Member<'a>, network: &Network) -> Vec<(IpAddr, &'a Attachment)> {
    let mut found: Vec<(IpAddr, &Attachment)> = Vec::new();
    for attachment in member.attachments.iter().filter(|attachment| attachment.networks.contains(network)) {
        for &address in &attachment.addresses {
            if found.iter().all(|(known, _)| *known != address) {
                found.push((address, attachment));
            }
        }
    }
    found
}

fn is_kept(pod: &Pod, network: &Network, address: IpAddr, ledger: &Ledger) -> bool {
    let Some(Holder { pod: key, uid }) = ledger.winner(network, address) else { return false };
    *key == pod.key && *uid == pod.uid
}

fn note_conflict(collected: &mut Collected, network: &Network, address: IpAddr, ledger: &Ledger) {
    // The usual case costs one comparison.
    if ledger.contested() == 0 {
        return;
    }
    let losers: Vec<ObjectKey> = ledger.losers(network, address).map(|holder| holder.pod.clone()).collect();
    let Some(winner) = ledger.winner(network, address).filter(|_| !losers.is_empty()) else { return };
    let conflict = Conflict { kept: winner.pod.clone(), left_out: losers };
    collected.conflicts.insert((network.clone(), address), conflict);
}

fn endpoint(
    pod: &Pod,
    address: IpAddr,
    attachment: &Attachment,
    spec: &MultiNetworkServiceSpec,
    zones: &HashMap<String, String>,
) -> Endpoint {
    let ready = spec.publish_not_ready_addresses || (pod.serving && !pod.terminating);
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(pod.serving),
            terminating: Some(pod.terminating),
        },
        hostname: pod.hostname.clone(),
        node_name: pod.node.clone(),
        zone: pod.node.as_ref().and_then(|node| zones.get(node).cloned()),
        target_ref: Some(TargetReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.key.namespace.clone()),
            name: Some(pod.key.name.clone()),
            uid: Some(pod.uid.clone()),
        }),
        device: Some(attachment.device.clone()).filter(|device| *device != Default::default()),
    }
}

fn left_out(pod: &Pod, has_address: bool) -> Option<LeftOut> {
    if has_address {
        None
    } else if pod.host_network {
        Some(LeftOut::HostNetwork)
    } else if pod.reported.is_err() {
        Some(LeftOut::Unreadable)
    } else {
        Some(LeftOut::NoAddress)
    }
}

fn count(collected: &mut Collected, endpoints: &[Endpoint]) {
    let number = |of: &dyn Fn(&Endpoint) -> bool| {
        u32::try_from(endpoints.iter().filter(|endpoint| of(endpoint)).count()).unwrap_or(u32::MAX)
    };
    collected.counts.ready += number(&Endpoint::is_ready);
    collected.counts.total += number(&|_| true);
    collected.terminating += number(&|endpoint| endpoint.conditions.is_terminating());
}

#[cfg(test)]
mod tests;
