//! Checks of the cluster at rest against the expected state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{Endpoint as CoreEndpoint, EndpointSlice};
use kube::Resource;
use multinet_crds::{
    Device, Endpoint, IpFamily, MultiNetworkEndpointSlice, MultiNetworkServiceStatus, Port, labels,
};
use multinet_runtime::ObjectKey;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::json;

use super::cluster::{Cluster, OwnedSlice};
use super::expected::{Expected, Ours, reference};

use super::services::{Service, ServiceSpec, alias};
use super::simulation::{Simulation, ZONE};

type Checked = Result<(), TestCaseError>;

/// Checks slices, mirrors and statuses against the model.
pub(crate) fn check(simulation: &Simulation) -> Checked {
    let cluster = &simulation.cluster;
    for (key, service) in cluster.services.iter() {
        let expected = Expected::of(cluster, &simulation.told.order, key, service);
        if service.is_deleted {
            check_leaving(cluster, key, &expected)?;
            continue;
        }
        match &expected {
            Expected::Nothing => {}
            Expected::Theirs { .. } => {
                let slices = slices_of(cluster, key);
                let is_ours = |slice: &&&MultiNetworkEndpointSlice| {
                    slice.label(labels::MANAGED_BY) == Some(labels::MANAGED_BY_CONTROLLER)
                };
                let ours = slices.iter().filter(is_ours);
                prop_assert_eq!(ours.count(), 0, "{} has no selector", key);
                prop_assert_eq!(mirrors_of(cluster, key).len(), 0, "{} has no selector", key);
            }
            Expected::Ours(ours) => {
                check_slices(cluster, simulation.limit(), key, service, ours)?;
                check_mirrors(cluster, simulation.mirror_limit(), key, service, ours)?;
            }
        }
        check_status(cluster, key, service, &expected)?;
    }
    check_totals(simulation)?;
    for (name, slice) in cluster.slices.iter().filter(|(_, slice)| is_alive(*slice)) {
        let orphan = slice.service().is_some_and(|service| cluster.services.get(&service).is_none());
        prop_assert!(!orphan, "{} belongs to a deleted service", name);
    }
    for (name, slice) in cluster.mirrors.iter().filter(|(_, slice)| is_alive(*slice)) {
        let orphan = slice.service().is_some_and(|service| cluster.services.get(&service).is_none());
        prop_assert!(!orphan, "mirror {} belongs to a deleted service", name);
    }
    Ok(())
}

/// Checks that the metrics are correct.
fn check_totals(simulation: &Simulation) -> Checked {
    let (cluster, totals) = (&simulation.cluster, simulation.index.totals());
    let slices: Vec<_> = cluster.slices.iter().filter(|(_, slice)| slice.service().is_some()).collect();
    prop_assert_eq!(totals.pods, cluster.pods.objects.len());
    prop_assert_eq!(totals.services, cluster.services.objects.len());
    // Slices that are being deleted may be counted or not.
    let alive = slices.iter().filter(|(_, slice)| is_alive(*slice));
    prop_assert!((alive.clone().count()..=slices.len()).contains(&totals.slices), "{:?}", totals);
    let ready =
        alive.flat_map(|(_, slice)| &slice.spec.endpoints).filter(|endpoint| endpoint.is_ready()).count();
    prop_assert!(totals.ready >= ready, "{:?}", totals);
    Ok(())
}

pub(crate) fn is_alive<S: Resource>(slice: &S) -> bool {
    slice.meta().deletion_timestamp.is_none()
}

/// Returns the slices of a service that the controller manages.
pub(crate) fn slices_of<'a>(cluster: &'a Cluster, key: &ObjectKey) -> Vec<&'a MultiNetworkEndpointSlice> {
    let slices = cluster.slices.iter().map(|(_, slice)| slice);
    slices.filter(|slice| is_alive(*slice) && slice.service().as_ref() == Some(key)).collect()
}

fn mirrors_of<'a>(cluster: &'a Cluster, key: &ObjectKey) -> Vec<&'a EndpointSlice> {
    let slices = cluster.mirrors.iter().map(|(_, slice)| slice);
    slices.filter(|slice| is_alive(*slice) && slice.service().as_ref() == Some(key)).collect()
}

