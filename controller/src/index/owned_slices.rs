//! The objects that we write, as far as we know them: what the watch has shown, and what the API server has answered to
//! our own writes, whichever is newer.
//!
//! Without the answers, work that follows a write at once would be planned on what was there before it: the watch is behind
//! by a few milliseconds, or by minutes after an outage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::Resource;
use multinet_crds::labels;
use multinet_runtime::ObjectKey;

use super::key_of;
use crate::slices::SliceId;
use crate::slices::metadata::label;

/// Slices of one kind, by the service that they belong to.
#[derive(Debug)]
pub(super) struct OwnedSlices<S> {
    /// Namespace and name of the service that an object belongs to, if it is one of ours.
    service_of: fn(&S) -> Option<ObjectKey>,
    /// How many endpoints an object has.
    size_of: fn(&S) -> usize,
    /// How many endpoints the objects of each service have.
    sizes: HashMap<ObjectKey, usize>,
    /// Services of which that has changed.
    resized: Vec<ObjectKey>,
    services: HashMap<ObjectKey, BTreeMap<String, Tracked<S>>>,
    /// Which service an object is filed under.
    service_by_key: HashMap<ObjectKey, ObjectKey>,
    /// Uids of objects that we have deleted and the watch has not yet shown to be gone, by their key.
    deleted: HashMap<ObjectKey, String>,
    /// Services of which nobody knows what is there; see [`is_doubtful`](Self::is_doubtful).
    unlisted: HashSet<ObjectKey>,
    /// Services in work, and whether the watch has had news of them since they were [begun](Self::begin) with.
    in_work: HashMap<ObjectKey, bool>,
    /// Uids of objects of services in work that the watch has shown to be gone: an answer to a write of ours may come after that.
    deleted_in_work: HashMap<ObjectKey, HashSet<String>>,
    /// What the watch shows is part of a list.
    is_listing: bool,
}

#[derive(Debug)]
struct Tracked<S> {
    object: Arc<S>,
    /// The watch has shown this version or a newer one.
    seen: bool,
}

impl<S: Resource> OwnedSlices<S> {
    /// None yet.
    pub(super) fn new(service_of: fn(&S) -> Option<ObjectKey>, size_of: fn(&S) -> usize) -> Self {
        Self {
            service_of,
            size_of,
            sizes: HashMap::new(),
            resized: Vec::new(),
            services: HashMap::new(),
            service_by_key: HashMap::new(),
            deleted: HashMap::new(),
            unlisted: HashSet::new(),
            in_work: HashMap::new(),
            deleted_in_work: HashMap::new(),
            is_listing: false,
        }
    }

    /// The objects of a service, by name.
    pub(super) fn of(&self, service: &ObjectKey) -> Vec<Arc<S>> {
        let known = self.services.get(service).into_iter().flat_map(BTreeMap::values);
        known.map(|known| Arc::clone(&known.object)).collect()
    }

