//! Turns events into answers: the index and the publisher behind one lock, fed by the source.
//!
//! A change holds the lock until it is published. Most queries read [`Answers`] and never take the
//! lock; an IXFR query needs it. Over UDP, such a query gets another answer if the lock is held.
//! Over a stream it waits, as do transfers of whole zones and scrapes of metrics, while the other
//! connections of its thread continue. Readers only take references under the lock, and make
//! records later.

mod report;

use std::collections::HashSet;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::ObjectKey;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tracing::warn;

use crate::store::answers::{Answers, Freshness};
use crate::store::build;
use crate::store::index::{Index, Service};
use crate::store::journal::{self, ZoneStep};
use crate::store::name::Name;
use crate::store::publisher::Publisher;
use crate::store::slice::{Slice, trigger_time};
use crate::store::zone_copy::{ZoneCopy, ZoneVersion};
use crate::sync;
pub use report::StateReport;
use report::Synced;

/// All objects that are known, in the form in which a snapshot stores them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Objects {
    /// SOA serial of the answers that were built from these objects.
    pub serial: u32,
    /// All services that are known, with their keys.
    pub services: Vec<(ObjectKey, Service)>,
    /// All slices that are known, with their keys.
    pub slices: Vec<(ObjectKey, Arc<Slice>)>,
}

/// The services and slices that a source has delivered, and the answers made of them.
pub struct State {
    inner: Mutex<Inner>,
    answers: Arc<Answers>,
    default_ttl: u32,
    on_latency: Box<dyn Fn(Duration) + Send + Sync>,
    changes: watch::Sender<ZoneChanges>,
}

/// For each zone, a number that grows whenever the zone's records change. Empty before the journal
/// starts.
pub type ZoneChanges = Vec<(Name, u64)>;

struct Inner {
    index: Index,
    publisher: Publisher,
    services_synced: bool,
    /// Whether all slices are known: `false` before the first list and while one is being received.
    slices_synced: bool,
    /// Times at which the changes that the next commit publishes happened in the cluster.
    triggered: Vec<Timestamp>,
}

impl State {
    /// Makes an empty state that publishes to `answers`. `on_latency` is called with the time from
    /// each change's cause in the cluster to its answer.
    pub fn new(
        answers: Arc<Answers>,
        default_ttl: u32,
        on_latency: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Self {
        let inner = Inner {
            index: Index::default(),
            publisher: Publisher::new(Arc::clone(&answers)),
            services_synced: false,
            slices_synced: false,
            triggered: Vec::new(),
        };
        let changes = watch::Sender::default();
        Self { inner: Mutex::new(inner), answers, default_ttl, on_latency: Box::new(on_latency), changes }
    }

    /// Starts to record the changes of each zone, within `limits`. Must be called before any object
    /// is applied.
    pub fn enable_journal(&self, limits: journal::JournalLimits) {
        self.lock().publisher.enable_journal(limits);
    }

    /// Returns a channel that tells which zones have changed, if there is a journal.
    pub fn changes(&self) -> watch::Receiver<ZoneChanges> {
        self.changes.subscribe()
    }

    /// Returns the answers that this state publishes to.
    pub fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Serves the objects of an earlier run, marked as stale, until the source has synced.
    pub fn restore(&self, objects: Objects) {
        let mut inner = self.lock();
        for (key, service) in objects.services {
            inner.index.apply_service(key, service);
        }
        for (key, slice) in objects.slices {
            inner.index.apply_slice(&key, Arc::unwrap_or_clone(slice));
        }
        inner.publish(self.default_ttl);
        self.answers.set_freshness(Freshness::Stale);
    }

    /// Returns a consistent copy of all objects. Returns `None` while a list is being received,
    /// since the index then mixes old and new objects.
    pub fn objects(&self) -> Option<Objects> {
        let inner = self.lock();
        inner.is_complete().then(|| inner.objects(self.answers.serial()))
    }

    /// Returns a consistent copy of the zone at `apex`, or `None` if there is no such zone.
    pub fn zone_copy(&self, apex: &Name) -> Option<ZoneCopy> {
        let kind = self.answers.zones().at(apex)?.kind();
        let (version, services) = {
            let inner = self.lock_aside();
            (self.version(apex)?, inner.publisher.services(kind))
        };
        ZoneCopy::new(version, services, &self.answers)
    }

    /// Returns the newest version of a zone, and the steps to it from the version with the serial
    /// `known`. Returns `None` if the journal does not have them.
    pub fn zone_since(&self, apex: &Name, known: u32) -> Option<(ZoneVersion, Vec<ZoneStep>)> {
        self.since(&mut self.lock_aside(), apex, known, usize::MAX)
    }

    /// Like [`zone_since`](Self::zone_since), but never waits. Returns `None` also if the steps
    /// have more than `most` bytes, or if the lock is held.
    pub fn try_zone_since(
        &self,
        apex: &Name,
        known: u32,
        most: usize,
    ) -> Option<(ZoneVersion, Vec<ZoneStep>)> {
        let mut inner = self.inner.try_lock()?;
        self.since(&mut inner, apex, known, most)
    }

    fn since(
        &self,
        inner: &mut Inner,
        apex: &Name,
        known: u32,
        most: usize,
    ) -> Option<(ZoneVersion, Vec<ZoneStep>)> {
        let version = self.version(apex)?;
        let steps = inner.publisher.journal()?.since(apex, known, version.soa.len(), most)?;
        Some((version, steps))
    }

    /// Returns the newest version of the zone at `apex`, or `None` if there is no such zone.
    pub fn version(&self, apex: &Name) -> Option<ZoneVersion> {
        let zone = self.answers.zones().at(apex)?;
        let serial = self.answers.serial();
        let mut soa = apex.as_wire().to_vec();
        zone.push_soa_body(&mut soa, serial);
        Some(ZoneVersion { apex: apex.clone(), serial, soa })
    }

    /// Returns the size of the journal of changes in bytes; 0 without a journal.
    pub fn journal_bytes(&self) -> usize {
        self.lock_aside().publisher.journal().map_or(0, |journal| journal.bytes())
    }

    /// Returns the numbers of known services, slices and ready endpoints.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let inner = self.lock_aside();
        let (slices, endpoints) = inner
            .index
            .slices()
            .fold((0, 0), |(slices, endpoints), (_, slice)| (slices + 1, endpoints + slice.endpoints.len()));
        (inner.index.services().count(), slices, endpoints)
    }

