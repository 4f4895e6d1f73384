//! The index: all objects that the controller reads, and what is to be done about them (pure).
//!
//! ```text
//!   Pods ───────────────────┐ selectors, claims, devices, addresses
//!   Nodes (zones) ──────────┤
//!   networks, Services ─────┼──> dirty services ── commit ──> queue ──> work ──> Plan
//!   MultiNetworkServices ───┤                                    └─ written ─> outcome ──> status, notices
//!   slices, mirrors ────────┘ <── what the API server answered
//! ```
//!
//! The watches feed it through [`Index`](multinet_runtime::Index); workers ask it for [`work`](ClusterIndex::work) and tell it what came of that. One lock is
//! around everything, held for one object or one service at a time. The only clock is the one that is passed in.

mod decide;
mod dirty;
mod feed;
mod foreign_slices;
mod holders;
mod owned_slices;
mod pods;
mod refs;
mod room;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Selector;
use multinet_crds::validate::{Violation, validate};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, MultiNetworkServiceStatus};
use multinet_runtime::ObjectKey;
use serde_json::json;

use self::dirty::Dirty;
use self::foreign_slices::ForeignSlices;
use self::owned_slices::{OwnedSlices, is_newer, supersedes};
use self::pods::Pods;
use self::refs::References;
use crate::caps::{Caps, Counts};
use crate::conflicts::Holder;
use crate::mirror;
use crate::model::Network;
use crate::queue::Queue;
use crate::slices::{self, SliceId};
use crate::status::Evaluation;
use crate::work::{OptionalApi, Outcome, Work};

/// What the decisions depend on besides objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The zone of `status.hostname`.
    pub zone: String,
    /// How many endpoints a slice may have.
    pub limit: usize,
    /// How many a mirror's slice may have.
    pub mirror_limit: usize,
    /// How many addresses are published.
    pub caps: Caps,
    /// What time it is.
    pub clock: fn() -> Timestamp,
}

/// Everything that is known.
pub struct ClusterIndex {
    state: Mutex<State>,
    queue: Arc<Queue>,
}

struct State {
    settings: Settings,
    services: HashMap<ObjectKey, Service>,
    /// Services that are there but could never be decoded. Whatever they say, their slices stay.
    undecodable: HashSet<ObjectKey>,
    /// What the watch shows of services is part of a list.
    is_listing_services: bool,
    pods: Pods,
    zones: HashMap<String, String>,
    references: References,
    slices: OwnedSlices<MultiNetworkEndpointSlice>,
    foreign_slices: ForeignSlices,
    mirrors: OwnedSlices<EndpointSlice>,
    /// How many addresses there are.
    counts: Counts,
    /// Services that there is room for now, and was not before.
    woken: Vec<ObjectKey>,
    dirty: Dirty,
    /// Who had a contested address first has been sorted out, as far as the first lists leave it open.
    has_adopted: bool,
    /// What has been said of pods, by their uid, so as not to say it again.
    notified: HashMap<String, BTreeMap<&'static str, String>>,
    /// Tells the names of slices apart.
    seed: u64,
}

struct Service {
    object: Arc<MultiNetworkService>,
    /// The watch has shown this version or a newer one; else it is the answer to a status that we have written.
    seen: bool,
    selection: Selection,
    /// What became of it when it was last looked at.
    evaluation: Option<Evaluation>,
    /// When the earliest change happened that no work has been made of yet.
    trigger: Option<Timestamp>,
    /// When the earliest change happened that is being written.
    writing: Option<Timestamp>,
    /// What has been said of it, so as not to say it again.
    notified: Vec<(&'static str, String)>,
    /// What was last to be written of its status.
    status: Option<MultiNetworkServiceStatus>,
    /// Somebody else has written what is ours of its status, and we have not written since.
    is_edited: bool,
}

/// What a service wants, after a look at its spec.
#[derive(Debug)]
enum Selection {
    Pods(Selector),
    NoSelector,
    Invalid(Vec<Violation>),
}

/// How many there are of what, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Pods, of all namespaces, selected or not.
    pub pods: usize,
    /// MultiNetworkServices.
    pub services: usize,
    /// Slices of ours.
    pub slices: usize,
    /// Mirrors of ours.
    pub mirrors: usize,
    /// Endpoints that are answered.
    pub ready: usize,
    /// Endpoints that are not, and not terminating either.
    pub not_ready: usize,
    /// Endpoints of pods that are being deleted.
    pub terminating: usize,
    /// Addresses that several pods of one network have, and should not.
    pub conflicts: usize,
    /// Pods whose network-status annotation cannot be read.
    pub unreadable: usize,
}

