//! Index of services and slices, and of the names that they claim.
//!
//! All names are divided into [slots](Slot). A change of an object marks the slots whose keys it
//! may change. Of several services that claim a slot, the oldest has it, then the first by
//! namespace and name, so that a newer service cannot take a name away.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::ObjectKey;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tracing::warn;

use crate::keys::{self, Keys, Share};
use crate::objects::{Service, Slice};
use crate::quota::{LeftOut, Quota};

/// Settings that decide which keys there are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Key that all others are below, without a slash at its end.
    pub prefix: String,
    /// Zones of services; reverse names point into the first.
    pub zones: Vec<String>,
    /// Zones of vertices.
    pub vertex_zones: Vec<String>,
    /// Time to live, in seconds, of services that set none.
    pub ttl: u32,
    /// Networks whose addresses have reverse names.
    pub reverse_ranges: Vec<IpNet>,
    /// Networks within these whose addresses have none.
    pub reverse_excludes: Vec<IpNet>,
}

impl Settings {
    fn is_reversed(&self, address: &IpAddr) -> bool {
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(address));
        is_in(&self.reverse_ranges) && !is_in(&self.reverse_excludes)
    }
}

/// Names that belong together to one service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// The zones' own names, which belong to no service.
    Zones,
    /// The names of a service in all zones of services.
    Service(ObjectKey),
    /// The names of a vertex in all zones of vertices: `<namespace>/<pipeline>/<vertex>`.
    Vertex(String),
    /// The reverse name of an address.
    Address(IpAddr),
}

/// Keys that a slot may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This key.
    At(String),
    /// All keys that begin with this text, which ends in a slash.
    Below(String),
}

/// A claim of a slot: the age of the service, which decides, and its key.
type Claim = (i64, ObjectKey);

/// Claims of a service, and what the values of its keys need.
#[derive(Debug, PartialEq)]
struct Claims {
    created: i64,
    ttl: u32,
    vertex: Option<String>,
    /// Endpoints that have keys.
    share: Share,
    /// Host labels of the addresses that have reverse names.
    pointers: BTreeMap<IpAddr, String>,
}

impl Claims {
    fn slots<'a>(&'a self, service: &'a ObjectKey) -> impl Iterator<Item = Slot> + 'a {
        let vertex = self.vertex.clone().map(Slot::Vertex);
        let addresses = self.pointers.keys().copied().map(Slot::Address);
        [Slot::Service(service.clone())].into_iter().chain(vertex).chain(addresses)
    }
}

#[derive(Debug, Default)]
struct Entry {
    service: Option<Service>,
    slices: BTreeMap<String, Slice>,
}

/// All objects, and the slots that have changed since [`take_changed`](Self::take_changed).
#[derive(Debug)]
pub struct Objects {
    settings: Settings,
    services: BTreeMap<ObjectKey, Entry>,
    /// Name of the service that each slice belongs to.
    slices: HashMap<ObjectKey, String>,
    /// Services whose claims are out of date.
    stale: BTreeSet<ObjectKey>,
    quota: Quota,
    claims: BTreeMap<ObjectKey, Claims>,
    slots: BTreeMap<Slot, BTreeSet<Claim>>,
    changed: BTreeSet<Slot>,
}

impl Objects {
    /// Makes an index without objects.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            services: BTreeMap::new(),
            slices: HashMap::new(),
            stale: BTreeSet::new(),
            quota: Quota::default(),
            claims: BTreeMap::new(),
            slots: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Adds or replaces a service.
    pub fn apply_service(&mut self, key: ObjectKey, service: Service) {
        let known = self.services.entry(key.clone()).or_default();
        if known.service.as_ref() != Some(&service) {
            known.service = Some(service);
            self.stale.insert(key);
        }
    }

    /// Removes a service. Its slices stay, since the service may come back.
    pub fn delete_service(&mut self, key: &ObjectKey) {
        if let Some(known) = self.services.get_mut(key) {
            known.service = None;
            self.forget_if_empty(key);
            self.stale.insert(key.clone());
        }
    }

