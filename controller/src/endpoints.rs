//! Endpoints of one service: the addresses of its pods on its networks (pure).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use multinet_crds::{
    Device, Endpoint, EndpointConditions, IpFamily, MultiNetworkEndpointSlice, MultiNetworkServiceSpec,
    NetworkReference, TargetReference,
};

use crate::caps::{Capped, Room, choose};
use crate::conflicts::{AddressClaim, AddressLedger, Conflict, Role};
use crate::missing::{Missing, missing_reason};
use crate::model::{Attachment, Member, Network, Pod};
use crate::name_summary::NameSummary;
use crate::slices::Group;
use crate::tally::Tally;

/// Inputs of [`collect`] other than the service and its pods.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// The addresses on all networks, with the pods that have each address.
    pub ledger: &'a AddressLedger,
    /// The topology zone of each node that has one, by the node's name.
    pub zones: &'a HashMap<String, String>,
    /// The slices of the service, which contain what is published already.
    pub slices: &'a [Arc<MultiNetworkEndpointSlice>],
    /// Number of addresses that the limits allow for the service.
    pub room: Room,
}

/// Endpoints of a service, and the facts that its status reports about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Collected {
    /// Endpoints by network and family, in the order of the spec.
    pub groups: Vec<Group>,
    /// Numbers of the service's pods that have endpoints, over all networks and on each.
    pub tally: Tally,
    /// Addresses of the service's pods that are in conflict within their namespace.
    pub conflicts: BTreeMap<(Network, IpAddr), Conflict>,
    /// Published addresses of the service that pods of other namespaces report too.
    pub elsewhere: BTreeSet<(Network, IpAddr)>,
    /// Selected pods that lack addresses, by reason and alias of the network; without an alias, the
    /// reason applies to all of the service's networks.
    pub missing: BTreeMap<(Missing, Option<String>), NameSummary>,
    /// Addresses that are left out because of limits, and the limits that apply.
    pub capped: Capped,
    /// Addresses left out of the mirror because Kubernetes rejects them in an EndpointSlice.
    pub refused: NameSummary,
    /// Number of selected pods that have not ended.
    pub pods: usize,
}

/// Whether a pod has endpoints on one network of the service, and why it lacks addresses there.
#[derive(Default)]
struct NetworkPresence {
    is_published: bool,
    is_ready: bool,
    /// Reason why the pod lacks addresses, and a detail for the message; `None` if it lacks none.
    missing: Option<(Missing, Option<String>)>,
}

/// Collects the endpoints of a service in the namespace `own`. Skips pods that have ended.
/// Endpoints are in the order of `members`.
pub(crate) fn collect<'a>(
    own: &str,
    spec: &MultiNetworkServiceSpec,
    members: impl Iterator<Item = Member<'a>>,
    inputs: Inputs<'_>,
) -> Collected {
    let families: BTreeSet<IpFamily> = spec.ip_families.iter().copied().collect();
    let mut networks: Vec<NetworkEndpoints> = (spec.networks.iter())
        .map(|reference| NetworkEndpoints {
            network: Network::referenced(reference, own),
            reference: with_defaults(reference, own),
            groups: families.iter().map(|&family| (family, Vec::new())).collect(),
            without: BTreeMap::new(),
        })
        .collect();
    let mut collected = Collected {
        tally: Tally::of(spec.networks.iter().map(NetworkReference::alias)),
        capped: Capped { caps: inputs.room.caps, ..Capped::default() },
        ..Collected::default()
    };
    let members: Vec<Member<'a>> = members.filter(|member| !member.pod.terminal).collect();
    let cache = InputCache { inputs, published: OnceCell::new(), devices: OnceCell::new() };
    let admitted = admitted(&networks, &members, &cache, &mut collected.capped);
    for (place, &member) in members.iter().enumerate() {
        collected.pods += 1;
        let mut presences = Vec::with_capacity(networks.len());
        for (number, network) in networks.iter_mut().enumerate() {
            let is_admitted = |address| {
                admitted.as_ref().is_none_or(|admitted| admitted.contains(&(place, number, address)))
            };
            presences.push(network.add_member(member, spec, &cache, &mut collected, is_admitted));
        }
        collected.note(member.pod, spec, presences);
    }
    for NetworkEndpoints { reference, groups, mut without, .. } in networks {
        for (family, endpoints) in groups {
            if let Some(pods) = without.remove(&family).filter(|_| !endpoints.is_empty()) {
                let network = (spec.networks.len() > 1).then(|| reference.alias().to_owned());
                collected.missing.insert((Missing::Family(family), network), pods);
            }
            collected.groups.push(Group { network: reference.clone(), family, endpoints });
        }
    }
    if let Some(mirror) = &spec.mirror {
        collected.refused = collected.not_mirrored(mirror.network.as_deref()).into_iter().collect();
    }
    collected
}

