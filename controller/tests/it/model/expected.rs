//! Computes the specified slices, mirrors and statuses again from all objects, in a slow and plain
//! way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use multinet_crds::{Device, Endpoint, EndpointConditions, IpFamily, NetworkKind, TargetReference};
use multinet_runtime::ObjectKey;

use super::cluster::Cluster;
use super::objects::{ADDRESSES, Claim, ClaimUse, CoreService, DeviceSlice, Pod, Report, key};
use super::order::Order;
use super::services::{NetworkUse, Requirement, Service, ServiceSpec, alias};

/// A network, identified by the object that describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Network {
    pub(crate) kind: &'static str,
    /// Namespace; empty for a cluster-scoped kind.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Network {
    fn new(kind: NetworkKind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        Self { kind: kind.as_str(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the network that a service in the namespace `own` means.
    pub(crate) fn meant(network: &NetworkUse, own: &str) -> Self {
        Self::new(network.kind, network.namespace.unwrap_or(own), network.name)
    }
}

/// An interface with its addresses and networks.
struct Attachment {
    networks: Vec<Network>,
    addresses: Vec<IpAddr>,
    device: Device,
    /// Whether the interface is a device of a claim.
    is_claimed: bool,
}

/// Objects that contain pods' addresses, as an observer has them.
pub(crate) struct Sources<'a> {
    pub(crate) pods: BTreeMap<&'a ObjectKey, &'a Pod>,
    pub(crate) claims: BTreeMap<&'a ObjectKey, &'a Claim>,
    pub(crate) devices: Vec<&'a DeviceSlice>,
}

impl<'a> Sources<'a> {
    /// Returns all objects of the cluster.
    pub(crate) fn of(cluster: &'a Cluster) -> Self {
        let has_dra = cluster.has_dra;
        Self {
            pods: cluster.pods.iter().collect(),
            claims: cluster.claims.iter().filter(|_| has_dra).collect(),
            devices: cluster.devices.iter().filter(|_| has_dra).map(|(_, slice)| slice).collect(),
        }
    }

    fn attachments(&self, key: &ObjectKey, pod: &Pod) -> Vec<Attachment> {
        if matches!(pod.phase, "Failed" | "Succeeded") || pod.host_network || !pod.has_sandbox {
            return Vec::new();
        }
        let mut attachments = reported(pod, &key.namespace);
        let mut used = BTreeSet::new();
        for claim in &pod.claims {
            let (name, template) = match claim {
                ClaimUse::Direct(claim) => (*claim, None),
                ClaimUse::Template(template, Some(claim)) => (*claim, Some(*template)),
                ClaimUse::Template(_, None) => continue,
            };
            if used.insert(name)
                && let Some(claim) = self.claims.get(&super::objects::key(&key.namespace, name))
                && (claim.reserved_for.is_empty() || claim.reserved_for.contains(&pod.uid))
            {
                attachments.extend(self.claimed(claim, template, &key.namespace));
            }
        }
        attachments
    }

    fn claimed(&self, claim: &Claim, template: Option<&str>, namespace: &str) -> Vec<Attachment> {
        let mut attachments = Vec::new();
        for device in claim.devices.iter().filter(|device| device.ready != Some(false)) {
            let is_allocated = |other: &&super::objects::ClaimDevice| {
                other.is_allocated && (other.pool, other.device) == (device.pool, device.device)
            };
            let mut networks = Vec::new();
            if claim.devices.iter().any(|other| is_allocated(&other)) {
                networks.push(Network::new(NetworkKind::DeviceClass, "", claim.class));
            }
            if let Some(template) = template {
                networks.push(Network::new(NetworkKind::ResourceClaimTemplate, namespace, template));
            }
            let of_pool = || self.devices.iter().filter(|slice| slice.pool == device.pool);
            let newest = of_pool().map(|slice| slice.generation).max();
            let known = of_pool()
                .filter(|slice| Some(slice.generation) == newest)
                .find_map(|slice| slice.devices.get(device.device));
            attachments.push(Attachment {
                networks,
                addresses: meant(&device.addresses),
                device: Device {
                    interface: device.interface.map(str::to_owned),
                    rdma_device: known.map(|(rdma, _)| (*rdma).to_owned()),
                    numa_node: known.map(|(_, numa)| *numa),
                    ..Device::default()
                },
                is_claimed: true,
            });
        }
        attachments
    }

    /// Returns the addresses of a pod on a network, each with the first device that has it, and
    /// whether that device belongs to a claim.
    fn on(&self, network: &Network, key: &ObjectKey, pod: &Pod) -> BTreeMap<IpAddr, (Device, bool)> {
        let mut found = BTreeMap::new();
        for attachment in self.attachments(key, pod) {
            if attachment.networks.contains(network) {
                for address in attachment.addresses {
                    found
                        .entry(address)
                        .or_insert_with(|| (attachment.device.clone(), attachment.is_claimed));
                }
            }
        }
        found
    }

    /// Returns all addresses of a pod with their networks.
    pub(crate) fn held(&self, key: &ObjectKey, pod: &Pod) -> BTreeSet<(Network, IpAddr)> {
        let mut held = BTreeSet::new();
        for attachment in self.attachments(key, pod) {
            for network in attachment.networks {
                held.extend(attachment.addresses.iter().map(|address| (network.clone(), *address)));
            }
        }
        held
    }
}

/// Returns the addresses at these places that can be published.
fn meant(places: &[usize]) -> Vec<IpAddr> {
    let texts = places.iter().filter_map(|&place| ADDRESSES[place].1);
    texts.map(|text| text.parse().expect("an address")).collect()
}

fn reported(pod: &Pod, own: &str) -> Vec<Attachment> {
    let report = pod.report.as_ref().or(pod.old_report.as_ref());
    let Some(Report::Interfaces(interfaces)) = report else { return Vec::new() };
    let mut attachments = Vec::new();
    for (number, interface) in interfaces.iter().enumerate() {
        let device = format!("net{number}");
        let network = if let Some((namespace, name)) = interface.network.split_once('/') {
            Some((namespace, name))
        } else if interface.network.contains(' ')
            || interfaces.iter().any(|other| other.is_default && other.network == interface.network)
        {
            None
        } else {
            meaning(pod.asked, interface.network, &device, own)
                .map(|namespace| (namespace, interface.network))
        };
        let Some((namespace, name)) = network else { continue };
        attachments.push(Attachment {
            networks: vec![Network::new(NetworkKind::NetworkAttachmentDefinition, namespace, name)],
            addresses: meant(&interface.addresses),
            device: Device {
                interface: Some(device),
                mac: interface.mac.map(str::to_lowercase),
                pci_address: interface.function.map(|(pci, _)| pci.to_owned()),
                rdma_device: interface.function.map(|(_, rdma)| rdma.to_owned()),
                numa_node: None,
            },
            is_claimed: false,
        });
    }
    attachments
}

/// Returns the namespace that a bare network name of an interface refers to; `None` if several are
/// possible.
fn meaning<'a>(asked: Option<&'a str>, name: &str, interface: &str, own: &'a str) -> Option<&'a str> {
    let mut candidates = BTreeSet::new();
    for request in asked.into_iter().flat_map(|asked| asked.split(',')) {
        let (network, at) = request.split_once('@').unwrap_or((request, ""));
        let (namespace, network) = network.split_once('/').unwrap_or((own, network));
        if network == name && at == interface {
            return Some(namespace);
        }
        if network == name && at.is_empty() {
            candidates.insert(namespace);
        }
    }
    match candidates.len() {
        0 => Some(own),
        1 => candidates.pop_first(),
        _ => None,
    }
}

/// Returns whether a selector selects a pod.
pub(crate) fn selects(selector: &[Requirement], pod: &Pod) -> bool {
    selector.iter().all(|requirement| match requirement {
        Requirement::Equal(key, value) => pod.labels.get(key) == Some(value),
        Requirement::In(key, values) => pod.labels.get(key).is_some_and(|value| values.contains(value)),
        Requirement::NotIn(key, values) => pod.labels.get(key).is_none_or(|value| !values.contains(value)),
        Requirement::Exists(key) => pod.labels.contains_key(key),
        Requirement::Absent(key) => !pod.labels.contains_key(key),
    })
}

/// Returns the selector of a valid service that has one.
pub(crate) fn selector_of(spec: &ServiceSpec) -> Option<&[Requirement]> {
    spec.selector.as_deref().filter(|_| spec.flaw.is_none())
}

/// Expected state of a service.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// The service breaks a rule.
    Nothing,
    /// Others write the service's slices.
    Theirs {
        unresolved: BTreeSet<&'static str>,
    },
    Ours(Box<Ours>),
}