    /// Removes all services that a complete list does not contain.
    pub fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        let is_gone = |(key, known): &(&ObjectKey, &Entry)| known.service.is_some() && !live.contains(key);
        let gone: Vec<_> = self.services.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.delete_service(key));
    }

    /// Adds or replaces a slice.
    pub fn apply_slice(&mut self, key: &ObjectKey, slice: Slice) {
        if self.slices.get(key).is_some_and(|before| *before != slice.service) {
            self.delete_slice(key);
        }
        let owner = ObjectKey { namespace: key.namespace.clone(), name: slice.service.clone() };
        self.slices.insert(key.clone(), slice.service.clone());
        let known = self.services.entry(owner.clone()).or_default();
        if known.slices.get(&key.name) != Some(&slice) {
            known.slices.insert(key.name.clone(), slice);
            self.stale.insert(owner);
        }
    }

    /// Removes a slice that was deleted or no longer belongs to a service.
    pub fn delete_slice(&mut self, key: &ObjectKey) {
        let Some(name) = self.slices.remove(key) else { return };
        let owner = ObjectKey { namespace: key.namespace.clone(), name };
        if let Some(known) = self.services.get_mut(&owner) {
            known.slices.remove(&key.name);
        }
        self.forget_if_empty(&owner);
        self.stale.insert(owner);
    }

    /// Removes all slices that a complete list does not contain.
    pub fn retain_slices(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<_> = self.slices.keys().filter(|key| !live.contains(key)).cloned().collect();
        gone.iter().for_each(|key| self.delete_slice(key));
    }

    fn forget_if_empty(&mut self, key: &ObjectKey) {
        if self.services.get(key).is_some_and(|known| known.service.is_none() && known.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// Brings the claims of all services up to date.
    pub fn settle(&mut self) {
        let (mut all, mut namespaces) = (BTreeMap::new(), BTreeSet::new());
        while let Some(key) = self.stale.pop_first() {
            let now = self.claims_of(&key);
            self.quota.set(&key, now.as_ref().map(|now| (now.created, now.share)));
            namespaces.insert(key.namespace.clone());
            all.insert(key, now);
        }
        for key in namespaces.iter().flat_map(|namespace| self.quota.settle(namespace)).collect::<Vec<_>>() {
            if !all.contains_key(&key) {
                all.insert(key.clone(), self.claims_of(&key));
            }
        }
        for (key, now) in all {
            let now = now.filter(|_| self.quota.admits(&key));
            let before = self.claims.remove(&key);
            self.note(&key, before.as_ref(), now.as_ref());
            if let Some(now) = now {
                self.claims.insert(key, now);
            }
        }
    }

    /// Returns the number of services and endpoints that have no keys because of a limit.
    pub fn left_out(&self) -> LeftOut {
        self.quota.left_out()
    }

    /// Returns what a service claims; `None` without a ready endpoint.
    fn claims_of(&self, key: &ObjectKey) -> Option<Claims> {
        let Entry { service, slices } = self.services.get(key)?;
        let service = service.as_ref()?;
        slices.values().find(|slice| !slice.endpoints.is_empty())?;
        let vertex = slices.values().find_map(|slice| slice.vertex.as_ref());
        let vertex = vertex.filter(|_| !self.settings.vertex_zones.is_empty());
        let base = self.settings.zones.first().map(|zone| service_name(key, zone)).unwrap_or_default();
        let bases = self.settings.zones.len() + vertex.map_or(0, |_| self.settings.vertex_zones.len());
        let share = Share::new(slices.values(), bases);
        let mut pointers = keys::pointers(&base, slices.values(), share.endpoints);
        pointers.retain(|address, _| self.settings.is_reversed(address));
        Some(Claims {
            created: service.created,
            ttl: service.ttl.unwrap_or(self.settings.ttl),
            vertex: vertex.map(|(vertex, pipeline)| format!("{}/{pipeline}/{vertex}", key.namespace)),
            share,
            pointers,
        })
    }

    /// Updates the slots that a service claimed before or claims now, and notes which have changed.
    fn note(&mut self, key: &ObjectKey, before: Option<&Claims>, now: Option<&Claims>) {
        let slots = |claims: Option<&Claims>| -> BTreeSet<Slot> {
            claims.map(|claims| claims.slots(key).collect()).unwrap_or_default()
        };
        let (old, new) = (slots(before), slots(now));
        for slot in &old {
            let claims = self.slots.get_mut(slot);
            if let (Some(claims), Some(before)) = (claims, before) {
                claims.remove(&(before.created, key.clone()));
                if claims.is_empty() {
                    self.slots.remove(slot);
                }
            }
        }
        for slot in &new {
            let claims = self.slots.entry(slot.clone()).or_default();
            claims.insert((now.map_or(0, |now| now.created), key.clone()));
            if let Slot::Vertex(vertex) = slot
                && claims.len() > 1
                && !old.contains(slot)
                && let [(_, first), (_, second), ..] = claims.iter().collect::<Vec<_>>()[..]
            {
                let other = if first == key { second } else { first };
                warn!(
                    vertex,
                    "the services {} and {} have the labels of one vertex: {} has its name; give each vertex one service",
                    key.name,
                    other.name,
                    first.name
                );
            }
        }
        // A reverse name depends on these only. The other slots have all endpoints of the service.
        let pointer = |claims: Option<&Claims>, address: &IpAddr| {
            let claims = claims?;
            Some((claims.created, claims.ttl, claims.pointers.get(address).cloned()?))
        };
        self.changed.extend(old.into_iter().chain(new).filter(|slot| match slot {
            Slot::Address(address) => pointer(before, address) != pointer(now, address),
            _ => true,
        }));
    }

    /// Returns the slots that have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<Slot> {
        std::mem::take(&mut self.changed)
    }

    /// Returns all slots that have keys.
    pub fn all(&self) -> impl Iterator<Item = Slot> {
        [Slot::Zones].into_iter().chain(self.slots.keys().cloned())
    }

    /// Returns the keys that a slot should have.
    pub fn keys(&self, slot: &Slot) -> Keys {
        let Settings { prefix, zones, vertex_zones, ttl, .. } = &self.settings;
        if *slot == Slot::Zones {
            let services = zones.iter().map(|zone| keys::of_zone(prefix, zone, *ttl, true));
            let vertices = vertex_zones.iter().map(|zone| keys::of_zone(prefix, zone, *ttl, false));
            return services.chain(vertices).flatten().collect();
        }
        let Some((_, key)) = self.slots.get(slot).and_then(BTreeSet::first) else { return Keys::new() };
        let (Some(claims), Some(entry)) = (self.claims.get(key), self.services.get(key)) else {
            return Keys::new();
        };
        let slices = entry.slices.values();
        match slot {
            Slot::Zones => Keys::new(),
            Slot::Service(_) => {
                let names = zones.iter().map(|zone| service_name(key, zone));
                keys::of_service(prefix, names, claims.ttl, slices, claims.share.endpoints)
            }
            Slot::Vertex(vertex) => {
                let names = vertex_zones.iter().map(|zone| vertex_name(vertex, zone));
                keys::of_service(prefix, names, claims.ttl, slices, claims.share.endpoints)
            }
            Slot::Address(address) => {
                let host = claims.pointers.get(address).zip(zones.first());
                let name = host.map(|(host, zone)| format!("{host}.{}", service_name(key, zone)));
                name.map(|name| keys::of_address(prefix, *address, &name, claims.ttl)).into_iter().collect()
            }
        }
    }

    /// Returns the keys that a slot may have.
    pub fn scopes(&self, slot: &Slot) -> Vec<Scope> {
        let Settings { prefix, zones, vertex_zones, .. } = &self.settings;
        let below = |name: String| Scope::Below(keys::path(prefix, &name) + "/");
        match slot {
            Slot::Zones => self.keys(slot).into_keys().map(Scope::At).collect(),
            Slot::Service(key) => zones.iter().map(|zone| below(service_name(key, zone))).collect(),
            Slot::Vertex(vertex) => {
                vertex_zones.iter().map(|zone| below(vertex_name(vertex, zone))).collect()
            }
            Slot::Address(address) => vec![Scope::At(keys::reverse_path(prefix, *address))],
        }
    }
}