    /// The services that have any.
    pub(super) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.keys()
    }

    /// All objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<S>> {
        self.services.values().flat_map(BTreeMap::values).map(|known| &known.object)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.service_by_key.len()
    }

    /// Returns the services of which the number of endpoints has changed since it was last asked for, with that number.
    pub(super) fn resized(&mut self) -> Vec<(ObjectKey, usize)> {
        let resized = std::mem::take(&mut self.resized).into_iter();
        resized
            .map(|service| (service.clone(), self.sizes.get(&service).copied().unwrap_or_default()))
            .collect()
    }

    /// The watch begins a list, which shows the effect of every write that has been answered by now. If it does not, the API
    /// server's storage has been restored from a backup.
    pub(super) fn start(&mut self) {
        self.is_listing = true;
        self.deleted.clear();
        self.services.values_mut().flat_map(BTreeMap::values_mut).for_each(|known| known.seen = true);
    }

    /// The watch shows a version of an object. Returns the services that it concerns: none if this is what we knew, or older.
    pub(super) fn observe(&mut self, object: S) -> Vec<ObjectKey> {
        let Some(key) = key_of(object.meta()) else { return Vec::new() };
        if self.deleted.get(&key).is_some_and(|uid| Some(uid) == object.meta().uid.as_ref()) {
            return Vec::new();
        }
        let is_listing = self.is_listing;
        if let Some(known) = self.known_mut(&key)
            && !supersedes(&object, &*known.object, is_listing && known.seen)
        {
            known.seen |= object.meta().resource_version == known.object.meta().resource_version;
            return Vec::new();
        }
        let concerned = self.put(&key, object, true);
        self.note_change(&concerned);
        concerned
    }

    /// The API server has answered a write of ours with this.
    pub(super) fn record_stored(&mut self, object: S) {
        let Some(key) = key_of(object.meta()) else { return };
        let outdated = self.known_mut(&key).is_some_and(|known| !is_newer(&object, &known.object));
        let uid = object.meta().uid.as_ref();
        let has_vanished =
            self.deleted_in_work.values().any(|uids| uid.is_some_and(|uid| uids.contains(uid)));
        if !outdated && !has_vanished {
            self.put(&key, object, false);
        }
    }

    /// The watch shows that an object is gone. Returns the service that it belonged to.
    pub(super) fn observe_deleted(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        self.deleted.remove(key);
        if let Some(uid) = self.known_mut(key).and_then(|known| known.object.meta().uid.clone())
            && let Some(service) =
                self.service_by_key.get(key).filter(|service| self.in_work.contains_key(*service))
        {
            self.deleted_in_work.entry(service.clone()).or_default().insert(uid);
        }
        let concerned = self.take(key);
        self.note_change(concerned.as_slice());
        concerned
    }

    /// We have deleted an object.
    pub(super) fn record_deleted(&mut self, id: &SliceId) {
        if self.known_mut(&id.key).is_some_and(|known| known.object.meta().uid.as_deref() == Some(&id.uid)) {
            self.take(&id.key);
            self.deleted.insert(id.key.clone(), id.uid.clone());
        }
    }

    /// The watch has listed what is there. Returns the services that have lost something.
    pub(super) fn reset(&mut self, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        self.is_listing = false;
        self.deleted.retain(|key, _| live.contains(key));
        let missing: Vec<ObjectKey> =
            self.service_by_key.keys().filter(|key| !live.contains(*key)).cloned().collect();
        let mut concerned = Vec::new();
        for key in missing {
            if self.is_seen(&key) {
                concerned.extend(self.observe_deleted(&key));
            } else if let Some(service) = self.service_by_key.get(&key) {
                // OwnedSlices after that list was made, or deleted before it: the list cannot tell.
                self.unlisted.insert(service.clone());
                concerned.push(service.clone());
            }
        }
        concerned
    }

    /// Has a service's objects listed before they are planned with again. An object that has gone from a watch by labels may only have lost a label.
    pub(super) fn require_list(&mut self, service: &ObjectKey) {
        self.unlisted.insert(service.clone());
    }

    /// Whether the objects have to be asked for: a list has passed over something that we had written and the watch had not yet shown, or there is
    /// [doubt](Self::doubt).
    pub(super) fn needs_list(&self, service: &ObjectKey) -> bool {
        self.unlisted.contains(service)
    }

    /// Somebody begins to work on a service. What they list from now on is newer than what is known, but for what the watch
    /// tells in the meantime.
    pub(super) fn begin_work(&mut self, service: &ObjectKey) {
        self.in_work.insert(service.clone(), false);
    }

    /// The work is done.
    pub(super) fn end_work(&mut self, service: &ObjectKey) {
        self.in_work.remove(service);
        self.deleted_in_work.remove(service);
    }

    /// Whether nothing is kept for work.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.in_work.is_empty() && self.deleted_in_work.is_empty()
    }

    /// The objects of a service are these, by a list by labels that was made since the service was [begun](Self::begin) with.
    pub(super) fn replace_listed(&mut self, service: &ObjectKey, objects: Vec<S>) {
        if self.in_work.insert(service.clone(), false) == Some(true) {
            // Whether the list or the watch's news is newer, nobody knows: the next list will be.
            self.unlisted.insert(service.clone());
            return;
        }
        self.unlisted.remove(service);
        for object in self.of(service) {
            // One that has lost its labels is known by its owner, and in no list.
            if let Some(key) = key_of(object.meta()).filter(|_| is_listed(&*object, service)) {
                self.take(&key);
            }
        }
        for object in objects {
            if let Some(key) = key_of(object.meta()) {
                // The watch's list may have been made before this one.
                self.put(&key, object, !self.is_listing);
            }
        }
    }

    fn note_change(&mut self, services: &[ObjectKey]) {
        for service in services {
            if let Some(has_news) = self.in_work.get_mut(service) {
                *has_news = true;
            }
        }
    }

    fn known_mut(&mut self, key: &ObjectKey) -> Option<&mut Tracked<S>> {
        let service = self.service_by_key.get(key)?;
        self.services.get_mut(service)?.get_mut(&key.name)
    }

    fn is_seen(&self, key: &ObjectKey) -> bool {
        let objects = self.service_by_key.get(key).and_then(|service| self.services.get(service));
        objects.and_then(|objects| objects.get(&key.name)).is_some_and(|known| known.seen)
    }

    /// Files an object. Returns the services that have lost or got something.
    fn put(&mut self, key: &ObjectKey, object: S, seen: bool) -> Vec<ObjectKey> {
        let mut concerned: Vec<ObjectKey> = self.take(key).into_iter().collect();
        if let Some(service) = (self.service_of)(&object) {
            *self.sizes.entry(service.clone()).or_default() += (self.size_of)(&object);
            self.resized.push(service.clone());
            let known = Tracked { object: Arc::new(object), seen };
            self.services.entry(service.clone()).or_default().insert(key.name.clone(), known);
            self.service_by_key.insert(key.clone(), service.clone());
            if !concerned.contains(&service) {
                concerned.push(service);
            }
        }
        concerned
    }

    fn take(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        let service = self.service_by_key.remove(key)?;
        if let Some(objects) = self.services.get_mut(&service) {
            let size = objects.remove(&key.name).map_or(0, |known| (self.size_of)(&known.object));
            self.sizes.entry(service.clone()).and_modify(|known| *known -= size);
            self.resized.push(service.clone());
            if objects.is_empty() {
                self.services.remove(&service);
                self.sizes.remove(&service);
            }
        }
        Some(service)
    }
}

