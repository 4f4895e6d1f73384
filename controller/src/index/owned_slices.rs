//! The slices that the controller writes: what the watch has shown, or the API server's answers to
//! the controller's own writes, whichever is newer.
//!
//! The watch is behind by milliseconds, or by minutes after an outage. Without the answers, a plan
//! that follows a write would be based on the state before that write.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use kube::Resource;
use multinet_crds::labels;
use multinet_runtime::ObjectKey;

use super::{key_of, missing};
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
        let Some(key) = key_of(object.meta()) else { return Vec::new() };
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
        let Some(key) = key_of(object.meta()) else { return };
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
            if let Some(key) = key_of(object.meta()).filter(|_| is_listed(&*object, service)) {
                self.take(&key);
            }
        }
        // The watch's own list may have been made before this one.
        let state: fn(OwnedSlice<S>) -> Known<S> =
            if self.is_listing { Known::Written } else { Known::Shown };
        for object in objects {
            if let Some(key) = key_of(object.meta()) {
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

/// Returns whether `new` is a newer version than `old`. Versions of one kind compare as numbers
/// (documented since Kubernetes 1.35, and always true for etcd). A version that is no number counts
/// as newer if it differs.
pub(super) fn is_newer<S: Resource>(new: &S, old: &S) -> bool {
    let version =
        |object: &S| object.meta().resource_version.as_deref().and_then(|text| text.parse::<u128>().ok());
    match (version(new), version(old)) {
        (Some(new), Some(old)) => new > old,
        _ => new.meta().resource_version != old.meta().resource_version,
    }
}

/// Returns whether the version that the watch shows replaces the known one: it is newer, or it is
/// another version in a list that is made after the known one was seen (`was_seen`). An older
/// version in such a list comes from a restored backup.
pub(super) fn supersedes<S: Resource>(shown: &S, known: &S, was_seen: bool) -> bool {
    is_newer(shown, known) || was_seen && shown.meta().resource_version != known.meta().resource_version
}

#[cfg(test)]
mod tests {
    use multinet_crds::{
        IpFamily, MultiNetworkEndpointSlice, MultiNetworkEndpointSliceSpec, NetworkReference,
    };

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "vision".into(), name: name.into() }
    }

    fn slice(name: &str, uid: &str, version: &str) -> MultiNetworkEndpointSlice {
        let spec = MultiNetworkEndpointSliceSpec {
            address_type: IpFamily::Ipv4,
            network: NetworkReference::default(),
            ports: Vec::new(),
            endpoints: Vec::new(),
        };
        let mut slice = MultiNetworkEndpointSlice::new(name, spec);
        slice.metadata.namespace = Some("vision".into());
        slice.metadata.uid = Some(uid.into());
        slice.metadata.resource_version = Some(version.into());
        let labels = [
            (labels::MANAGED_BY, labels::MANAGED_BY_CONTROLLER),
            (labels::SERVICE_NAME, name.split('-').next().unwrap()),
        ];
        slice.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        slice
    }

    /// Slices whose service is the part of the name before the dash.
    fn written() -> OwnedSlices<MultiNetworkEndpointSlice> {
        OwnedSlices::new(
            |slice| slice.metadata.name.as_deref()?.split_once('-').map(|(service, _)| key(service)),
            |_| 1,
        )
    }

    fn versions(written: &OwnedSlices<MultiNetworkEndpointSlice>) -> Vec<String> {
        written
            .of(&key("infer"))
            .iter()
            .map(|slice| slice.metadata.resource_version.clone().unwrap())
            .collect()
    }

    #[test]
    fn own_writes_shown_by_the_watch_affect_nothing() {
        let mut written = written();
        written.record_stored(slice("infer-a", "1", "10"));
        assert!(written.observe(slice("infer-a", "1", "9")).is_empty(), "what was there before");
        assert_eq!(versions(&written), ["10"]);
        assert!(written.observe(slice("infer-a", "1", "10")).is_empty());
        assert_eq!(
            written.observe(slice("infer-a", "1", "11")),
            [key("infer")],
            "a change by another writer"
        );
        written.record_stored(slice("infer-a", "1", "10"));
        assert_eq!(versions(&written), ["11"]);
    }

    #[test]
    fn a_watch_list_may_be_older_than_a_requested_list() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        written.start();
        written.begin_work(&key("infer"));
        written.replace_listed(&key("infer"), vec![slice("infer-a", "1", "15"), slice("infer-b", "2", "16")]);
        assert!(written.observe(slice("infer-a", "1", "9")).is_empty(), "a later page of that list");
        written.reset(&[key("infer-a")].into());
        assert_eq!(versions(&written), ["15", "16"]);
        assert!(written.needs_list(&key("infer")), "whether the second is there, has to be asked");
    }

    #[test]
    fn a_list_may_contain_older_versions_from_a_backup() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        written.record_stored(slice("infer-b", "2", "20"));
        let id = SliceId { key: key("infer-d"), uid: "4".into(), resource_version: "19".into() };
        written.record_stored(slice("infer-d", "4", "19"));
        written.record_deleted(&id);
        let older = || {
            [("infer-a", "1", "7"), ("infer-b", "2", "8"), ("infer-c", "3", "9"), ("infer-d", "4", "6")]
                .map(|(name, uid, version)| slice(name, uid, version))
        };
        let [a, b, _, d] = older();
        assert!([a, b, d].into_iter().all(|older| written.observe(older).is_empty()), "no list");
        written.start();
        written.record_stored(slice("infer-c", "3", "21"));
        let concerned = older().map(|older| written.observe(older).len());
        assert_eq!(concerned, [1, 1, 0, 1], "a list may be older than what is written during it");
        assert_eq!(versions(&written), ["7", "8", "21", "6"]);
        assert!(written.observe(slice("infer-a", "1", "7")).is_empty(), "no news");
        written.reset(&["infer-a", "infer-b", "infer-c", "infer-d"].map(key).into());
        assert!(written.observe(slice("infer-a", "1", "6")).is_empty(), "that list is over");
    }

    #[test]
    fn a_deleted_slice_does_not_come_back() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        let id = SliceId { key: key("infer-a"), uid: "1".into(), resource_version: "10".into() };
        written.record_deleted(&id);
        assert!(written.observe(slice("infer-a", "1", "11")).is_empty());
        assert_eq!(written.len(), 0);
        assert_eq!(written.observe(slice("infer-a", "2", "12")), [key("infer")], "another of the same name");
        written.record_deleted(&id);
        assert_eq!(versions(&written), ["12"], "not the one that was meant");
        assert_eq!(written.observe_deleted(&key("infer-a")), Some(key("infer")));
        assert_eq!(written.observe_deleted(&key("infer-a")), None);
    }

    #[test]
    fn a_late_answer_does_not_restore_a_deleted_slice() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        written.begin_work(&key("infer"));
        assert_eq!(written.observe_deleted(&key("infer-a")), Some(key("infer")));
        written.record_stored(slice("infer-a", "1", "11"));
        assert_eq!(written.len(), 0, "a user has deleted it after our write");
        written.record_stored(slice("infer-a", "2", "13"));
        assert_eq!(versions(&written), ["13"], "another of the same name");
        written.end_work(&key("infer"));
        assert!(written.is_idle());
    }

    #[test]
    fn a_slice_written_after_a_list_survives_it() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        written.record_stored(slice("infer-b", "2", "20"));
        assert!(!written.needs_list(&key("infer")));
        assert!(written.reset(&HashSet::new()).contains(&key("infer")));
        assert_eq!(versions(&written), ["20"]);
        assert!(written.needs_list(&key("infer")), "so it has to be asked for");
        written.begin_work(&key("infer"));
        written.replace_listed(&key("infer"), vec![slice("infer-c", "3", "30")]);
        assert_eq!(versions(&written), ["30"]);
        assert!(!written.needs_list(&key("infer")));
    }

    #[test]
    fn a_list_lacks_concurrent_changes_and_unlabelled_slices() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        let mut bare = slice("infer-b", "2", "20");
        bare.metadata.labels = None;
        written.observe(bare);
        written.begin_work(&key("infer"));
        let listed = vec![slice("infer-a", "1", "10")];
        written.observe_deleted(&key("infer-a"));
        written.replace_listed(&key("infer"), listed);
        assert_eq!(versions(&written), ["20"]);
        assert!(written.needs_list(&key("infer")), "the list may be older than the watch");
        written.begin_work(&key("infer"));
        written.replace_listed(&key("infer"), Vec::new());
        assert_eq!(versions(&written), ["20"], "which no list shows");
        assert!(!written.needs_list(&key("infer")));
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
        let service_of = |slice: &MultiNetworkEndpointSlice| {
            slice.metadata.labels.as_ref()?.get("service").map(|name| key(name))
        };
        let mut written = OwnedSlices::new(service_of, |_| 1);
        let labelled = |version: &str, service: &str| {
            let mut slice = slice("x", "1", version);
            slice.metadata.labels = Some([("service".to_owned(), service.to_owned())].into());
            slice
        };
        written.observe(labelled("1", "infer"));
        assert_eq!(written.observe(labelled("2", "detect")), [key("infer"), key("detect")]);
        assert_eq!(written.services().collect::<Vec<_>>(), [&key("detect")]);
        assert!(written.resized().ends_with(&[(key("infer"), 0), (key("detect"), 1)]));
        assert_eq!(
            written.observe(slice("x", "1", "3")),
            [key("detect")],
            "the new version belongs to no service"
        );
        assert_eq!((written.len(), written.iter().count()), (0, 0));
        assert_eq!((written.resized(), written.resized()), (vec![(key("detect"), 0)], Vec::new()));
        assert!(written.services.is_empty());
    }
}