fn service_name(key: &ObjectKey, zone: &str) -> String {
    format!("{}.{}.svc.{zone}", key.name, key.namespace)
}

/// Returns the name of a vertex, which is given as in [`Slot::Vertex`].
fn vertex_name(vertex: &str, zone: &str) -> String {
    let labels: Vec<&str> = vertex.rsplit('/').chain([zone]).collect();
    labels.join(".")
}

/// The objects that the watches deliver, for the writer.
#[derive(Debug)]
pub struct ClusterIndex {
    inner: Mutex<Inner>,
    /// Wakes the writer after a change.
    pub changed: Notify,
}

#[derive(Debug)]
struct Inner {
    objects: Objects,
    services_synced: bool,
    /// Whether all slices are known: `false` before the first list and while one is being received.
    slices_synced: bool,
}

/// Report of the index for `/debug/state`.
#[derive(Debug, Serialize)]
pub struct StateReport {
    synced: bool,
    services: usize,
    slices: usize,
    names: usize,
}

impl ClusterIndex {
    /// Makes an index without objects.
    pub fn new(settings: Settings) -> Self {
        let objects = Objects::new(settings);
        let inner = Inner { objects, services_synced: false, slices_synced: false };
        Self { inner: Mutex::new(inner), changed: Notify::new() }
    }