impl ClusterIndex {
    /// Knows nothing yet. Services that need work go to the queue.
    pub fn new(settings: Settings, queue: Arc<Queue>) -> Self {
        let seed = u64::try_from((settings.clock)().as_nanosecond()).unwrap_or_default();
        let counts = Counts::new(settings.caps);
        let state = State {
            dirty: Dirty::new(settings.clock),
            settings,
            services: HashMap::new(),
            undecodable: HashSet::new(),
            is_listing_services: false,
            pods: Pods::default(),
            zones: HashMap::new(),
            references: References::default(),
            slices: OwnedSlices::new(slices::service_of, |slice| slice.spec.endpoints.len()),
            foreign_slices: ForeignSlices::default(),
            mirrors: OwnedSlices::new(mirror::service_of, |mirror| mirror.endpoints.len()),
            counts,
            woken: Vec::new(),
            has_adopted: false,
            notified: HashMap::new(),
            seed,
        };
        Self { state: Mutex::new(state), queue }
    }

    /// What is to be written for a service now.
    pub fn work(&self, service: &ObjectKey) -> Work {
        let mut state = self.lock();
        let work = state.work(service, false);
        self.wake(&mut state);
        work
    }

    /// Returns the writes for a service; if there are none, those that merge some of its slices that are half empty.
    pub fn work_or_merge(&self, service: &ObjectKey) -> Work {
        let mut state = self.lock();
        let work = state.work(service, true);
        self.wake(&mut state);
        work
    }

    /// Whether two slices of a service would fit into one.
    pub fn could_merge(&self, service: &ObjectKey) -> bool {
        self.lock().could_merge(service)
    }

    /// What is to be said of a service, after the writes of its last [`work`](Self::work) were done, or why they failed.
    pub fn outcome(&self, service: &ObjectKey, written: Result<(), &str>) -> Outcome {
        self.lock().outcome(service, written)
    }

    /// The last [`work`](Self::work) for a service is given up: what is to be written is somebody else's to say.
    pub fn abandon(&self, service: &ObjectKey) {
        let mut state = self.lock();
        state.slices.end_work(service);
        state.mirrors.end_work(service);
    }

    /// Every service that there may be work for: those that exist, and those whose slices are left. For a new leader; what the
    /// first lists have left open about who had an address first is sorted out here, and changes count from now on.
    pub fn all_services(&self) -> Vec<ObjectKey> {
        let mut state = self.lock();
        state.adopt_published();
        state.counts.forget_given();
        // Of what happened until now, the last leader has written some, and only it knows what: what it has not is written
        // without a time.
        for service in state.services.values_mut() {
            (service.trigger, service.writing) = (None, None);
        }
        let known = state.services.keys().chain(state.slices.services()).chain(state.mirrors.services());
        let all: BTreeSet<&ObjectKey> = known.collect();
        all.into_iter().cloned().collect()
    }

    /// The API server's answer to a slice that we have written.
    pub fn record_stored_slice(&self, slice: MultiNetworkEndpointSlice) {
        let mut state = self.lock();
        state.slices.record_stored(slice);
        self.wake(&mut state);
    }

    /// A slice that we have deleted.
    pub fn record_deleted_slice(&self, id: &SliceId) {
        let mut state = self.lock();
        state.slices.record_deleted(id);
        self.wake(&mut state);
    }

    /// The API server's answer to a mirror that we have written.
    pub fn record_stored_mirror(&self, mirror: EndpointSlice) {
        self.lock().mirrors.record_stored(mirror);
    }

    /// A mirror that we have deleted.
    pub fn record_deleted_mirror(&self, id: &SliceId) {
        self.lock().mirrors.record_deleted(id);
    }

