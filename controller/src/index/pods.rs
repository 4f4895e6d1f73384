//! Pods with everything that relates to them: services that select them, claims, devices and
//! addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Selector;
use multinet_runtime::ObjectKey;

use super::dirty::Dirty;
use super::missing;
use crate::conflicts::{AddressLedger, Holder};
use crate::model::{Claim, DeviceId, DeviceSlice, Interfaces, Member, Network, Pod, PodClaim, Unreadable};
use crate::multimap::MultiMap;
use crate::selector::Selectors;
use crate::sources::dra::Devices;
use crate::sources::{PodClaims, SOURCES};

/// The interfaces of a pod that cannot have secondary interfaces.
static NO_INTERFACES: Interfaces = Interfaces { attachments: Vec::new(), addressless: Vec::new() };

/// All pods, with their relations to services.
///
/// Every change marks the affected services in a [`Dirty`].
#[derive(Debug, Default)]
pub(super) struct Pods {
    pub(super) pods: BTreeMap<ObjectKey, PodEntry>,
    selectors: Selectors,
    /// The networks in the spec of each service that has a selector.
    pub(super) networks: HashMap<ObjectKey, Vec<Network>>,
    /// Names of the pods that each service selects.
    members: MultiMap<ObjectKey, String>,
    by_node: MultiMap<String, ObjectKey>,
    by_claim: MultiMap<ObjectKey, ObjectKey>,
    claims: HashMap<ObjectKey, Claim>,
    /// Claims that use a device, by the names of the device's driver and pool.
    claims_by_pool: MultiMap<(String, String), ObjectKey>,
    devices: Devices,
    pub(super) ledger: AddressLedger,
}

#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) pod: Pod,
    /// Key of the pod in the ledger, shared by all of its addresses.
    pub(super) holder: Arc<Holder>,
    /// Interfaces from annotations and claims together; `None` for a pod without claims.
    joined: Option<Interfaces>,
    /// Names of the services that select the pod.
    pub(super) services: BTreeSet<String>,
}

impl PodEntry {
    pub(super) fn interfaces(&self) -> &Interfaces {
        if !self.pod.has_networks() {
            return &NO_INTERFACES;
        }
        self.joined.as_ref().unwrap_or(&self.pod.report.interfaces)
    }

    pub(super) fn addresses(&self) -> HashSet<(Network, IpAddr)> {
        let attachments = self.interfaces().attachments.iter();
        let pairs = attachments.flat_map(|attachment| {
            let networks = attachment.networks.iter();
            networks.flat_map(|network| {
                attachment.addresses.iter().map(move |&address| (network.clone(), address))
            })
        });
        pairs.collect()
    }
}

impl Pods {
    /// Adds or replaces a pod.
    pub(super) fn apply(&mut self, pod: Pod, dirty: &mut Dirty) {
        if self.pods.get(&pod.key).is_some_and(|known| known.pod.uid != pod.uid) {
            self.delete(&pod.key.clone(), dirty);
        }
        let services = self.selectors.selecting(&pod.key.namespace, &pod.labels);
        let joined = self.join(&pod);
        let key = pod.key.clone();
        let holder = Arc::new(Holder { pod: key.clone(), uid: pod.uid.clone() });
        let entry = PodEntry { pod, holder, joined, services };
        let old = self.pods.remove(&key);
        if let Some(old) = &old
            && old.pod == entry.pod
            && old.joined == entry.joined
            && old.services == entry.services
        {
            self.pods.insert(key, entry);
            return;
        }
        let has_same_endpoints = old.as_ref().is_some_and(|old| has_same_endpoints(old, &entry));
        let at = trigger(old.as_ref().map(|old| &old.pod), &entry.pod, dirty.now());
        let left = old.as_ref().map(|old| old.services.clone()).unwrap_or_default();
        dirty.mark(left.symmetric_difference(&entry.services).map(|service| key.beside(service)), at);
        if !has_same_endpoints {
            dirty.mark(entry.services.iter().map(|service| key.beside(service)), at);
        }
        if let Some(old) = &old {
            self.unrelate(old);
        }
        self.relate(&entry);
        let addresses = old.as_ref().map(PodEntry::addresses).unwrap_or_default();
        self.pods.insert(key.clone(), entry);
        self.update_ledger(&key, &addresses, at, dirty);
    }

    /// Removes a pod.
    pub(super) fn delete(&mut self, key: &ObjectKey, dirty: &mut Dirty) {
        let Some(old) = self.pods.remove(key) else { return };
        let at = dirty.now();
        dirty.mark(old.services.iter().map(|service| key.beside(service)), at);
        self.unrelate(&old);
        self.release(&old, at, dirty);
    }

    /// Removes all pods that are not in `live`.
    pub(super) fn retain(&mut self, live: &HashSet<ObjectKey>, dirty: &mut Dirty) {
        for key in missing(self.pods.keys(), live) {
            self.delete(&key, dirty);
        }
    }

