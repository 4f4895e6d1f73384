//! Objects in, services out: what DNS needs of services and slices, in whatever order they arrive. Pure.
//!
//! Slices wait for a service that is not there yet, and outlive one that went: a service answers as
//! long as both exist. Only ready endpoints are kept; an endpoint that nobody may be told of cannot
//! leak.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use multinet_crds::MultiNetworkService;
use multinet_runtime::ObjectKey;
use serde::{Deserialize, Serialize};

use crate::store::slice::{Port, Slice};

/// What DNS needs of a MultiNetworkService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Time to live in seconds; the server's where absent.
    pub ttl: Option<u32>,
    /// When it was created.
    pub created: Created,
}

/// When a service was created, as its `creationTimestamp` says, in seconds since 1970. One that does not say so, as in
/// most manifests, counts as the youngest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Created(u32);

impl Created {
    /// Before which there is none.
    pub const EARLIEST: Self = Self(0);

    /// So many seconds after 1970.
    pub fn at(seconds: i64) -> Self {
        // Until 2106.
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

/// What DNS is to say about one service.
#[derive(Debug, Clone, Default)]
pub struct ServiceView<'a> {
    /// Time to live of its records, in seconds.
    pub ttl: u32,
    /// When it was created.
    pub created: Created,
    /// Its slices, whoever wrote them, in a stable order.
    pub slices: Vec<&'a Arc<Slice>>,
}

/// All services and slices, and which services have changed since they were last asked for.
#[derive(Debug, Default)]
pub struct Index {
    services: BTreeMap<ObjectKey, ServiceEntry>,
    /// Which service of its namespace a slice belongs to: its label may change.
    slices: HashMap<ObjectKey, Box<str>>,
    changed: BTreeSet<ObjectKey>,
}

/// A service, its slices, or both.
#[derive(Debug, Default)]
struct ServiceEntry {
    service: Option<Service>,
    slices: BTreeMap<String, Arc<Slice>>,
    /// The lists of ports that slices had lately. Nearly always it is one; there are two while slices are written anew.
    ports: Vec<Weak<[Port]>>,
}

/// How many lists of ports a service's slices share.
const SHARED_LISTS: usize = 4;

impl ServiceEntry {
    /// Lets a slice share the list of ports of another one that has the same.
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
    /// A new or changed service.
    pub fn apply_service(&mut self, key: ObjectKey, service: Service) {
        let known = self.services.entry(key.clone()).or_default();
        if known.service.as_ref() != Some(&service) {
            known.service = Some(service);
            self.changed.insert(key);
        }
    }

    /// A service that is gone; its slices stay, for it may come back.
    pub fn delete_service(&mut self, key: &ObjectKey) {
        if let Some(known) = self.services.get_mut(key)
            && known.service.take().is_some()
        {
            self.changed.insert(key.clone());
            self.forget_if_empty(key);
        }
    }

    /// Forgets all services but these.
    pub fn retain_services(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self
            .services
            .iter()
            .filter(|(key, known)| known.service.is_some() && !live.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| self.delete_service(key));
    }

    /// A new or changed slice; whether anything differs from what was known.
    pub fn apply_slice(&mut self, key: &ObjectKey, mut slice: Slice) -> bool {
        if self.slices.get(key).is_some_and(|before| *before != slice.service) {
            self.delete_slice(key);
        }
        self.slices.insert(key.clone(), slice.service.clone());
        let owner = ObjectKey { namespace: key.namespace.clone(), name: slice.service.to_string() };
        let known = self.services.entry(owner.clone()).or_default();
        let changed = known.slices.get(&key.name).is_none_or(|before| **before != slice);
        if changed {
            known.share_ports(&mut slice);
            known.slices.insert(key.name.clone(), Arc::new(slice));
            self.changed.insert(owner);
        }
        changed
    }

    /// A slice that is gone, or is nobody's any more.
    pub fn delete_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.slices.remove(key) else {
            return;
        };
        let owner = ObjectKey { namespace: key.namespace.clone(), name: service.into() };
        if let Some(known) = self.services.get_mut(&owner) {
            known.slices.remove(&key.name);
        }
        self.forget_if_empty(&owner);
        self.changed.insert(owner);
    }

    /// Forgets all slices but these.
    pub fn retain_slices(&mut self, live: &HashSet<ObjectKey>) {
        let gone: Vec<ObjectKey> = self.slices.keys().filter(|key| !live.contains(key)).cloned().collect();
        gone.iter().for_each(|key| self.delete_slice(key));
    }

    fn forget_if_empty(&mut self, key: &ObjectKey) {
        if self.services.get(key).is_some_and(|known| known.service.is_none() && known.slices.is_empty()) {
            self.services.remove(key);
        }
    }

    /// A service that has changed since it was last given here; none if there is none.
    pub fn next_changed(&mut self) -> Option<ObjectKey> {
        self.changed.pop_first()
    }

    /// What DNS is to say about a service, if it exists.
    pub fn view(&self, key: &ObjectKey, default_ttl: u32) -> Option<ServiceView<'_>> {
        let known = self.services.get(key)?;
        let service = known.service.as_ref()?;
        let ttl = service.ttl.unwrap_or(default_ttl);
        Some(ServiceView { ttl, created: service.created, slices: known.slices.values().collect() })
    }

    /// Every service, in the order of their names.
    pub fn services(&self) -> impl Iterator<Item = (&ObjectKey, &Service)> {
        self.services.iter().filter_map(|(key, known)| Some((key, known.service.as_ref()?)))
    }

    /// Every slice, in the order of services and slices, with its own key.
    pub fn slices(&self) -> impl Iterator<Item = (ObjectKey, &Arc<Slice>)> {
        self.services.iter().flat_map(|(owner, known)| {
            known.slices.iter().map(|(name, slice)| {
                (ObjectKey { namespace: owner.namespace.clone(), name: name.clone() }, slice)
            })
        })
    }
}