    /// The slices and mirrors of a service, as lists show them that were made just now: after a write whose outcome is unknown,
    /// or which met another version than it was planned on.
    pub fn replace_listed(
        &self,
        service: &ObjectKey,
        slices: Vec<MultiNetworkEndpointSlice>,
        mirrors: Vec<EndpointSlice>,
    ) {
        let mut state = self.lock();
        state.slices.replace_listed(service, slices);
        state.mirrors.replace_listed(service, mirrors);
        self.wake(&mut state);
    }

    /// The API server's answer to a status that we have written.
    pub fn record_stored_service(&self, service: MultiNetworkService) {
        let mut state = self.lock();
        let Some(key) = key_of(&service.metadata) else { return };
        if let Some(known) = state.services.get_mut(&key)
            && known.object.metadata.uid == service.metadata.uid
            // The watch may have been faster, and have more to show than our own write.
            && is_newer(&service, &*known.object)
        {
            (known.is_edited, known.seen) = (false, false);
            // Only the status, and the version for the next one: a changed spec comes by the watch.
            let object = Arc::make_mut(&mut known.object);
            object.metadata.resource_version = service.metadata.resource_version;
            object.status = service.status;
        }
    }

    /// The API server serves an optional API group from now on, or no longer; then its objects are gone.
    pub fn set_served(&self, api: OptionalApi, version: Option<&'static str>) {
        let mut state = self.lock();
        state.set_served(api, version.is_some());
        self.publish(&mut state);
    }

    /// How many there are of what.
    pub fn totals(&self) -> Totals {
        self.lock().totals()
    }

    /// For `/debug/state`: every service with what became of it.
    pub fn describe(&self) -> serde_json::Value {
        let state = self.lock();
        let services = state.services.iter().map(|(key, service)| {
            let slices = state.slices.of(key);
            let names: Vec<_> = slices.iter().filter_map(|slice| slice.metadata.name.clone()).collect();
            let status = service.object.status.as_ref();
            let description = json!({
                "slices": names,
                "pods": state.pods.of(key).map(|member| &member.pod.key.name).collect::<Vec<_>>(),
                "status": status,
            });
            (key.to_string(), description)
        });
        json!({ "services": services.collect::<serde_json::Map<_, _>>(), "pods": state.pods.len() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in another thread has been reported by then; what it left is as good as what a crash would leave.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the services that something has changed for to the queue.
    fn publish(&self, state: &mut State) {
        self.wake(state);
        for (key, at) in state.dirty.take() {
            if let Some(service) = state.services.get_mut(&key) {
                service.trigger = Some(service.trigger.map_or(at, |known| known.min(at)));
            }
            self.queue.add(&key);
        }
    }
}

impl State {
    /// Whoever wrote the slices has decided who keeps an address that several pods have.
    fn adopt_published(&mut self) {
        let is_first = !std::mem::replace(&mut self.has_adopted, true);
        if !self.pods.ledger().is_contested() {
            return;
        }
        let mut published: HashSet<(Network, IpAddr, &str)> = HashSet::new();
        for slice in self.slices.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()) {
            let own = slice.metadata.namespace.as_deref().unwrap_or_default();
            let network = Network::referenced(&slice.spec.network, own);
            for endpoint in &slice.spec.endpoints {
                let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref());
                if let (Some(Ok(address)), Some(uid)) = (endpoint.address(), uid) {
                    published.insert((network.clone(), address, uid));
                }
            }
        }
        self.pods.adopt_published(is_first, |network, address, Holder { uid, .. }| {
            published.contains(&(network.clone(), address, uid.as_str()))
        });
    }

    fn set_served(&mut self, api: OptionalApi, is_served: bool) {
        let at = self.dirty.now();
        for service in self.references.set_served(api, is_served) {
            self.dirty.mark(service, at);
        }
        if api == OptionalApi::Dra && !is_served {
            let none = HashSet::new();
            self.pods.retain_claims(&none, &mut self.dirty);
            self.pods.retain_devices(&none, &mut self.dirty);
        }
    }

    /// A service is new or has changed.
    fn apply_service(&mut self, object: MultiNetworkService) {
        let Some(key) = key_of(&object.metadata) else { return };
        self.undecodable.remove(&key);
        let known = self.services.get(&key);
        let is_same = known.is_some_and(|known| {
            let (old, new) = (&known.object.metadata, &object.metadata);
            old.uid == new.uid
                && old.generation == new.generation
                && old.labels == new.labels
                && old.deletion_timestamp == new.deletion_timestamp
                && known.object.spec == object.spec
        });
        if is_same {
            // Somebody has written the status: we, most of the time. If it was not us, it is put right.
            let Some(known) = self.services.get_mut(&key) else { return };
            if supersedes(&object, &*known.object, self.is_listing_services && known.seen) {
                known.seen = true;
                let (old, new) = (decide::own_status(&known.object), decide::own_status(&object));
                known.object = Arc::new(object);
                if known.status.as_ref() == Some(&new) {
                    known.is_edited = false;
                } else if old != new {
                    known.is_edited = true;
                    let at = self.dirty.now();
                    self.dirty.mark(key, at);
                }
            } else {
                known.seen |= object.metadata.resource_version == known.object.metadata.resource_version;
            }
            return;
        }
        let selection = selection(&object);
        let selector = match &selection {
            Selection::Pods(selector) => {
                let networks = object.spec.networks.iter();
                let networks = networks.map(|reference| Network::referenced(reference, &key.namespace));
                Some((selector.clone(), networks.collect()))
            }
            Selection::NoSelector | Selection::Invalid(_) => None,
        };
        // One that has come to break a rule keeps its slices as they are.
        if !matches!(selection, Selection::Invalid(_)) {
            self.pods.select(&key, selector, &mut self.dirty);
        }
        self.references.insert(&key, &object.spec);
        let old = self.services.remove(&key);
        let old = old.filter(|old| old.object.metadata.uid == object.metadata.uid);
        let (trigger, writing, notified, status) = old.map_or((None, None, Vec::new(), None), |old| {
            (old.trigger, old.writing, old.notified, old.status)
        });
        let service = Service {
            object: Arc::new(object),
            seen: true,
            selection,
            evaluation: None,
            trigger,
            writing,
            notified,
            status,
            is_edited: false,
        };
        self.services.insert(key.clone(), service);
        let at = self.dirty.now();
        self.dirty.mark(key, at);
    }

    /// Only these services are there.
    fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        self.is_listing_services = false;
        let known = self.services.keys().chain(&self.undecodable);
        let gone: Vec<ObjectKey> = known.filter(|key| !live.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| self.delete_service(key));
        self.undecodable = live.iter().filter(|key| !self.services.contains_key(*key)).cloned().collect();
    }

