//! Slices that others write: users, or other programs. DNS answers with their endpoints too.

use std::collections::{HashMap, HashSet};

use multinet_crds::{MultiNetworkEndpointSlice, labels};
use multinet_runtime::ObjectKey;

use super::missing;
use crate::multimap::MultiMap;
use crate::slices;
use crate::slices::metadata::label;
use crate::tally::SlicePods;

/// MultiNetworkEndpointSlices that the controller does not own, by service.
#[derive(Debug, Default)]
pub(super) struct ForeignSlices {
    slices: HashMap<ObjectKey, (ObjectKey, SlicePods)>,
    by_service: MultiMap<ObjectKey, ObjectKey>,
}

impl ForeignSlices {
    /// Records a slice that the watch shows, if it is foreign. Returns the affected services.
    pub(super) fn observe(&mut self, slice: &MultiNetworkEndpointSlice) -> Vec<ObjectKey> {
        let Some(key) = ObjectKey::of(&slice.metadata) else { return Vec::new() };
        let service =
            label(&slice.metadata, labels::SERVICE_NAME).filter(|_| slices::service_of(slice).is_none());
        let Some(service) = service else { return self.observe_deleted(&key).into_iter().collect() };
        let service = key.beside(service);
        let new = (service.clone(), SlicePods::of(slice.spec.network.alias(), &slice.spec.endpoints));
        if self.slices.get(&key) == Some(&new) {
            return Vec::new();
        }
        let mut concerned: Vec<ObjectKey> = self.observe_deleted(&key).into_iter().collect();
        self.by_service.insert(service.clone(), key.clone());
        self.slices.insert(key, new);
        concerned.push(service);
        concerned
    }

    /// Records that the watch shows a slice as deleted. Returns the affected service.
    pub(super) fn observe_deleted(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        let (service, _) = self.slices.remove(key)?;
        self.by_service.remove(&service, key);
        Some(service)
    }

    /// Removes all slices that are not in `live`. Returns the affected services.
    pub(super) fn retain(&mut self, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let gone = missing(self.slices.keys(), live);
        gone.iter().filter_map(|key| self.observe_deleted(key)).collect()
    }

    /// Returns the number of endpoints in a service's foreign slices.
    pub(super) fn size(&self, service: &ObjectKey) -> usize {
        self.of(service).into_iter().map(SlicePods::len).sum()
    }

    /// Returns the pods in each foreign slice of a service.
    pub(super) fn of<'a>(&'a self, service: &ObjectKey) -> Vec<&'a SlicePods> {
        self.by_service.of(service).filter_map(|key| Some(&self.slices.get(key)?.1)).collect()
    }
}