#[derive(Clone, Debug)]
pub(crate) struct Ours {
    /// Endpoints for every network and family in their order, by the network's alias.
    pub(crate) groups: Vec<(usize, IpFamily, Vec<Endpoint>)>,
    /// Possible reasons of condition ResolvedRefs; empty if all references resolve.
    pub(crate) unresolved: BTreeSet<&'static str>,
    /// Reason of condition AddressConflict.
    pub(crate) conflict: &'static str,
    /// Endpoints whose device details the drivers do not publish. The controller keeps earlier
    /// details.
    pub(crate) unshown: BTreeSet<(String, IpAddr)>,
    /// Number of selected pods with a sandbox and no address, by the place of the network.
    pub(crate) missing: BTreeMap<usize, u32>,
    /// Number of selected pods.
    pub(crate) pods: usize,
    /// The core Service and the mirrored endpoints by address; `None` without a mirror.
    pub(crate) mirror: Option<(&'static str, BTreeMap<IpAddr, Endpoint>)>,
}

impl Expected {
    pub(crate) fn of(cluster: &Cluster, order: &Order, name: &ObjectKey, service: &Service) -> Self {
        let spec = &service.spec;
        if spec.flaw.is_some() {
            return Self::Nothing;
        }
        let unresolved = unresolved(cluster, name, spec);
        let Some(selector) = &spec.selector else { return Self::Theirs { unresolved } };
        let sources = Sources::of(cluster);
        let mut groups = Vec::new();
        let (mut is_contested, mut is_elsewhere) = (false, false);
        let (mut unshown, mut missing) = (BTreeSet::new(), BTreeMap::new());
        let selected: Vec<(&ObjectKey, &Pod)> = (sources.pods.iter())
            .map(|(key, pod)| (*key, *pod))
            .filter(|(key, pod)| key.namespace == name.namespace && selects(selector, pod))
            .filter(|(_, pod)| !matches!(pod.phase, "Failed" | "Succeeded"))
            .collect();
        for (place, network) in spec.networks.iter().enumerate() {
            let network = Network::meant(network, &name.namespace);
            let mut present = BTreeSet::new();
            for &family in &spec.families {
                let mut endpoints = Vec::new();
                for &(key, pod) in &selected {
                    let found = sources.on(&network, key, pod).into_iter();
                    for (address, (device, is_claimed)) in
                        found.filter(|(address, _)| IpFamily::of(*address) == family)
                    {
                        let staying = order.staying(&sources, &network, address);
                        let winner = order.winner(&network, address, &key.namespace);
                        let is_winner = winner.is_some_and(|(winner, uid)| winner == key && *uid == pod.uid);
                        is_contested |= staying
                            .iter()
                            .any(|other| other.0.namespace == key.namespace && Some(*other) != winner);
                        if is_winner {
                            is_elsewhere |= staying.iter().any(|other| other.0.namespace != key.namespace);
                            if is_claimed && device.rdma_device.is_none() {
                                unshown.insert((pod.uid.clone(), address));
                            }
                            present.insert(key);
                            endpoints.push(endpoint(cluster, spec, key, pod, address, device));
                        }
                    }
                }
                groups.push((place, family, endpoints));
            }
            let lacking = selected
                .iter()
                .filter(|(key, pod)| pod.has_sandbox && !pod.is_deleted && !present.contains(key));
            missing.insert(place, lacking.count() as u32);
        }
        let conflict = match (is_contested, is_elsewhere) {
            (true, _) => "DuplicateAddress",
            (false, true) => "OtherNamespace",
            (false, false) => "NoConflict",
        };
        let mirror = mirror(cluster, name, spec, &groups);
        let pods = selected.len();
        Self::Ours(Box::new(Ours { groups, unresolved, conflict, unshown, missing, pods, mirror }))
    }
}

fn endpoint(
    cluster: &Cluster,
    spec: &ServiceSpec,
    name: &ObjectKey,
    pod: &Pod,
    address: IpAddr,
    device: Device,
) -> Endpoint {
    let serving = pod.ready == Some(true);
    let terminating = pod.is_deleted;
    let zone = pod.node.and_then(|node| cluster.nodes.get(&key("", node))).and_then(|node| node.zone);
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: EndpointConditions {
            ready: Some(spec.publishes_not_ready || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        hostname: pod.hostname.map(str::to_owned),
        node_name: pod.node.map(str::to_owned),
        zone: zone.map(str::to_owned),
        target_ref: Some(TargetReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(pod.uid.clone()),
        }),
        device: (device != Device::default()).then_some(device),
    }
}

fn unresolved(cluster: &Cluster, name: &ObjectKey, spec: &ServiceSpec) -> BTreeSet<&'static str> {
    let mut reasons = BTreeSet::new();
    for network in &spec.networks {
        let meant = Network::meant(network, &name.namespace);
        let object = key(&meant.namespace, &meant.name);
        let (is_served, exists) = match network.kind {
            NetworkKind::NetworkAttachmentDefinition => {
                (cluster.has_multus, cluster.nads.get(&object).is_some())
            }
            NetworkKind::DeviceClass => (cluster.has_dra, cluster.classes.get(&object).is_some()),
            NetworkKind::ResourceClaimTemplate => (cluster.has_dra, cluster.templates.get(&object).is_some()),
        };
        if network.kind == NetworkKind::ResourceClaimTemplate && meant.namespace != name.namespace {
            reasons.insert("NetworkNotUsable");
        } else if !is_served {
            reasons.insert("NetworkKindNotServed");
        } else if !exists {
            reasons.insert("NetworkNotFound");
        }
    }
    match spec.mirror.map(|(target, _)| cluster.core_services.get(&key(&name.namespace, target))) {
        Some(None) => drop(reasons.insert("MirrorNotFound")),
        Some(Some(target)) if *target != CoreService::Headless => drop(reasons.insert("MirrorNotUsable")),
        _ => {}
    }
    reasons
}