    fn delete_service(&mut self, key: &ObjectKey) {
        if self.services.remove(key).is_some() | self.undecodable.remove(key) {
            self.pods.select(key, None, &mut self.dirty);
            self.references.remove(key);
            self.woken.extend(self.counts.set_given(key, 0, false));
            let at = self.dirty.now();
            self.dirty.mark(key.clone(), at);
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals {
            pods: self.pods.len(),
            services: self.services.len(),
            slices: self.slices.len(),
            mirrors: self.mirrors.len(),
            conflicts: self.pods.ledger().conflicts(),
            unreadable: self.pods.iter().filter(|pod| !pod.report.unreadable.is_empty()).count(),
            ..Totals::default()
        };
        for endpoint in self.slices.iter().flat_map(|slice| &slice.spec.endpoints) {
            if endpoint.is_ready() {
                totals.ready += 1;
            } else if endpoint.conditions.is_terminating() {
                totals.terminating += 1;
            } else {
                totals.not_ready += 1;
            }
        }
        totals
    }
}

fn selection(service: &MultiNetworkService) -> Selection {
    if let Err(violations) = validate(service) {
        return Selection::Invalid(violations);
    }
    let Some(selector) = &service.spec.selector else { return Selection::NoSelector };
    match Selector::try_from(selector.clone()) {
        Ok(selector) => Selection::Pods(selector),
        Err(error) => Selection::Invalid(vec![Violation {
            field: "spec.selector".to_owned(),
            message: error.to_string(),
        }]),
    }
}

fn key_of(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let name = metadata.name.clone()?;
    Some(ObjectKey { namespace: metadata.namespace.clone().unwrap_or_default(), name })
}
