//! Where events become answers: the index and the publisher behind one lock, fed by whichever source there
//! is.
//!
//! A change holds the lock until it is published. Queries never wait for that, for they read [`Answers`]; over UDP
//! those for what has changed look here, and do without if somebody is there. Over a stream such a query does wait,
//! and so do one for a whole zone and a scrape, without holding up others of their thread; under the lock they only
//! take what is made into records later.

mod report;

use std::collections::HashSet;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::ObjectKey;
use tokio::sync::watch;
use tracing::warn;

use crate::store::answers::{Answers, Freshness};
use crate::store::build;
use crate::store::index::{Index, Service};
use crate::store::journal::{self, Step};
use crate::store::name::Name;
use crate::store::publisher::Publisher;
use crate::store::slice::{Slice, trigger_time};
use crate::store::zone_copy::{ZoneCopy, ZoneVersion};
use crate::sync;
pub use report::StateReport;
use report::Synced;

/// All that is known, as it outlives a process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Objects {
    /// The serial of the answers.
    pub serial: u32,
    /// The services.
    pub services: Vec<(ObjectKey, Service)>,
    /// The slices.
    pub slices: Vec<(ObjectKey, Arc<Slice>)>,
}

/// What the server knows and what it says of it.
pub struct State {
    inner: Mutex<Inner>,
    answers: Arc<Answers>,
    default_ttl: u32,
    on_latency: Box<dyn Fn(Duration) + Send + Sync>,
    changes: watch::Sender<Changes>,
}

/// Zones with a number each that grows whenever the zone's records change; none while there is nothing to tell.
pub type Changes = Vec<(Name, u64)>;

struct Inner {
    index: Index,
    publisher: Publisher,
    services_synced: bool,
    /// Not within a list either.
    slices_synced: bool,
    /// When the changes happened that the next commit makes visible.
    triggered: Vec<Timestamp>,
}

impl State {
    /// An empty state that publishes to `answers`. `on_latency` is told how long each change took from its
    /// cause in the cluster to its answer.
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

    /// Remembers from now on what changes in each zone, within bounds; to be called before anything is known.
    pub fn enable_journal(&self, limits: journal::JournalLimits) {
        self.lock().publisher.enable_journal(limits);
    }

    /// Follows which zones change, if a journal is kept.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }

    /// The answers that are published to.
    pub fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Serves what an earlier run knew, marked as stale, until the source has synced.
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

    /// A copy of all that is known, of one moment. None within a list, when it would be a part of the new and a part of the old.
    pub fn objects(&self) -> Option<Objects> {
        let inner = self.lock();
        inner.is_complete().then(|| inner.objects(self.answers.serial()))
    }

    /// One moment's whole zone.
    pub fn zone_copy(&self, apex: &Name) -> Option<ZoneCopy> {
        let (version, services) = {
            let inner = self.lock_aside();
            (self.version(apex)?, inner.publisher.services())
        };
        ZoneCopy::new(version, services, &self.answers)
    }

    /// The newest version of a zone, and the steps to it from the version with the serial `known`, if a journal
    /// has them.
    pub fn zone_since(&self, apex: &Name, known: u32) -> Option<(ZoneVersion, Vec<Step>)> {
        self.since(&mut self.lock_aside(), apex, known, usize::MAX)
    }

    /// The same, if the steps have no more than `most` bytes, and if nobody changes anything at this moment.
    pub fn try_zone_since(&self, apex: &Name, known: u32, most: usize) -> Option<(ZoneVersion, Vec<Step>)> {
        let mut inner = self.try_lock()?;
        self.since(&mut inner, apex, known, most)
    }

    fn since(
        &self,
        inner: &mut Inner,
        apex: &Name,
        known: u32,
        most: usize,
    ) -> Option<(ZoneVersion, Vec<Step>)> {
        let version = self.version(apex)?;
        let steps = inner.publisher.journal()?.since(apex, known, version.soa.len(), most)?;
        Some((version, steps))
    }

    /// The newest version of a zone.
    pub fn version(&self, apex: &Name) -> Option<ZoneVersion> {
        let zone = self.answers.zones().iter().find(|zone| zone.apex() == apex)?;
        let serial = self.answers.serial();
        let mut soa = apex.as_wire().to_vec();
        zone.push_soa_body(&mut soa, serial);
        Some(ZoneVersion { apex: apex.clone(), serial, soa })
    }

    /// How many bytes the journal takes.
    pub fn journal_bytes(&self) -> usize {
        self.lock_aside().publisher.journal().map_or(0, |journal| journal.bytes())
    }

    /// How many services, slices and ready endpoints are known.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let inner = self.lock_aside();
        let (slices, endpoints) = inner
            .index
            .slices()
            .fold((0, 0), |(slices, endpoints), (_, slice)| (slices + 1, endpoints + slice.endpoints.len()));
        (inner.index.services().count(), slices, endpoints)
    }

    /// All that is known, sorted, for people. What it holds is shared with the index, and put into words when it is shown.
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
        // A panic elsewhere cannot leave the index half-changed: services that were not yet published still count as
        // changed and come with the next commit, but for the one that could not be. Going on serves better than
        // falling silent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None while there is a change.
    fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// For who serves connections: a change of everything takes a while.
    fn lock_aside(&self) -> MutexGuard<'_, Inner> {
        self.try_lock().unwrap_or_else(|| sync::block_in_place(|| self.lock()))
    }

    fn commit(&self) {
        let mut inner = self.lock();
        // What is known in part only is kept back: a set cut short would be a wrong answer. Until then the answers, a
        // snapshot's too, stay as they are. What was there before the first list is no change that anybody waits for.
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
            let now: Changes = journal.changes().map(|(apex, number)| (apex.clone(), number)).collect();
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
    /// Whether the index is all that there is, and nothing that is gone.
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

    /// Publishes every service that changed.
    fn publish(&mut self, default_ttl: u32) {
        let Self { index, publisher, .. } = self;
        publisher.publish(iter::from_fn(|| {
            let key = index.next_changed()?;
            let answers = index.view(&key, default_ttl).and_then(|view| build::build(&view));
            Some((key, answers))
        }));
    }
}

/// What an object is called; sources never deliver one without a name.
fn key_of(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Some(ObjectKey { namespace, name: metadata.name.clone()? })
}

impl multinet_runtime::Index<MultiNetworkService> for State {
    fn apply(&self, object: MultiNetworkService) {
        if let Some(key) = key_of(&object.metadata) {
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
        let Some(key) = key_of(&object.metadata) else {
            return;
        };
        // Parsing happens before the lock is taken.
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
                warn!(namespace = key.namespace, name = key.name, %error, "slice kept as it was");
            }
        }
    }

    fn delete(&self, key: &ObjectKey) {
        self.lock().index.delete_slice(key);
    }

    /// An endpoint may have moved to a slice that comes later in the list. (Each service is whole by itself.)
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
    fn who_waits_for_a_change_holds_up_nobody_else() {
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
            assert!(served.is_ok(), "another task of the thread waits, too");
        }
    }

    #[test]
    fn who_must_not_wait_does_without_while_there_is_a_change() {
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
