//! Index of services and their slices, which arrive in any order. Pure.
//!
//! A slice may arrive before its service, and may outlive it; a service is answered only while both
//! exist. Only ready endpoints are stored, so that an endpoint that must not be served cannot leak
//! into an answer.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use multinet_crds::MultiNetworkService;
use multinet_runtime::ObjectKey;
use serde::{Deserialize, Serialize};

use crate::store::slice::{Port, Slice, VertexName};

/// The parts of a MultiNetworkService that DNS needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Time to live of the service's records, in seconds. `None` means the server's default.
    pub ttl: Option<u32>,
    /// Creation time of the service. PTR records prefer the oldest service.
    pub created: Created,
}

/// Creation time of a service in seconds since 1970, from its `creationTimestamp`. A service
/// without one, as in most manifests, counts as the youngest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Created(u32);

impl Created {
    /// The earliest possible creation time, which sorts before all others.
    pub const EARLIEST: Self = Self(0);

    /// Returns a creation time of `seconds` after 1970. A negative number counts as 0.
    pub fn at(seconds: i64) -> Self {
        // 32 bits suffice until 2106.
        Self(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX))
    }
}

impl Default for Created {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl From<&MultiNetworkService> for Service {
    fn from(service: &MultiNetworkService) -> Self {
        let created = service.metadata.creation_timestamp.as_ref();
        Self {
            ttl: service.spec.ttl_seconds.map(u32::from),
            created: created.map_or_else(Created::default, |Time(time)| Created::at(time.as_second())),
        }
    }
}

/// Objects of one service: the inputs from which its answers are built.
#[derive(Debug, Clone, Default)]
pub struct ServiceView<'a> {
    /// Time to live of the service's records, in seconds.
    pub ttl: u32,
    /// Creation time of the service. PTR records prefer the oldest service.
    pub created: Created,
    /// Vertex whose name the service has, too: that of the first slice whose labels name one.
    pub vertex: Option<&'a VertexName>,
    /// Slices of the service, from all writers, sorted by name.
    pub slices: Vec<&'a Arc<Slice>>,
}

/// All services and slices, with the set of services that have changed since
/// [`next_changed`](Self::next_changed) last returned them.
#[derive(Debug, Default)]
pub struct Index {
    services: BTreeMap<ObjectKey, ServiceEntry>,
    /// Name of the service that each slice belongs to, since the label of a slice may change.
    slices: HashMap<ObjectKey, Box<str>>,
    changed: BTreeSet<ObjectKey>,
}

/// Objects of one service in the [`Index`]: the service itself, its slices, or both.
#[derive(Debug, Default)]
struct ServiceEntry {
    service: Option<Service>,
    slices: BTreeMap<String, Arc<Slice>>,
    /// Port lists that slices of the service had lately. Usually there is one; there are two while
    /// slices are being rewritten after a change of the ports.
    ports: Vec<Weak<[Port]>>,
}

/// Number of different port lists of a service that its slices can share.
const SHARED_LISTS: usize = 4;

impl ServiceEntry {
    /// Replaces the port list of a slice by an equal one of another slice, to save memory.
    fn share_ports(&mut self, slice: &mut Slice) {
        self.ports.retain(|ports| ports.strong_count() > 0);
        match self.ports.iter().filter_map(Weak::upgrade).find(|ports| *ports == slice.ports) {
            Some(ports) => slice.ports = ports,
            None => {
                self.ports.truncate(SHARED_LISTS - 1);
                self.ports.insert(0, Arc::downgrade(&slice.ports));
            }
        }
    }
}

impl Index {
    /// Adds or replaces a service, and notes whether that changes it.
    pub fn apply_service(&mut self, key: ObjectKey, service: Service) {
        let known = self.services.entry(key.clone()).or_default();
        if known.service.as_ref() != Some(&service) {
            known.service = Some(service);
            self.changed.insert(key);
        }
    }

    /// Removes a service. Its slices stay, since the service may come back.
    pub fn delete_service(&mut self, key: &ObjectKey) {
        if let Some(known) = self.services.get_mut(key)
            && known.service.take().is_some()
        {
            self.changed.insert(key.clone());
            self.forget_if_empty(key);
        }
    }

    /// Removes all services that a complete list, `live`, does not contain.
    pub fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self
            .services
            .iter()
            .filter(|(key, known)| known.service.is_some() && !live.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| self.delete_service(key));
    }

    /// Adds or replaces a slice. Tells whether it differs from the version before.
    pub fn apply_slice(&mut self, key: &ObjectKey, mut slice: Slice) -> bool {
        if self.slices.get(key).is_some_and(|before| *before != slice.service) {
            self.delete_slice(key);
        }
        self.slices.insert(key.clone(), slice.service.clone());
        let owner = key.beside(&*slice.service);
        let known = self.services.entry(owner.clone()).or_default();
        let changed = known.slices.get(&key.name).is_none_or(|before| **before != slice);
        if changed {
            known.share_ports(&mut slice);
            known.slices.insert(key.name.clone(), Arc::new(slice));
            self.changed.insert(owner);
        }
        changed
    }

    /// Removes a slice that was deleted or no longer belongs to a service.
    pub fn delete_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.slices.remove(key) else {
            return;
        };
        let owner = key.beside(service);
        if let Some(known) = self.services.get_mut(&owner) {
            known.slices.remove(&key.name);
        }
        self.forget_if_empty(&owner);
        self.changed.insert(owner);
    }

    /// Removes all slices that a complete list, `live`, does not contain.
    pub fn retain_slices(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self.slices.keys().filter(|key| !live.contains(key)).cloned().collect();
        gone.iter().for_each(|key| self.delete_slice(key));
    }

    fn forget_if_empty(&mut self, key: &ObjectKey) {
        if self.services.get(key).is_some_and(|known| known.service.is_none() && known.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// Returns a service that has changed since this function last returned it, or `None` if there
    /// is no such service.
    pub fn next_changed(&mut self) -> Option<ObjectKey> {
        self.changed.pop_first()
    }

    /// Returns the objects of a service, or `None` if the service itself is unknown.
    pub fn view(&self, key: &ObjectKey, default_ttl: u32) -> Option<ServiceView<'_>> {
        let known = self.services.get(key)?;
        let service = known.service.as_ref()?;
        let ttl = service.ttl.unwrap_or(default_ttl);
        Some(ServiceView {
            ttl,
            created: service.created,
            vertex: known.slices.values().find_map(|slice| slice.vertex.as_ref()),
            slices: known.slices.values().collect(),
        })
    }

    /// Returns all services with their keys, sorted by namespace and name.
    pub fn services(&self) -> impl Iterator<Item = (&ObjectKey, &Service)> {
        self.services.iter().filter_map(|(key, known)| Some((key, known.service.as_ref()?)))
    }

    /// Returns all slices with their keys, sorted by service, then by name of the slice.
    pub fn slices(&self) -> impl Iterator<Item = (ObjectKey, &Arc<Slice>)> {
        self.services
            .iter()
            .flat_map(|(owner, known)| known.slices.iter().map(|(name, slice)| (owner.beside(name), slice)))
    }
}