    /// Sets the selector and the networks of a service; `None` if it selects no pods.
    pub(super) fn select(
        &mut self,
        service: &ObjectKey,
        selector: Option<(Selector, Vec<Network>)>,
        dirty: &mut Dirty,
    ) {
        match selector {
            Some((selector, networks)) => {
                self.selectors.insert(service, selector);
                self.networks.insert(service.clone(), networks);
            }
            None => {
                self.selectors.remove(service);
                self.networks.remove(service);
            }
        }
        let first = service.beside("");
        let pods = self.pods.range_mut((Bound::Included(first), Bound::Unbounded));
        let mut concerned = Vec::new();
        for (key, entry) in pods.take_while(|(key, _)| key.namespace == service.namespace) {
            let was_selected = entry.services.remove(&service.name);
            let is_selected = self.selectors.selects(service, &entry.pod.labels);
            if is_selected {
                entry.services.insert(service.name.clone());
                self.members.insert(service.clone(), key.name.clone());
            } else if was_selected {
                self.members.remove(service, &key.name);
            }
            if is_selected || was_selected {
                concerned.push(key.clone());
            }
        }
        self.decide_all(&concerned, dirty);
    }

    /// Returns the pods that a service selects, in the order of their names.
    pub(super) fn of<'a>(&'a self, service: &'a ObjectKey) -> impl Iterator<Item = Member<'a>> {
        let entries = self.members.of(service).filter_map(move |name| self.pods.get(&service.beside(name)));
        entries.map(|entry| Member { pod: &entry.pod, interfaces: entry.interfaces() })
    }

    /// Marks the services of a node's pods after a change of the node's zone.
    pub(super) fn node_changed(&self, node: &str, dirty: &mut Dirty) {
        let at = dirty.now();
        for key in self.by_node.of(node) {
            self.mark_services(key, at, dirty);
        }
    }

    /// Adds or replaces a ResourceClaim.
    pub(super) fn apply_claim(&mut self, claim: Claim, dirty: &mut Dirty) {
        let key = claim.key.clone();
        // Acquire before the old claim is forgotten. A device that both use thus keeps its known
        // details.
        for id in devices_of(&claim) {
            self.devices.acquire(id);
        }
        let old = self.forget_claim(&key);
        for id in devices_of(&claim) {
            self.claims_by_pool.insert((id.driver.clone(), id.pool.clone()), key.clone());
        }
        let is_news = complaint(old.as_ref()) != complaint(Some(&claim));
        self.claims.insert(key.clone(), claim);
        self.claim_changed(&key, dirty);
        if is_news {
            self.mark_users(&key, dirty);
        }
    }

    /// Removes a ResourceClaim.
    pub(super) fn delete_claim(&mut self, key: &ObjectKey, dirty: &mut Dirty) {
        let old = self.forget_claim(key);
        self.claim_changed(key, dirty);
        if complaint(old.as_ref()).is_some() {
            self.mark_users(key, dirty);
        }
    }

    /// Removes all ResourceClaims that are not in `live`.
    pub(super) fn retain_claims(&mut self, live: &HashSet<ObjectKey>, dirty: &mut Dirty) {
        for key in missing(self.claims.keys(), live) {
            self.delete_claim(&key, dirty);
        }
    }

    /// Adds or replaces a ResourceSlice.
    pub(super) fn apply_devices(&mut self, slice: DeviceSlice, dirty: &mut Dirty) {
        for pool in self.devices.apply(slice) {
            self.pool_changed(&pool, dirty);
        }
    }

    /// Removes a ResourceSlice.
    pub(super) fn delete_devices(&mut self, key: &ObjectKey, dirty: &mut Dirty) {
        if let Some(pool) = self.devices.delete(key) {
            self.pool_changed(&pool, dirty);
        }
    }

    /// Removes all ResourceSlices that are not in `live`.
    pub(super) fn retain_devices(&mut self, live: &HashSet<ObjectKey>, dirty: &mut Dirty) {
        for key in missing(self.devices.keys(), live) {
            self.delete_devices(&key, dirty);
        }
    }

    /// Returns the ledger of addresses.
    pub(super) fn ledger(&self) -> &AddressLedger {
        &self.ledger
    }