/// Checks a service that is being deleted: it gets no new slices, and its existing ones are
/// correct.
fn check_leaving(cluster: &Cluster, key: &ObjectKey, expected: &Expected) -> Checked {
    let Expected::Ours(ours) = expected else { return Ok(()) };
    for endpoint in slices_of(cluster, key).into_iter().flat_map(|slice| &slice.spec.endpoints) {
        let shown = shown(endpoint, ours);
        let is_true = ours.groups.iter().any(|(_, _, endpoints)| endpoints.contains(&shown));
        prop_assert!(is_true, "{} is being deleted, but has the wrong {:?}", key, endpoint);
    }
    Ok(())
}

/// Returns an endpoint without the device details that the controller only remembers.
pub(crate) fn shown(endpoint: &Endpoint, ours: &Ours) -> Endpoint {
    let mut endpoint = endpoint.clone();
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default();
    if let Some(Ok(address)) = endpoint.address()
        && ours.unshown.contains(&(uid, address))
    {
        let interface = endpoint.device.and_then(|device| device.interface);
        endpoint.device =
            interface.map(|interface| Device { interface: Some(interface), ..Device::default() });
    }
    endpoint
}

fn check_slices(cluster: &Cluster, limit: usize, key: &ObjectKey, service: &Service, ours: &Ours) -> Checked {
    let mut found: BTreeMap<(usize, IpFamily), Vec<&[Endpoint]>> = BTreeMap::new();
    for slice in slices_of(cluster, key) {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let spec = &slice.spec;
        let group = service.spec.networks.iter().enumerate().position(|(place, network)| {
            let (kind, namespace, name, alias) = reference(place, network, &key.namespace);
            let found = &spec.network;
            (found.kind.as_str(), &found.namespace, &found.name) == (&kind, &namespace, &name)
                && found.alias.as_ref() == Some(&alias)
        });
        let Some(group) = group else {
            return Err(TestCaseError::fail(format!("{key}: {name} is of {:?}", spec.network)));
        };
        prop_assert!(spec.endpoints.len() <= limit, "{}: {} is too long", key, name);
        prop_assert_eq!(ports(&spec.ports), wanted_ports(&service.spec), "{}: {}", key, name);
        let mut labels = BTreeMap::from([
            (labels::SERVICE_NAME, key.name.as_str()),
            (labels::MANAGED_BY, labels::MANAGED_BY_CONTROLLER),
        ]);
        labels.extend(service.spec.label.map(|label| ("team", label)));
        check_metadata(slice, service, &labels)?;
        found.entry((group, spec.address_type)).or_default().push(&spec.endpoints);
    }
    for (place, family, endpoints) in &ours.groups {
        let slices = found.remove(&(*place, *family)).unwrap_or_default();
        let placeholders = slices.iter().filter(|endpoints| endpoints.is_empty()).count();
        let most = usize::from(endpoints.is_empty());
        prop_assert!(placeholders <= most, "{}: {} empty slices of {:?}", key, placeholders, (place, family));
        let sorted = |endpoints: Vec<&Endpoint>| {
            let mut texts: Vec<String> =
                endpoints.iter().map(|endpoint| format!("{:?}", shown(endpoint, ours))).collect();
            texts.sort();
            texts
        };
        let found = sorted(slices.into_iter().flatten().collect());
        prop_assert_eq!(found, sorted(endpoints.iter().collect()), "{} {} {:?}", key, alias(*place), family);
    }
    prop_assert!(found.is_empty(), "{}: slices of unexpected groups: {:?}", key, found);
    Ok(())
}

fn ports(ports: &[Port]) -> BTreeSet<(&str, u16)> {
    ports.iter().map(|port| (port.name.as_str(), port.port)).collect()
}

fn wanted_ports(spec: &ServiceSpec) -> BTreeSet<(&str, u16)> {
    spec.ports.iter().copied().collect()
}

fn check_metadata<S: OwnedSlice>(slice: &S, service: &Service, labels: &BTreeMap<&str, &str>) -> Checked {
    let metadata = slice.meta();
    let found: BTreeMap<&str, &str> =
        metadata.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    prop_assert_eq!(&found, labels, "labels of {:?}", metadata.name);
    let owners: Vec<_> =
        metadata.owner_references.iter().flatten().map(|owner| (&owner.uid, owner.controller)).collect();
    prop_assert_eq!(owners, [(&service.uid, Some(true))], "owners of {:?}", metadata.name);
    Ok(())
}