fn mirror(
    cluster: &Cluster,
    name: &ObjectKey,
    spec: &ServiceSpec,
    groups: &[(usize, IpFamily, Vec<Endpoint>)],
) -> Option<(&'static str, BTreeMap<IpAddr, Endpoint>)> {
    let (target, only) = spec.mirror?;
    if cluster.core_services.get(&key(&name.namespace, target)) != Some(&CoreService::Headless) {
        return None;
    }
    let mut endpoints = BTreeMap::new();
    for (place, _, group) in groups {
        for endpoint in group.iter().filter(|endpoint| endpoint.is_ready()) {
            // Kubernetes accepts no link-local addresses.
            let is_taken = !endpoint.addresses[0].starts_with("169.254.");
            if is_taken && only.is_none_or(|only| only == *place) {
                let address = endpoint.addresses[0].parse().expect("an address");
                endpoints.entry(address).or_insert_with(|| endpoint.clone());
            }
        }
    }
    Some((target, endpoints))
}

/// Returns the full reference of a network in its slices: kind, namespace, name, alias.
pub(crate) fn reference(
    place: usize,
    network: &NetworkUse,
    own: &str,
) -> (String, Option<String>, String, String) {
    let meant = Network::meant(network, own);
    let namespace = Some(meant.namespace).filter(|namespace| !namespace.is_empty());
    (meant.kind.to_owned(), namespace, meant.name, alias(place))
}

/// Returns the services that select a pod.
pub(crate) fn services_of<'a>(
    services: impl Iterator<Item = (&'a ObjectKey, &'a Service)>,
    name: &ObjectKey,
    pod: &Pod,
) -> BTreeSet<ObjectKey> {
    let selecting = services.filter(|(service, object)| {
        service.namespace == name.namespace
            && selector_of(&object.spec).is_some_and(|selector| selects(selector, pod))
    });
    selecting.map(|(service, _)| service.clone()).collect()
}
