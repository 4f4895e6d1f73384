//! Index of all objects that the controller reads, which also decides what to do about them (pure).
//!
//! ```text
//!   Pods ───────────────────┐ selectors, claims, devices, addresses
//!   Nodes (zones) ──────────┤
//!   networks, Services ─────┼──> dirty services ── commit ──> queue ──> work ──> Plan
//!   MultiNetworkServices ───┤                                └─ written ─> outcome ──> status, …
//!   slices, mirrors ────────┘ <── answers of the API server
//! ```
//!
//! Watches feed the index through the trait [`Index`](multinet_runtime::Index). The writer asks it
//! for [`work`](ClusterIndex::work) and reports the results. One lock guards all state; it is held
//! for one object or one service at a time. The only clock is the one in [`Settings`].

mod decide;
mod dirty;
mod feed;
mod foreign_slices;
mod holders;
mod owned_slices;
mod pods;
mod refs;
mod room;
mod totals;
mod versions;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::Selector;
use multinet_crds::validate::{Violation, validate};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, MultiNetworkServiceStatus};
use multinet_runtime::ObjectKey;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

use self::dirty::Dirty;
use self::foreign_slices::ForeignSlices;
use self::owned_slices::OwnedSlices;
use self::pods::Pods;
use self::refs::References;
pub use self::totals::Totals;
use self::versions::{is_newer, supersedes};
use crate::caps::{Caps, Counts};
use crate::conflicts::Holder;
use crate::mirror;
use crate::model::Network;
use crate::queue::Queue;
use crate::slices::{self, SliceId};
use crate::status::Evaluation;
use crate::work::{OptionalApi, Outcome, Work};

/// Settings that the decisions of the index depend on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// DNS zone in which the host names of `status.hostname` are.
    pub zone: String,
    /// Maximum number of endpoints in a MultiNetworkEndpointSlice.
    pub limit: usize,
    /// Maximum number of endpoints in a core EndpointSlice of a mirror.
    pub mirror_limit: usize,
    /// Limits on published addresses.
    pub caps: Caps,
    /// Function that returns the current time.
    pub clock: fn() -> Timestamp,
}

/// Index of the cluster's objects. It is shared by the watches and the writer.
pub struct ClusterIndex {
    state: Mutex<State>,
    queue: Arc<Queue>,
}

struct State {
    settings: Settings,
    services: HashMap<ObjectKey, ServiceState>,
    /// Services that exist but could never be decoded. Their slices are kept.
    undecodable: HashSet<ObjectKey>,
    /// Whether the service watch is in the middle of a list.
    is_listing_services: bool,
    pods: Pods,
    zones: HashMap<String, String>,
    references: References,
    slices: OwnedSlices<MultiNetworkEndpointSlice>,
    foreign_slices: ForeignSlices,
    mirrors: OwnedSlices<EndpointSlice>,
    /// Numbers of published addresses of each service and namespace.
    counts: Counts,
    /// Services that may publish more addresses now, since the limit of their namespace has room
    /// again.
    woken: Vec<ObjectKey>,
    dirty: Dirty,
    /// Whether [`adopt_published`](Self::adopt_published) has run.
    has_adopted: bool,
    /// Notices about each pod, by its uid and by reason, so that none is published twice.
    notified: HashMap<String, BTreeMap<String, String>>,
    /// Number that varies the names of new slices from plan to plan.
    seed: u64,
}