/// Converts an endpoint of a mirror to ours. The fields have the same names.
fn own(endpoint: &CoreEndpoint) -> Endpoint {
    serde_json::from_value(json!(endpoint)).expect("an endpoint")
}

fn check_mirrors(
    cluster: &Cluster,
    limit: usize,
    key: &ObjectKey,
    service: &Service,
    ours: &Ours,
) -> Checked {
    let mut found: Vec<(IpAddr, Endpoint)> = Vec::new();
    let slices = mirrors_of(cluster, key);
    let Some((target, wanted)) = &ours.mirror else {
        prop_assert!(slices.is_empty(), "{} must have no mirror", key);
        return Ok(());
    };
    for slice in slices {
        let labels = BTreeMap::from([
            (labels::CORE_SERVICE_NAME, *target),
            (labels::CORE_MANAGED_BY, labels::MANAGED_BY_CONTROLLER),
            (labels::SERVICE_NAME, key.name.as_str()),
            ("service.kubernetes.io/headless", ""),
        ]);
        check_metadata(slice, service, &labels)?;
        prop_assert!(slice.endpoints.len() <= limit, "{}: {:?} is too long", key, slice.metadata.name);
        let ports: BTreeSet<(&str, u16)> = slice
            .ports
            .iter()
            .flatten()
            .map(|port| (port.name.as_deref().unwrap_or_default(), port.port.map_or(0, |port| port as u16)))
            .collect();
        prop_assert_eq!(ports, wanted_ports(&service.spec), "{}: mirror {:?}", key, slice.metadata.name);
        for endpoint in &slice.endpoints {
            prop_assert_eq!(endpoint.addresses.len(), 1);
            let address: IpAddr = endpoint.addresses[0].parse().expect("an address");
            prop_assert_eq!(IpFamily::of(address).as_str(), slice.address_type.as_str());
            found.push((address, own(endpoint)));
        }
    }
    found.sort_by_key(|(address, _)| *address);
    let of_core = |endpoint: &Endpoint| Endpoint { device: None, ..endpoint.clone() };
    let wanted: Vec<_> = wanted.iter().map(|(address, endpoint)| (*address, of_core(endpoint))).collect();
    prop_assert_eq!(found, wanted, "mirror of {}", key);
    Ok(())
}

/// Pods in a service's slices by network, and whether they are ready.
#[derive(Default)]
struct Counted(BTreeMap<String, BTreeMap<String, bool>>);

impl Counted {
    fn add(&mut self, alias: &str, endpoint: &Endpoint) {
        let target = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
        let pod =
            target.or_else(|| endpoint.hostname.clone()).unwrap_or_else(|| endpoint.addresses[0].clone());
        *self.0.entry(alias.to_owned()).or_default().entry(pod).or_default() |= endpoint.is_ready();
    }

    fn ready(&self) -> usize {
        let ready = self.0.values().flatten().filter(|(_, ready)| **ready).map(|(pod, _)| pod);
        ready.collect::<BTreeSet<_>>().len()
    }

    fn total(&self) -> usize {
        self.0.values().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>().len()
    }

    fn reason(&self) -> &'static str {
        if self.ready() > 0 { "EndpointsReady" } else { "NoneReady" }
    }
}

fn count(cluster: &Cluster, key: &ObjectKey, service: &Service, expected: &Expected) -> Counted {
    let mut counted = Counted::default();
    if let Expected::Ours(ours) = expected {
        for (place, _, endpoints) in &ours.groups {
            endpoints.iter().for_each(|endpoint| counted.add(&alias(*place), endpoint));
        }
    }
    let is_theirs = service.spec.selector.is_none();
    for (name, slice) in cluster.slices.iter() {
        let is_ours = slice.label(labels::MANAGED_BY) == Some(labels::MANAGED_BY_CONTROLLER);
        let is_foreign = match slice.service() {
            None => true,
            Some(service) => is_theirs && service == *key && !is_ours,
        };
        let is_named =
            name.namespace == key.namespace && slice.label(labels::SERVICE_NAME) == Some(&key.name);
        if is_foreign && is_named {
            let alias = slice.spec.network.alias();
            slice.spec.endpoints.iter().for_each(|endpoint| counted.add(alias, endpoint));
        }
    }
    counted
}