/// An address that may be published: index of its pod, index of its network, and the address.
type Candidate = (usize, usize, IpAddr);

/// Chooses the addresses that are published. Returns `None` if the limits allow all of them.
fn admitted(
    networks: &[NetworkEndpoints],
    members: &[Member<'_>],
    cache: &InputCache<'_>,
    capped: &mut Capped,
) -> Option<HashSet<Candidate>> {
    let (room, reason) = cache.inputs.room.most();
    // Usually this cheap upper bound of the number of addresses is within the limit.
    let reported = |member: &Member<'_>| -> usize {
        let attachments = member.interfaces.attachments.iter();
        attachments.map(|attachment| attachment.addresses.len() * attachment.networks.len()).sum()
    };
    if members.iter().map(reported).sum::<usize>() <= room {
        return None;
    }
    let mut by_age: Vec<usize> = (0..members.len()).collect();
    by_age.sort_by_key(|&place| (members[place].pod.created, &members[place].pod.key));
    let held = by_age.iter().flat_map(|&place| {
        networks.iter().enumerate().flat_map(move |(number, network)| {
            let held = network.classify(members[place], cache).held;
            held.into_iter().map(move |(address, _)| (place, number, address))
        })
    });
    let all = held.clone().count();
    if all <= room {
        return None;
    }
    capped.beyond = Some((reason, all - room));
    let is_published = |&(place, number, address): &Candidate| {
        cache.is_published(members[place].pod, networks[number].reference.alias(), address)
    };
    Some(choose(room, held, is_published))
}

/// The inputs, with lookup tables over the service's slices that are built when first used.
struct InputCache<'a> {
    inputs: Inputs<'a>,
    /// Published endpoints, as uid of the pod, alias of the network and address. Needed only if a
    /// limit leaves out addresses.
    published: OnceCell<HashSet<(&'a str, &'a str, IpAddr)>>,
    /// Devices of the published endpoints, by uid of the pod and address. Needed only for devices
    /// of claims.
    devices: OnceCell<HashMap<(&'a str, IpAddr), &'a Device>>,
}

impl<'a> InputCache<'a> {
    /// Returns whether a slice already publishes the address for the pod on the network `alias`.
    fn is_published(&self, pod: &Pod, alias: &str, address: IpAddr) -> bool {
        let published = self.published.get_or_init(|| {
            let slices = self.inputs.slices.iter();
            slices
                .flat_map(|slice| slice.spec.endpoints.iter().map(move |endpoint| (slice, endpoint)))
                .filter_map(|(slice, endpoint)| {
                    let uid = endpoint.target_ref.as_ref()?.uid.as_deref()?;
                    Some((uid, slice.spec.network.alias(), endpoint.address()?.ok()?))
                })
                .collect()
        });
        published.contains(&(pod.uid.as_str(), alias, address))
    }

    /// Returns the device that a slice already publishes with the pod's address.
    fn device(&self, pod: &Pod, address: IpAddr) -> Option<&'a Device> {
        let devices = self.devices.get_or_init(|| {
            let endpoints = self.inputs.slices.iter().flat_map(|slice| &slice.spec.endpoints);
            let devices = endpoints.filter_map(|endpoint| {
                let uid = endpoint.target_ref.as_ref()?.uid.as_deref()?;
                Some(((uid, endpoint.address()?.ok()?), endpoint.device.as_ref()?))
            });
            devices.collect()
        });
        devices.get(&(pod.uid.as_str(), address)).copied()
    }
}

/// Endpoints of the service on one of its networks, by family.
struct NetworkEndpoints {
    network: Network,
    reference: NetworkReference,
    groups: Vec<(IpFamily, Vec<Endpoint>)>,
    /// Pods that have an address on the network, but none of this family.
    without: BTreeMap<IpFamily, NameSummary>,
}

/// Addresses of a pod on one network, classified by whether they are published.
#[derive(Default)]
struct PodAddresses<'a> {
    /// Addresses to publish for the pod, up to the limit per pod.
    held: Vec<(IpAddr, &'a Attachment)>,
    /// Number of addresses left out because of the limit per pod.
    beyond: usize,
    /// Addresses of the pod that other pods have too.
    contested: Vec<IpAddr>,
    is_handed_over: bool,
    is_other_family: bool,
    /// Reason why another pod holds an address of this pod; `None` if that is not so.
    missing: Option<Missing>,
}