struct ServiceState {
    object: Arc<MultiNetworkService>,
    /// Whether the watch has shown this version or a newer one. Otherwise the object is the API
    /// server's answer to a status write.
    seen: bool,
    selection: Selection,
    /// Result of the service's last plan; `None` before the first plan.
    evaluation: Option<Evaluation>,
    /// Time of the earliest change that no plan of the service contains yet; `None` without a
    /// change.
    trigger: Option<Timestamp>,
    /// Time of the earliest change in the service's unfinished writes; `None` if unknown.
    writing: Option<Timestamp>,
    /// Published notices about the service by condition type, so that none is published twice.
    notified: Vec<(&'static str, String)>,
    /// Status that was computed last; `None` before the first outcome.
    status: Option<MultiNetworkServiceStatus>,
    /// Whether another writer has changed the controller's part of the status since the controller
    /// last wrote it.
    is_edited: bool,
}

/// Pods that a service selects, according to its spec.
#[derive(Debug)]
enum Selection {
    Pods(Selector),
    NoSelector,
    Invalid(Vec<Violation>),
}

impl ClusterIndex {
    /// Creates an empty index, which adds services that need work to `queue`.
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

    /// Plans the writes that bring the slices and mirror of a service up to date. If none are
    /// needed and `merges` is true, plans to merge small slices.
    pub fn work(&self, service: &ObjectKey, merges: bool) -> Work {
        let mut state = self.lock();
        let work = state.work(service, merges);
        self.wake(&mut state);
        work
    }

    /// Returns whether two slices of a service would fit into one.
    pub fn could_merge(&self, service: &ObjectKey) -> bool {
        self.lock().could_merge(service)
    }

    /// Returns the status and notices of a service after the writes of its last
    /// [`work`](Self::work). `written` tells whether they succeeded, or why not.
    pub fn outcome(&self, service: &ObjectKey, written: Result<(), &str>) -> Outcome {
        self.lock().outcome(service, written)
    }

    /// Ends the last [`work`](Self::work) for a service without an outcome, because another process
    /// leads or more turns follow.
    pub fn abandon(&self, service: &ObjectKey) {
        let mut state = self.lock();
        state.slices.end_work(service);
        state.mirrors.end_work(service);
    }

    /// Returns all services that may need work, for a new leader: existing services, and those of
    /// left-over slices. Also decides contested addresses by what the slices contain, and forgets
    /// the times of earlier changes.
    pub fn all_services(&self) -> Vec<ObjectKey> {
        let mut state = self.lock();
        state.adopt_published();
        state.counts.forget_given();
        // The last leader has written some of the changes until now, but this process does not know
        // which. The others are written without a time.
        for service in state.services.values_mut() {
            (service.trigger, service.writing) = (None, None);
        }
        let known = state.services.keys().chain(state.slices.services()).chain(state.mirrors.services());
        let all: BTreeSet<&ObjectKey> = known.collect();
        all.into_iter().cloned().collect()
    }

    /// Records the API server's answer to a write of a slice.
    pub fn record_stored_slice(&self, slice: MultiNetworkEndpointSlice) {
        let mut state = self.lock();
        state.slices.record_stored(slice);
        self.wake(&mut state);
    }

    /// Records that the controller has deleted a slice.
    pub fn record_deleted_slice(&self, id: &SliceId) {
        let mut state = self.lock();
        state.slices.record_deleted(id);
        self.wake(&mut state);
    }

    /// Records the API server's answer to a write of a mirror's slice.
    pub fn record_stored_mirror(&self, mirror: EndpointSlice) {
        self.lock().mirrors.record_stored(mirror);
    }

    /// Records that the controller has deleted a mirror's slice.
    pub fn record_deleted_mirror(&self, id: &SliceId) {
        self.lock().mirrors.record_deleted(id);
    }

    /// Replaces the slices and mirrors of a service by those in lists that were just made. Needed
    /// after a write without an answer, or one that met another version than planned.
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

    /// Records the API server's answer to a write of a status.
    pub fn record_stored_service(&self, service: MultiNetworkService) {
        let mut state = self.lock();
        let Some(key) = ObjectKey::of(&service.metadata) else { return };
        if let Some(known) = state.services.get_mut(&key)
            && known.object.metadata.uid == service.metadata.uid
            // The watch may have shown a later version already.
            && is_newer(&service, &*known.object)
        {
            (known.is_edited, known.seen) = (false, false);
            // Take only the status, and the version for the next write. A changed spec arrives
            // through the watch.
            let object = Arc::make_mut(&mut known.object);
            object.metadata.resource_version = service.metadata.resource_version;
            object.status = service.status;
        }
    }