    /// Calls `read` with the objects, if all of them are known.
    pub fn read<R>(&self, read: impl FnOnce(&mut Objects) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        (inner.services_synced && inner.slices_synced).then(|| read(&mut inner.objects))
    }

    /// Returns a report of the index.
    pub fn describe(&self) -> StateReport {
        let inner = self.inner.lock();
        let Inner { objects, services_synced, slices_synced } = &*inner;
        StateReport {
            synced: *services_synced && *slices_synced,
            services: objects.services.values().filter(|known| known.service.is_some()).count(),
            slices: objects.slices.len(),
            names: objects.slots.len(),
        }
    }

    fn commit(&self) {
        // Part of a list is not published, since a truncated set would be wrong.
        if self.read(Objects::settle).is_some() {
            self.changed.notify_one();
        }
    }
}

/// Returns the key of an object. Watches never deliver an object without a name.
fn key_of(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Some(ObjectKey { namespace, name: metadata.name.clone()? })
}

impl multinet_runtime::Index<MultiNetworkService> for ClusterIndex {
    fn apply(&self, object: MultiNetworkService) {
        if let Some(key) = key_of(&object.metadata) {
            self.inner.lock().objects.apply_service(key, Service::from(&object));
        }
    }

    fn delete(&self, key: &ObjectKey) {
        self.inner.lock().objects.delete_service(key);
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.inner.lock();
        inner.objects.retain_services(live);
        inner.services_synced = true;
    }

    fn commit(&self) {
        Self::commit(self);
    }
}

impl multinet_runtime::Index<MultiNetworkEndpointSlice> for ClusterIndex {
    fn apply(&self, object: MultiNetworkEndpointSlice) {
        let Some(key) = key_of(&object.metadata) else { return };
        let parsed = Slice::parse(&object);
        let objects = &mut self.inner.lock().objects;
        match parsed {
            Ok(Some(slice)) => objects.apply_slice(&key, slice),
            Ok(None) => objects.delete_slice(&key),
            Err(error) => warn!(slice = %key, %error, "slice is invalid; this version is ignored"),
        }
    }

    fn delete(&self, key: &ObjectKey) {
        self.inner.lock().objects.delete_slice(key);
    }

    /// Until the list is complete, an endpoint that moved to a later slice of the list would be
    /// missing.
    fn start(&self) {
        self.inner.lock().slices_synced = false;
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut inner = self.inner.lock();
        inner.objects.retain_slices(live);
        inner.slices_synced = true;
    }

    fn commit(&self) {
        Self::commit(self);
    }
}