fn check_counts(
    key: &ObjectKey,
    status: &MultiNetworkServiceStatus,
    counted: &Counted,
    missing: &BTreeMap<usize, u32>,
) -> Checked {
    let counts = status.endpoints.map(|counts| (counts.ready as usize, counts.total as usize));
    prop_assert_eq!(counts, Some((counted.ready(), counted.total())), "{}: counts", key);
    for (place, counts) in status.networks.iter().enumerate() {
        prop_assert_eq!(&counts.alias, &alias(place), "{}", key);
        let pods = counted.0.get(&counts.alias).cloned().unwrap_or_default();
        let ready = pods.values().filter(|ready| **ready).count();
        let found = (counts.ready as usize, counts.total as usize, counts.missing);
        let wanted = (ready, pods.len(), missing.get(&place).copied().unwrap_or_default());
        prop_assert_eq!(found, wanted, "{}: {}", key, counts.alias);
    }
    Ok(())
}

fn check_status(cluster: &Cluster, key: &ObjectKey, service: &Service, expected: &Expected) -> Checked {
    let status: Option<MultiNetworkServiceStatus> =
        serde_json::from_value(service.status.clone()).expect("a status");
    let Some(status) = status else {
        return Err(TestCaseError::fail(format!("{key} has no status")));
    };
    let mut wanted: BTreeMap<&str, (&str, BTreeSet<&str>)> = BTreeMap::new();
    let refs = |unresolved: &BTreeSet<&'static str>| {
        if unresolved.is_empty() {
            ("True", BTreeSet::from(["ResolvedRefs"]))
        } else {
            ("False", unresolved.clone())
        }
    };
    match expected {
        Expected::Nothing => {
            wanted.insert("Accepted", ("False", ["Invalid"].into()));
            wanted.insert("Programmed", ("False", ["Invalid"].into()));
        }
        Expected::Theirs { unresolved } => {
            wanted.insert("Accepted", ("True", ["Accepted"].into()));
            wanted.insert("ResolvedRefs", refs(unresolved));
            wanted.insert("Programmed", ("True", ["NoSelector"].into()));
            wanted.insert("AddressConflict", ("False", ["NoConflict"].into()));
            let counted = count(cluster, key, service, expected);
            let reason = if counted.total() == 0 { "NoSlices" } else { counted.reason() };
            wanted.insert(
                "EndpointsReady",
                (if reason == "EndpointsReady" { "True" } else { "False" }, [reason].into()),
            );
            check_counts(key, &status, &counted, &BTreeMap::new())?;
        }
        Expected::Ours(ours) => {
            wanted.insert("Accepted", ("True", ["Accepted"].into()));
            wanted.insert("ResolvedRefs", refs(&ours.unresolved));
            wanted.insert("Programmed", ("True", ["Programmed"].into()));
            let is_conflict = if ours.conflict == "NoConflict" { "False" } else { "True" };
            wanted.insert("AddressConflict", (is_conflict, [ours.conflict].into()));
            let counted = count(cluster, key, service, expected);
            let reason = match (counted.total(), ours.pods) {
                (0, 0) => "NoPods",
                (0, _) => "NoAddresses",
                _ => counted.reason(),
            };
            wanted.insert(
                "EndpointsReady",
                (if reason == "EndpointsReady" { "True" } else { "False" }, [reason].into()),
            );
            check_counts(key, &status, &counted, &ours.missing)?;
        }
    }
    for (kind, (value, reasons)) in wanted {
        let of_kind: Vec<_> = status.conditions.iter().filter(|condition| condition.type_ == kind).collect();
        prop_assert_eq!(of_kind.len(), 1, "{} {}", key, kind);
        let condition = of_kind[0];
        prop_assert!(
            condition.status == value && reasons.contains(condition.reason.as_str()),
            "{} {} is {} {}, not {} {:?}",
            key,
            kind,
            condition.status,
            condition.reason,
            value,
            reasons
        );
        prop_assert_eq!(condition.observed_generation, Some(service.generation), "{} {}", key, kind);
        let is_good = (condition.status == "True") != (kind == "AddressConflict");
        prop_assert!(is_good || !condition.message.is_empty(), "{} {}: the message is empty", key, kind);
    }
    prop_assert_eq!(status.hostname, Some(format!("{}.{}.svc.{}", key.name, key.namespace, ZONE)));
    Ok(())
}
