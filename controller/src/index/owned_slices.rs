//! The slices that the controller writes: what the watch has shown, or the API server's answers to
//! the controller's own writes, whichever is newer.
//!
//! The watch is behind by milliseconds, or by minutes after an outage. Without the answers, a plan
//! that follows a write would be based on the state before that write.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use kube::Resource;
use multinet_crds::labels;
use multinet_runtime::ObjectKey;

use super::missing;
use super::versions::{is_newer, supersedes};
use crate::slices::SliceId;
use crate::slices::metadata::label;

/// Slices of one kind that the controller owns, by the service that they belong to.
#[derive(Debug)]
pub(super) struct OwnedSlices<S> {
    /// Returns the service that a slice belongs to; `None` if the controller does not manage the
    /// slice.
    service_of: fn(&S) -> Option<ObjectKey>,
    /// Returns the number of endpoints in a slice.
    size_of: fn(&S) -> usize,
    /// Known state of each slice, by the slice's key.
    slices: HashMap<ObjectKey, Known<S>>,
    /// The services that have slices, with the keys of these slices.
    services: HashMap<ObjectKey, Members>,
    /// Services whose number of endpoints has changed since the last call of `resized`.
    resized: Vec<ObjectKey>,
    /// Services whose slices must be listed; see [`needs_list`](Self::needs_list).
    unlisted: HashSet<ObjectKey>,
    /// Services that the writer works on, with what the watch has shown meanwhile.
    in_work: HashMap<ObjectKey, Changes>,
    /// Whether the watch is in the middle of a list.
    is_listing: bool,
}

/// Newest known state of a slice: from the watch, or from the answer to a write.
#[derive(Debug)]
enum Known<S> {
    /// The watch has shown this version of the slice, or a newer one.
    Shown(OwnedSlice<S>),
    /// This version is an answer to a write, and the watch has not shown it yet.
    Written(OwnedSlice<S>),
    /// The controller has deleted the slice with this uid, and the watch has not shown that yet.
    Deleted { uid: String },
}

#[derive(Debug)]
struct OwnedSlice<S> {
    service: ObjectKey,
    object: Arc<S>,
}

/// Keys of a service's slices, and the number of their endpoints.
#[derive(Debug, Default)]
struct Members {
    keys: BTreeSet<ObjectKey>,
    /// Number of endpoints in the service's slices.
    size: usize,
}

/// Changes that the watch has shown while a service is being worked on.
#[derive(Debug, Default)]
struct Changes {
    /// Whether the watch has shown a change since [`begin_work`](OwnedSlices::begin_work) or the
    /// last list.
    is_any: bool,
    /// Uids of slices that it has shown as deleted. The answer to an earlier write of such a slice
    /// may still arrive.
    deleted: HashSet<String>,
}

impl<S: Resource> Known<S> {
    fn slice(&self) -> Option<&OwnedSlice<S>> {
        match self {
            Self::Shown(slice) | Self::Written(slice) => Some(slice),
            Self::Deleted { .. } => None,
        }
    }

    /// Returns whether the version `shown` by the watch replaces this state.
    fn gives_way_to(&self, shown: &S, is_listing: bool) -> bool {
        match self {
            Self::Shown(slice) => supersedes(shown, &slice.object, is_listing),
            Self::Written(slice) => is_newer(shown, &slice.object),
            Self::Deleted { uid } => shown.meta().uid.as_ref() != Some(uid),
        }
    }

    /// Records that the watch has shown this version of the slice.
    fn set_shown(&mut self) {
        if let Self::Written(OwnedSlice { service, object }) = self {
            *self = Self::Shown(OwnedSlice { service: service.clone(), object: Arc::clone(object) });
        }
    }
}

impl<S: Resource> OwnedSlices<S> {
    /// Creates an empty set.
    pub(super) fn new(service_of: fn(&S) -> Option<ObjectKey>, size_of: fn(&S) -> usize) -> Self {
        Self {
            service_of,
            size_of,
            slices: HashMap::new(),
            services: HashMap::new(),
            resized: Vec::new(),
            unlisted: HashSet::new(),
            in_work: HashMap::new(),
            is_listing: false,
        }
    }