    /// Returns all pods.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|entry| &entry.pod)
    }

    /// Returns the number of pods.
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Returns a pod by its key.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Pod> {
        self.pods.get(key).map(|entry| &entry.pod)
    }

    fn relate(&mut self, entry: &PodEntry) {
        let key = &entry.pod.key;
        for service in &entry.services {
            self.members.insert(key.beside(service), key.name.clone());
        }
        if let Some(node) = &entry.pod.node {
            self.by_node.insert(node.clone(), key.clone());
        }
        for claim in &entry.pod.claims {
            self.by_claim.insert(key.beside(&claim.claim), key.clone());
        }
    }

    fn unrelate(&mut self, entry: &PodEntry) {
        let key = &entry.pod.key;
        for service in &entry.services {
            self.members.remove(&key.beside(service), &key.name);
        }
        if let Some(node) = &entry.pod.node {
            self.by_node.remove(node, key);
        }
        for claim in &entry.pod.claims {
            self.by_claim.remove(&key.beside(&claim.claim), key);
        }
    }

    fn forget_claim(&mut self, key: &ObjectKey) -> Option<Claim> {
        let claim = self.claims.remove(key)?;
        for id in devices_of(&claim) {
            self.claims_by_pool.remove(&(id.driver.clone(), id.pool.clone()), key);
            self.devices.release(id);
        }
        Some(claim)
    }

    /// Marks the services of the pods that use a claim as affected by a change.
    fn mark_users(&self, claim: &ObjectKey, dirty: &mut Dirty) {
        let at = dirty.now();
        for pod in self.by_claim.of(claim) {
            self.mark_services(pod, at, dirty);
        }
    }

    fn claim_changed(&mut self, claim: &ObjectKey, dirty: &mut Dirty) {
        let pods: Vec<ObjectKey> = self.by_claim.of(claim).cloned().collect();
        for key in pods {
            self.rejoin(&key, dirty);
        }
    }

    fn pool_changed(&mut self, pool: &(String, String), dirty: &mut Dirty) {
        let claims: Vec<ObjectKey> = self.claims_by_pool.of(pool).cloned().collect();
        for key in claims {
            for id in self.claims.get(&key).into_iter().flat_map(devices_of) {
                self.devices.refresh_facts(id);
            }
            self.claim_changed(&key, dirty);
        }
    }

    fn rejoin(&mut self, key: &ObjectKey, dirty: &mut Dirty) {
        let Some(joined) = self.pods.get(key).map(|entry| self.join(&entry.pod)) else { return };
        let Some(entry) = self.pods.get_mut(key).filter(|entry| entry.joined != joined) else { return };
        let before = entry.addresses();
        entry.joined = joined;
        let at = dirty.now();
        self.mark_services(key, at, dirty);
        self.update_ledger(key, &before, at, dirty);
    }

    /// Returns the claims of a pod: each as the pod refers to it, and the claim itself.
    pub(super) fn claims_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a PodClaim, &'a Claim)> {
        // A claim that is reserved for other pods is not this pod's, even if this pod waits for it.
        let is_its = |claim: &Claim| claim.reserved_for.is_empty() || claim.reserved_for.contains(&pod.uid);
        let claims = pod
            .claims
            .iter()
            .filter_map(|reference| Some((reference, self.claims.get(&pod.key.beside(&reference.claim))?)));
        claims.filter(move |(_, claim)| is_its(claim))
    }

    /// Merges the interfaces from a pod's annotations and claims. Returns `None` for a pod without
    /// claims.
    fn join(&self, pod: &Pod) -> Option<Interfaces> {
        if pod.claims.is_empty() {
            return None;
        }
        let facts = |id: &DeviceId| self.devices.facts(id);
        let claims = PodClaims { claims: self.claims_of(pod).collect(), facts: &facts };
        let mut interfaces = pod.report.interfaces.clone();
        SOURCES.iter().for_each(|source| source.read_claims(pod, &claims, &mut interfaces));
        Some(interfaces)
    }

    fn mark_services(&self, pod: &ObjectKey, at: Timestamp, dirty: &mut Dirty) {
        let services = self.pods.get(pod).into_iter().flat_map(|entry| &entry.services);
        dirty.mark(services.map(|service| pod.beside(service)), at);
    }
}

fn devices_of(claim: &Claim) -> impl Iterator<Item = &DeviceId> {
    claim.devices.iter().map(|device| &device.id).chain(claim.addressless.iter().map(|device| &device.id))
}

/// Returns the parts of a claim that affect notices but no endpoints; `None` if all is readable.
fn complaint(claim: Option<&Claim>) -> Option<(&Unreadable, &[String])> {
    let claim = claim?;
    Some((claim.unreadable.as_ref()?, &claim.reserved_for))
}

/// Returns whether both states of a pod result in the same endpoints. Labels may differ.
fn has_same_endpoints(old: &PodEntry, new: &PodEntry) -> bool {
    let (before, after) = (&old.pod, &new.pod);
    old.joined == new.joined
        && before.uid == after.uid
        && before.terminal == after.terminal
        && before.terminating == after.terminating
        && before.serving == after.serving
        && before.hostname == after.hostname
        && before.node == after.node
        && before.host_network == after.host_network
        && before.has_sandbox == after.has_sandbox
        && before.report == after.report
}

/// Returns the time of a pod's change, for the annotation with the trigger time of the last change.
/// As in Kubernetes, a change to or from Ready has the time of that condition's last transition.
/// Other changes carry no time, so this returns `now` for them.
fn trigger(old: Option<&Pod>, new: &Pod, now: Timestamp) -> Timestamp {
    let changed = old.is_none_or(|old| old.serving_changed != new.serving_changed);
    // A pod that has never been ready has been unready since before it had an address; that time
    // means nothing.
    let counts = changed && (new.serving || old.is_some_and(|old| old.serving));
    new.serving_changed.filter(|_| counts).map_or(now, |at| at.min(now))
}
