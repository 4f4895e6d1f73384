//! Where events become answers: the index and the publisher behind one lock, fed by whichever source there
//! is. Queries never come here; they read [`Answers`].

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::ObjectKey;
use serde_json::{Value, json};
use tracing::warn;

use crate::answers::{Answers, Freshness, Publisher};
use crate::build::{self, Built};
use crate::index::{Index, Service, Slice};
use crate::name::Name;
use crate::transfer::ZoneCopy;
use crate::txt;

/// All that is known, as it outlives a process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Objects {
    /// The serial of the answers.
    pub serial: u32,
    /// The services.
    pub services: Vec<(ObjectKey, Service)>,
    /// The slices.
    pub slices: Vec<(ObjectKey, Slice)>,
}

/// What the server knows and what it says of it.
pub struct State {
    inner: Mutex<Inner>,
    answers: Arc<Answers>,
    default_ttl: u32,
    on_latency: Box<dyn Fn(Duration) + Send + Sync>,
}

struct Inner {
    index: Index,
    publisher: Publisher,
    services_synced: bool,
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
        Self { inner: Mutex::new(inner), answers, default_ttl, on_latency: Box::new(on_latency) }
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
            inner.index.apply_slice(&key, slice);
        }
        inner.publish(self.default_ttl);
        self.answers.set_freshness(Freshness::Stale);
    }

    /// A copy of all that is known, of one moment.
    pub fn objects(&self) -> Objects {
        let inner = self.lock();
        Objects {
            serial: self.answers.serial(),
            services: inner.index.services().map(|(key, service)| (key.clone(), service.clone())).collect(),
            slices: inner.index.slices().map(|(key, slice)| (key, slice.clone())).collect(),
        }
    }

    /// One moment's whole zone.
    pub fn zone_copy(&self, apex: &Name) -> Option<ZoneCopy> {
        let inner = self.lock();
        let zone = self.answers.zones().iter().find(|zone| zone.apex() == apex)?;
        let serial = self.answers.serial();
        let mut soa = Vec::new();
        zone.push_soa_body(&mut soa, serial);
        Some(ZoneCopy { serial, soa, apex: apex.clone(), names: inner.publisher.names(apex) })
    }

    /// How many services, slices and ready endpoints are known.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let inner = self.lock();
        let (slices, endpoints) = inner
            .index
            .slices()
            .fold((0, 0), |(slices, endpoints), (_, slice)| (slices + 1, endpoints + slice.endpoints.len()));
        (inner.index.services().count(), slices, endpoints)
    }

    /// All that is known, sorted, for people.
    pub fn describe(&self) -> Value {
        let inner = self.lock();
        let services: Vec<Value> = inner
            .index
            .services()
            .map(|(key, service)| json!({"namespace": key.namespace, "name": key.name, "ttl": service.ttl}))
            .collect();
        let slices: Vec<Value> =
            inner.index.slices().map(|(key, slice)| describe_slice(&key, slice)).collect();
        json!({
            "zones": self.answers.zones().iter().map(|zone| zone.apex().to_string()).collect::<Vec<_>>(),
            "serial": self.answers.serial(),
            "freshness": format!("{:?}", self.answers.freshness()),
            "synced": {"services": inner.services_synced, "slices": inner.slices_synced},
            "names": self.answers.len(),
            "services": services,
            "slices": slices,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave the index half-changed in a way that the next event would not
        // mend; going on serves better than falling silent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self) {
        let mut inner = self.lock();
        // What is known in part only is kept back: a set cut short would be a wrong answer. Until then a
        // snapshot's answers stay as they are. What was there before is no change that anybody waits for.
        if !(inner.services_synced && inner.slices_synced) {
            inner.triggered.clear();
            return;
        }
        inner.publish(self.default_ttl);
        if self.answers.freshness() != Freshness::Current {
            self.answers.set_freshness(Freshness::Current);
            inner.triggered.clear();
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
    /// Publishes every service that changed.
    fn publish(&mut self, default_ttl: u32) {
        let answers = Arc::clone(self.publisher.answers());
        let changed = self.index.take_changed();
        self.publisher.publish(changed.into_iter().map(|key| {
            let view = self.index.view(&key, default_ttl);
            let built =
                view.map_or_else(Built::default, |view| build::build(&view, answers.zones().forward()));
            (key, built)
        }));
    }
}

fn describe_slice(key: &ObjectKey, slice: &Slice) -> Value {
    let endpoints: Vec<Value> = slice
        .endpoints
        .iter()
        .map(|endpoint| json!({"address": endpoint.address, "host": endpoint.host, "txt": txt::strings(&endpoint.txt)}))
        .collect();
    let ports: Vec<Value> = slice
        .ports
        .iter()
        .map(|port| json!({"name": port.name, "protocol": port.protocol.as_str(), "port": port.number}))
        .collect();
    json!({
        "namespace": key.namespace,
        "name": key.name,
        "service": slice.service,
        "network": slice.network,
        "ports": ports,
        "endpoints": endpoints,
        "notReady": slice.not_ready,
    })
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
        let parsed = Slice::parse(&object);
        let mut inner = self.lock();
        match parsed {
            Ok(Some(slice)) => {
                let triggered = slice.triggered;
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

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.lock();
        inner.index.retain_slices(live);
        inner.slices_synced = true;
    }

    fn commit(&self) {
        Self::commit(self);
    }
}