    /// Returns the slices of a service, in the order of their names.
    pub(super) fn of(&self, service: &ObjectKey) -> Vec<Arc<S>> {
        let keys = self.services.get(service).into_iter().flat_map(|members| &members.keys);
        keys.filter_map(|key| self.slice(key)).map(|slice| Arc::clone(&slice.object)).collect()
    }

    /// Returns the services that have slices.
    pub(super) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.keys()
    }

    /// Returns all slices.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<S>> {
        self.slices.values().filter_map(Known::slice).map(|slice| &slice.object)
    }

    /// Returns the number of slices.
    pub(super) fn len(&self) -> usize {
        self.services.values().map(|members| members.keys.len()).sum()
    }

    /// Returns the services whose number of endpoints has changed since the last call, with that
    /// number.
    pub(super) fn resized(&mut self) -> Vec<(ObjectKey, usize)> {
        let size = |service: &ObjectKey| self.services.get(service).map_or(0, |members| members.size);
        let resized = std::mem::take(&mut self.resized).into_iter();
        resized.map(|service| (service.clone(), size(&service))).collect()
    }

    /// Begins a list. It reflects every write that was answered before now, so all known versions
    /// count as shown. If it contains an older version, the API server's storage was restored from
    /// a backup.
    pub(super) fn start(&mut self) {
        self.is_listing = true;
        self.slices.retain(|_, known| !matches!(known, Known::Deleted { .. }));
        self.slices.values_mut().for_each(Known::set_shown);
    }

    /// Records a version that the watch shows. Returns the affected services: none if the version
    /// is known or older.
    pub(super) fn observe(&mut self, object: S) -> Vec<ObjectKey> {
        let Some(key) = ObjectKey::of(object.meta()) else { return Vec::new() };
        if let Some(known) = self.slices.get_mut(&key)
            && !known.gives_way_to(&object, self.is_listing)
        {
            let version = |object: &S| object.meta().resource_version.clone();
            if known.slice().is_some_and(|slice| version(&slice.object) == version(&object)) {
                known.set_shown();
            }
            return Vec::new();
        }
        let concerned = self.put(&key, object, Known::Shown);
        for service in &concerned {
            if let Some(changes) = self.in_work.get_mut(service) {
                changes.is_any = true;
            }
        }
        concerned
    }

    /// Records the slice in the API server's answer to a write.
    pub(super) fn record_stored(&mut self, object: S) {
        let Some(key) = ObjectKey::of(object.meta()) else { return };
        let is_outdated = self.slice(&key).is_some_and(|slice| !is_newer(&object, &*slice.object));
        let is_deleted = |uid: &String| self.in_work.values().any(|changes| changes.deleted.contains(uid));
        if !is_outdated && !object.meta().uid.as_ref().is_some_and(is_deleted) {
            self.put(&key, object, Known::Written);
        }
    }

    /// Records that the watch shows a slice as deleted. Returns the service that it belonged to.
    pub(super) fn observe_deleted(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        let OwnedSlice { service, object } = self.take(key)?;
        if let Some(changes) = self.in_work.get_mut(&service) {
            changes.is_any = true;
            changes.deleted.extend(object.meta().uid.clone());
        }
        Some(service)
    }

    /// Records that the controller has deleted a slice.
    pub(super) fn record_deleted(&mut self, id: &SliceId) {
        let is_meant = |slice: &OwnedSlice<S>| slice.object.meta().uid.as_deref() == Some(&*id.uid);
        if self.slice(&id.key).is_some_and(is_meant) {
            self.take(&id.key);
            self.slices.insert(id.key.clone(), Known::Deleted { uid: id.uid.clone() });
        }
    }

    /// Ends a list of the keys `live`. Returns the services that have lost a slice, or that must be
    /// listed.
    pub(super) fn reset(&mut self, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        self.is_listing = false;
        let mut concerned = Vec::new();
        for key in missing(self.slices.keys(), live) {
            if let Some(Known::Written(slice)) = self.slices.get(&key) {
                // The slice was written after the list was made, or deleted before it. The list
                // cannot tell which.
                self.unlisted.insert(slice.service.clone());
                concerned.push(slice.service.clone());
            } else {
                concerned.extend(self.observe_deleted(&key));
            }
        }
        concerned
    }

    /// Requires that a service's slices are listed before the next plan. A slice that disappears
    /// from a watch with a label selector may only have lost the label.
    pub(super) fn require_list(&mut self, service: &ObjectKey) {
        self.unlisted.insert(service.clone());
    }

    /// Returns whether the service's slices must be listed: because a list lacked a slice that the
    /// controller had written and the watch had not shown yet, or because of
    /// [`require_list`](Self::require_list).
    pub(super) fn needs_list(&self, service: &ObjectKey) -> bool {
        self.unlisted.contains(service)
    }

    /// Begins work on a service. A list that is made from now on is newer than the known slices,
    /// unless the watch shows a change meanwhile.
    pub(super) fn begin_work(&mut self, service: &ObjectKey) {
        self.in_work.entry(service.clone()).or_default().is_any = false;
    }

    /// Ends the work on a service that [`begin_work`](Self::begin_work) began.
    pub(super) fn end_work(&mut self, service: &ObjectKey) {
        self.in_work.remove(service);
    }

    /// Returns whether no service is being worked on.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.in_work.is_empty()
    }

    /// Replaces the slices of a service by those of a list that was selected by label and made
    /// after [`begin_work`](Self::begin_work).
    pub(super) fn replace_listed(&mut self, service: &ObjectKey, objects: Vec<S>) {
        let changes = self.in_work.entry(service.clone()).or_default();
        if std::mem::take(&mut changes.is_any) {
            // The watch has shown a change meanwhile. The list may be older or newer than that, so
            // another list is needed.
            self.unlisted.insert(service.clone());
            return;
        }
        self.unlisted.remove(service);
        for object in self.of(service) {
            // A slice without the label belongs to the service through its owner, and is in no
            // list. Keep it.
            if let Some(key) = ObjectKey::of(object.meta()).filter(|_| is_listed(&*object, service)) {
                self.take(&key);
            }
        }
        // The watch's own list may have been made before this one.
        let state: fn(OwnedSlice<S>) -> Known<S> =
            if self.is_listing { Known::Written } else { Known::Shown };
        for object in objects {
            if let Some(key) = ObjectKey::of(object.meta()) {
                self.put(&key, object, state);
            }
        }
    }

    fn slice(&self, key: &ObjectKey) -> Option<&OwnedSlice<S>> {
        self.slices.get(key)?.slice()
    }

    /// Adds or replaces a slice. Returns the services that have lost or gained it.
    fn put(&mut self, key: &ObjectKey, object: S, state: fn(OwnedSlice<S>) -> Known<S>) -> Vec<ObjectKey> {
        let mut concerned: Vec<ObjectKey> = self.take(key).map(|old| old.service).into_iter().collect();
        if let Some(service) = (self.service_of)(&object) {
            let members = self.services.entry(service.clone()).or_default();
            members.keys.insert(key.clone());
            members.size += (self.size_of)(&object);
            self.resized.push(service.clone());
            if !concerned.contains(&service) {
                concerned.push(service.clone());
            }
            self.slices.insert(key.clone(), state(OwnedSlice { service, object: Arc::new(object) }));
        }
        concerned
    }

    /// Removes the state of a slice. Returns the slice if there was one.
    fn take(&mut self, key: &ObjectKey) -> Option<OwnedSlice<S>> {
        let (Known::Shown(slice) | Known::Written(slice)) = self.slices.remove(key)? else { return None };
        if let Some(members) = self.services.get_mut(&slice.service) {
            members.keys.remove(key);
            members.size -= (self.size_of)(&slice.object);
            self.resized.push(slice.service.clone());
            if members.keys.is_empty() {
                self.services.remove(&slice.service);
            }
        }
        Some(slice)
    }
}

/// Returns whether the slice has the label of the service's name, by which lists are selected.
fn is_listed<S: Resource>(object: &S, service: &ObjectKey) -> bool {
    label(object.meta(), labels::SERVICE_NAME) == Some(&service.name)
}