    /// Returns a report of all objects, sorted. The report shares its data with the index, and is
    /// formatted only when it is serialized.
    pub fn describe(&self) -> StateReport {
        let inner = self.lock();
        StateReport {
            freshness: self.answers.freshness(),
            synced: Synced { services: inner.services_synced, slices: inner.slices_synced },
            zones: self.answers.zones().iter().map(|zone| zone.apex().clone()).collect(),
            objects: inner.objects(self.answers.serial()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic releases the lock, and cannot leave the index half-changed. Services that
        // were not yet published still count as changed, and come with the next commit, except for
        // the one that caused the panic. Continuing is better than answering nothing.
        self.inner.lock()
    }

    /// Takes the lock on behalf of a task that serves connections. Waiting may take long, so other
    /// tasks of the thread are moved elsewhere first.
    fn lock_aside(&self) -> MutexGuard<'_, Inner> {
        self.inner.try_lock().unwrap_or_else(|| sync::block_in_place(|| self.lock()))
    }

    fn commit(&self) {
        let mut inner = self.lock();
        // Part of a list is not published, since a truncated set would be a wrong answer; the
        // answers, also those of a snapshot, stay as they are. The objects of the first list are no
        // changes whose latency is of interest.
        if !inner.is_complete() {
            if self.answers.freshness() != Freshness::Current {
                inner.triggered.clear();
            }
            return;
        }
        inner.publish(self.default_ttl);
        if self.answers.freshness() != Freshness::Current {
            self.answers.set_freshness(Freshness::Current);
            inner.triggered.clear();
            let serial = self.answers.serial();
            if let Some(journal) = inner.publisher.journal() {
                journal.start(serial);
            }
        }
        if let Some(journal) = inner.publisher.journal() {
            let now: ZoneChanges = journal.changes().map(|(apex, number)| (apex.clone(), number)).collect();
            self.changes.send_if_modified(|known| {
                let has_changed = *known != now;
                *known = now;
                has_changed
            });
        }
        let triggered = std::mem::take(&mut inner.triggered);
        drop(inner);
        let now = Timestamp::now();
        for time in triggered {
            let took = now.duration_since(time);
            (self.on_latency)(Duration::try_from(took).unwrap_or_default());
        }
    }
}

impl Inner {
    /// Tells whether the index has all objects of the source, and no others.
    fn is_complete(&self) -> bool {
        self.services_synced && self.slices_synced
    }