/// Whether a list by the service's name shows the object.
fn is_listed<S: Resource>(object: &S, service: &ObjectKey) -> bool {
    label(object.meta(), labels::SERVICE_NAME) == Some(&service.name)
}

/// Whether `new` is another version than `old`, and not an older one. Versions of one kind can be compared as numbers
/// (Kubernetes says so since 1.35, and etcd has always made it so); what is no number is taken for newer.
pub(super) fn is_newer<S: Resource>(new: &S, old: &S) -> bool {
    let version =
        |object: &S| object.meta().resource_version.as_deref().and_then(|text| text.parse::<u128>().ok());
    match (version(new), version(old)) {
        (Some(new), Some(old)) => new > old,
        _ => new.meta().resource_version != old.meta().resource_version,
    }
}

/// Whether what the watch shows replaces what is known: another version that is not older. A list is younger than all that the watch
/// has shown before it (`was_seen`): what has an older version there is from a backup that the API server's storage was restored from.
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

    /// The service of a slice is what stands before the dash.
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
    fn our_own_writes_come_back_as_no_news() {
        let mut written = written();
        written.record_stored(slice("infer-a", "1", "10"));
        assert!(written.observe(slice("infer-a", "1", "9")).is_empty(), "what was there before");
        assert_eq!(versions(&written), ["10"]);
        assert!(written.observe(slice("infer-a", "1", "10")).is_empty());
        assert_eq!(written.observe(slice("infer-a", "1", "11")), [key("infer")], "somebody else's");
        written.record_stored(slice("infer-a", "1", "10"));
        assert_eq!(versions(&written), ["11"]);
    }

    #[test]
    fn a_list_under_way_may_be_older_than_what_has_been_asked_for() {
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
    fn a_list_may_show_what_a_backup_has_brought_back() {
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
    fn what_we_deleted_does_not_come_back() {
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
    fn an_answer_does_not_bring_back_what_has_gone_meanwhile() {
        let mut written = written();
        written.observe(slice("infer-a", "1", "10"));
        written.begin_work(&key("infer"));
        assert_eq!(written.observe_deleted(&key("infer-a")), Some(key("infer")));
        written.record_stored(slice("infer-a", "1", "11"));
        assert_eq!(written.len(), 0, "somebody has deleted it after our write");
        written.record_stored(slice("infer-a", "2", "13"));
        assert_eq!(versions(&written), ["13"], "another of the same name");
        written.end_work(&key("infer"));
        assert!(written.deleted_in_work.is_empty());
    }

    #[test]
    fn a_list_cannot_deny_what_was_written_after_it() {
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
    fn a_list_shows_neither_what_happens_meanwhile_nor_what_has_lost_its_labels() {
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
    fn an_object_may_change_hands() {
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
        assert_eq!(written.observe(slice("x", "1", "3")), [key("detect")], "nobody's");
        assert_eq!((written.len(), written.iter().count()), (0, 0));
        assert_eq!((written.resized(), written.resized()), (vec![(key("detect"), 0)], Vec::new()));
        assert!(written.sizes.is_empty());
    }
}