    /// Records whether the API server serves an optional API group. If it does not, the group's
    /// objects are removed.
    pub fn set_served(&self, api: OptionalApi, version: Option<&'static str>) {
        let mut state = self.lock();
        state.set_served(api, version.is_some());
        self.publish(&mut state);
    }

    /// Returns the numbers of objects, for the metrics.
    pub fn totals(&self) -> Totals {
        self.lock().totals()
    }

    /// Describes all services for `/debug/state`.
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
        self.state.lock()
    }

    /// Adds the dirty services to the queue, with the times of their changes.
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
    /// Decides contested addresses by what the slices contain, since the process that wrote them
    /// has decided already.
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
        self.dirty.mark_now(self.references.set_served(api, is_served));
        if api == OptionalApi::Dra && !is_served {
            let none = HashSet::new();
            self.pods.retain_claims(&none, &mut self.dirty);
            self.pods.retain_devices(&none, &mut self.dirty);
        }
    }

    /// Adds or replaces a service.
    fn apply_service(&mut self, object: MultiNetworkService) {
        let Some(key) = ObjectKey::of(&object.metadata) else { return };
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
            // The status was written, usually by this controller. If another writer changed our
            // part of it, plan again to repair it.
            let Some(known) = self.services.get_mut(&key) else { return };
            if supersedes(&object, &*known.object, self.is_listing_services && known.seen) {
                known.seen = true;
                let (old, new) = (decide::own_status(&known.object), decide::own_status(&object));
                known.object = Arc::new(object);
                if known.status.as_ref() == Some(&new) {
                    known.is_edited = false;
                } else if old != new {
                    known.is_edited = true;
                    self.dirty.mark_now([key]);
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
        // A service that breaks a rule keeps its slices, so it keeps its selection too.
        if !matches!(selection, Selection::Invalid(_)) {
            self.pods.select(&key, selector, &mut self.dirty);
        }
        self.references.insert(&key, &object.spec);
        let old = self.services.remove(&key);
        let old = old.filter(|old| old.object.metadata.uid == object.metadata.uid);
        let (trigger, writing, notified, status) = old.map_or((None, None, Vec::new(), None), |old| {
            (old.trigger, old.writing, old.notified, old.status)
        });
        let service = ServiceState {
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
        self.dirty.mark_now([key]);
    }

    /// Removes all services that are not in `live`.
    fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        self.is_listing_services = false;
        let gone = missing(self.services.keys().chain(&self.undecodable), live);
        gone.iter().for_each(|key| self.delete_service(key));
        self.undecodable = live.iter().filter(|key| !self.services.contains_key(*key)).cloned().collect();
    }

    fn delete_service(&mut self, key: &ObjectKey) {
        if self.services.remove(key).is_some() | self.undecodable.remove(key) {
            self.pods.select(key, None, &mut self.dirty);
            self.references.remove(key);
            self.woken.extend(self.counts.set_given(key, 0, false));
            self.dirty.mark_now([key.clone()]);
        }
    }
}

fn selection(service: &MultiNetworkService) -> Selection {
    if let Err(violations) = validate(service) {
        return Selection::Invalid(violations);
    }
    let Some(selector) = &service.spec.selector else { return Selection::NoSelector };
    match Selector::try_from(selector.clone()) {
        Ok(selector) => Selection::Pods(selector),
        Err(error) => Selection::Invalid(vec![Violation::new("spec.selector", error.to_string())]),
    }
}

/// Returns the keys of `known` that are not in `live`.
fn missing<'a>(known: impl Iterator<Item = &'a ObjectKey>, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
    known.filter(|key| !live.contains(*key)).cloned().collect()
}