    fn objects(&self, serial: u32) -> Objects {
        Objects {
            serial,
            services: self.index.services().map(|(key, service)| (key.clone(), service.clone())).collect(),
            slices: self.index.slices().map(|(key, slice)| (key, Arc::clone(slice))).collect(),
        }
    }

    /// Publishes the answers of every service that has changed since the last call.
    fn publish(&mut self, default_ttl: u32) {
        let Self { index, publisher, .. } = self;
        publisher.publish(iter::from_fn(|| {
            let key = index.next_changed()?;
            let answers = index.view(&key, default_ttl).and_then(|view| build::build(&view));
            Some((key, answers))
        }));
    }
}

/// Returns the key of an object. Sources never deliver an object without a name.
impl multinet_runtime::Index<MultiNetworkService> for State {
    fn apply(&self, object: MultiNetworkService) {
        if let Some(key) = ObjectKey::of(&object.metadata) {
            self.lock().index.apply_service(key, Service::from(&object));
        }
    }

    fn delete(&self, key: &ObjectKey) {
        self.lock().index.delete_service(key);
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.lock();
        inner.index.retain_services(live);
        inner.services_synced = true;
    }

    fn commit(&self) {
        Self::commit(self);
    }
}

impl multinet_runtime::Index<MultiNetworkEndpointSlice> for State {
    fn apply(&self, object: MultiNetworkEndpointSlice) {
        let Some(key) = ObjectKey::of(&object.metadata) else {
            return;
        };
        // Parsing takes time, so it happens before the lock is taken.
        let (parsed, triggered) = (Slice::parse(&object), trigger_time(&object));
        let mut inner = self.lock();
        match parsed {
            Ok(Some(slice)) => {
                if inner.index.apply_slice(&key, slice) {
                    inner.triggered.extend(triggered);
                }
            }
            Ok(None) => inner.index.delete_slice(&key),
            Err(error) => {
                warn!(namespace = key.namespace, name = key.name, %error, "slice is invalid; this version is ignored");
            }
        }
    }

    fn delete(&self, key: &ObjectKey) {
        self.lock().index.delete_slice(key);
    }

    /// Until the list is complete, an endpoint that moved to a later slice of the list would be
    /// missing. (A service has no such dependency.)
    fn start(&self) {
        self.lock().slices_synced = false;
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.lock();
        inner.index.retain_slices(live);
        inner.slices_synced = true;
    }

    fn commit(&self) {
        Self::commit(self);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::zone::{ZoneSettings, Zones};

    fn state(apex: &Name) -> State {
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let zones = Zones::new(vec![apex.clone()], &[], &settings).unwrap();
        State::new(Arc::new(Answers::new(zones, 7)), 5, |_| ())
    }

    #[test]
    fn waiting_for_a_change_does_not_block_other_tasks_of_the_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let apex: Name = "z".parse().unwrap();
        let state = Arc::new(state(&apex));
        let waits: [fn(&State, &Name); 4] = [
            |state, _| _ = state.sizes(),
            |state, _| _ = state.journal_bytes(),
            |state, apex| _ = state.zone_copy(apex),
            |state, apex| _ = state.zone_since(apex, 7),
        ];
        for wait in waits {
            let change = state.lock();
            let (begins, begun) = std::sync::mpsc::channel();
            let (waiting, apex) = (Arc::clone(&state), apex.clone());
            let waits = runtime.spawn(async move {
                begins.send(()).unwrap();
                wait(&waiting, &apex);
            });
            begun.recv().unwrap();
            let (other, served) = std::sync::mpsc::channel();
            runtime.spawn(async move { other.send(()).unwrap() });
            let served = served.recv_timeout(Duration::from_secs(30));
            drop(change);
            runtime.block_on(waits).unwrap();
            assert!(served.is_ok(), "another task of the thread is blocked, too");
        }
    }

    #[test]
    fn a_query_that_must_not_wait_gets_nothing_during_a_change() {
        let apex: Name = "z".parse().unwrap();
        let state = state(&apex);
        state.enable_journal(journal::JournalLimits::default());
        multinet_runtime::Index::<MultiNetworkService>::reset(&state, &HashSet::new());
        multinet_runtime::Index::<MultiNetworkEndpointSlice>::reset(&state, &HashSet::new());
        state.commit();
        let at_once = || state.try_zone_since(&apex, 7, 100);
        assert!(at_once().is_some());
        let change = state.lock();
        assert!(at_once().is_none());
        drop(change);
        assert_eq!(at_once().unwrap().0.serial, 7);
    }
}