impl NetworkEndpoints {
    /// Sorts the addresses of a pod on this network into those to publish and those to leave out.
    fn classify<'a>(&self, member: Member<'a>, cache: &InputCache<'_>) -> PodAddresses<'a> {
        let pod = member.pod;
        let mut classified = PodAddresses::default();
        for (address, attachment) in addresses(member, &self.network) {
            let family = IpFamily::of(address);
            if self.groups.iter().all(|(known, _)| *known != family) {
                classified.is_other_family = true;
                continue;
            }
            let role = match cache.inputs.ledger.contest(&self.network, address, &pod.key) {
                None => Role::Holds,
                Some(claim) => {
                    classified.contested.push(address);
                    claim.role
                }
            };
            match role {
                Role::Holds => classified.held.push((address, attachment)),
                Role::HandsOver => classified.is_handed_over = true,
                Role::LeftOut { shares_claim: true } => classified.missing = Some(Missing::SharedClaim),
                Role::LeftOut { shares_claim: false } => classified.missing = Some(Missing::Taken),
            }
        }
        let most = cache.inputs.room.caps.pod;
        if classified.held.len() > most {
            let is_new =
                |&(address, _): &(IpAddr, _)| !cache.is_published(pod, self.reference.alias(), address);
            // The sort is stable, so new addresses stay in the order in which they were reported.
            classified.held.sort_by_key(is_new);
            classified.beyond = classified.held.drain(most..).count();
        }
        classified
    }

    /// Adds the endpoints of a pod on this network. Returns whether there are any, and why not.
    fn add_member(
        &mut self,
        member: Member<'_>,
        spec: &MultiNetworkServiceSpec,
        cache: &InputCache<'_>,
        collected: &mut Collected,
        is_admitted: impl Fn(IpAddr) -> bool,
    ) -> NetworkPresence {
        let pod = member.pod;
        let mut presence = NetworkPresence::default();
        let classified = self.classify(member, cache);
        for address in classified.contested {
            if let Some(claim) = cache.inputs.ledger.contest(&self.network, address, &pod.key) {
                collected.note_contest(&self.network, address, claim);
            }
        }
        let mut is_capped = classified.beyond > 0;
        if is_capped {
            collected.capped.beyond_pods += classified.beyond;
            collected.capped.pods.add(pod.key.name.as_str());
        }
        for (address, attachment) in classified.held {
            if !is_admitted(address) {
                is_capped = true;
                continue;
            }
            let family = IpFamily::of(address);
            if let Some((_, endpoints)) = self.groups.iter_mut().find(|(known, _)| *known == family) {
                let endpoint = endpoint(pod, address, attachment, spec, cache);
                presence.is_published = true;
                presence.is_ready |= endpoint.is_ready();
                endpoints.push(endpoint);
            }
        }
        if presence.is_published && !pod.terminating && !is_capped {
            for (family, _) in self.groups.iter().filter(|(_, endpoints)| !ends_with(endpoints, pod)) {
                self.without.entry(*family).or_default().add(pod.key.name.as_str());
            }
        }
        presence.missing = classified.missing.map(|missing| (missing, None));
        if is_capped && !presence.is_published {
            presence.missing = Some((Missing::Capped, None));
        } else if presence.is_published || (presence.missing.is_none() && !classified.is_handed_over) {
            presence.missing =
                missing_reason(member, &self.network, presence.is_published, classified.is_other_family);
        }
        presence
    }
}

/// Returns whether the last endpoint is that of `pod`.
fn ends_with(endpoints: &[Endpoint], pod: &Pod) -> bool {
    let target = endpoints.last().and_then(|endpoint| endpoint.target_ref.as_ref());
    target.is_some_and(|target| target.uid.as_ref() == Some(&pod.uid))
}

impl Collected {
    /// Counts a pod, and records why it lacks addresses. `presences` has one entry per network.
    fn note(&mut self, pod: &Pod, spec: &MultiNetworkServiceSpec, presences: Vec<NetworkPresence>) {
        // A pod that is being deleted need not have addresses any more.
        let told = presences.iter().map(|presence| presence.missing.as_ref().filter(|_| !pod.terminating));
        let told: Vec<_> = told.collect();
        let is_same = told.len() > 1 && told.iter().all(|missing| *missing == told[0]);
        for ((missing, presence), reference) in told.iter().zip(&presences).zip(&spec.networks) {
            let is_missing = !presence.is_published && missing.is_some() && pod.has_sandbox;
            self.tally.count_on_network(
                reference.alias(),
                presence.is_published,
                presence.is_ready,
                is_missing,
            );
        }
        let is_published = presences.iter().any(|presence| presence.is_published);
        let is_ready = presences.iter().any(|presence| presence.is_ready);
        self.tally.count_pod(&pod.key.name, is_published, is_ready);
        for (index, missing) in told.into_iter().enumerate() {
            let Some((reason, detail)) = missing else { continue };
            if is_same && index > 0 {
                break;
            }
            let network = (!is_same && presences.len() > 1).then(|| spec.networks[index].alias().to_owned());
            let name = match detail {
                Some(detail) => format!("{} ({detail})", pod.key.name),
                None => pod.key.name.clone(),
            };
            self.missing.entry((*reason, network)).or_default().add(name);
        }
    }

    /// Records that other pods have the same address as one of the service's pods.
    fn note_contest(&mut self, network: &Network, address: IpAddr, claim: AddressClaim<'_>) {
        let place = (network.clone(), address);
        if claim.is_elsewhere && claim.role == Role::Holds {
            self.elsewhere.insert(place.clone());
        }
        // This is called for each of the pods, with the same result.
        if !self.conflicts.contains_key(&place)
            && let Some(conflict) = claim.conflict()
        {
            self.conflicts.insert(place, conflict);
        }
    }

    /// Returns the endpoints of the service's mirror: the ready ones of the network `alias`, or of
    /// all networks, with each address once. Leaves out [those that Kubernetes
    /// rejects](is_refused_by_core), since one of them would invalidate its whole slice.
    pub(crate) fn mirrored(&self, alias: Option<&str>) -> Vec<(IpFamily, Endpoint)> {
        let endpoints = self.ready(alias).filter(|(_, endpoint)| !is_refused_by_core(endpoint));
        endpoints.map(|(family, endpoint)| (family, endpoint.clone())).collect()
    }

    /// Returns the addresses that the mirror leaves out because Kubernetes rejects them.
    fn not_mirrored(&self, alias: Option<&str>) -> Vec<&str> {
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

/// Returns whether Kubernetes rejects an EndpointSlice with this endpoint: its address is
/// link-local IPv4. (Kubernetes also rejects link-local IPv6, loopback, unspecified and multicast
/// addresses, but those never become endpoints.)
fn is_refused_by_core(endpoint: &Endpoint) -> bool {
    matches!(endpoint.address(), Some(Ok(IpAddr::V4(address))) if address.is_link_local())
}

/// Returns the reference with all defaults filled in, since readers may see a slice without its
/// service.
fn with_defaults(reference: &NetworkReference, own: &str) -> NetworkReference {
    NetworkReference {
        kind: reference.kind,
        name: reference.name.clone(),
        namespace: reference.namespace(own).map(str::to_owned),
        alias: Some(reference.alias().to_owned()),
    }
}

/// Returns the addresses of a pod on a network, each once.
fn addresses<'a>(member: Member<'a>, network: &Network) -> Vec<(IpAddr, &'a Attachment)> {
    let attachments = member.interfaces.attachments.iter();
    let attachments = attachments.filter(|attachment| attachment.networks.contains(network));
    let mut seen = HashSet::new();
    attachments
        .flat_map(|attachment| attachment.addresses.iter().map(move |&address| (address, attachment)))
        .filter(|(address, _)| seen.insert(*address))
        .collect()
}

fn endpoint(
    pod: &Pod,
    address: IpAddr,
    attachment: &Attachment,
    spec: &MultiNetworkServiceSpec,
    cache: &InputCache<'_>,
) -> Endpoint {
    let ready = spec.publish_not_ready_addresses || pod.is_ready();
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(pod.serving),
            terminating: Some(pod.terminating),
        },
        hostname: pod.hostname.clone(),
        node_name: pod.node.clone(),
        zone: pod.node.as_ref().and_then(|node| cache.inputs.zones.get(node).cloned()),
        target_ref: Some(TargetReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.key.namespace.clone()),
            name: Some(pod.key.name.clone()),
            uid: Some(pod.uid.clone()),
        }),
        device: Some(device(pod, address, attachment, cache)).filter(|device| *device != Default::default()),
    }
}

/// Returns the facts about the device. The driver may no longer publish facts about a device in
/// use; those that are published in a slice already are kept.
fn device(pod: &Pod, address: IpAddr, attachment: &Attachment, cache: &InputCache<'_>) -> Device {
    let device = attachment.device.clone();
    let known = attachment.claimed.as_ref().and_then(|_| cache.device(pod, address));
    let Some(known) = known else { return device };
    Device {
        rdma_device: device.rdma_device.or_else(|| known.rdma_device.clone()),
        pci_address: device.pci_address.or_else(|| known.pci_address.clone()),
        numa_node: device.numa_node.or(known.numa_node),
        ..device
    }
}

#[cfg(test)]
mod tests;
