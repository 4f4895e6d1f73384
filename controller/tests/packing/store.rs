//! Slices, and the rules of the API server for those who write them.

use std::collections::BTreeMap;
use std::sync::Arc;

use multinet_controller::slices::Plan;

use crate::kinds::Kind;

/// The slices of a service, by name.
pub(crate) struct Store<K> {
    slices: BTreeMap<String, Arc<K>>,
    version: u64,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self { slices: BTreeMap::new(), version: 0 }
    }
}

impl<K: Kind> Store<K> {
    /// All slices, as a watch has them.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.slices.values().cloned().collect()
    }

    /// Those that are not being deleted.
    pub(crate) fn alive(&self) -> Vec<Arc<K>> {
        self.slices.values().filter(|slice| slice.meta().deletion_timestamp.is_none()).cloned().collect()
    }

    /// Applies a plan; panics where the API server would refuse.
    pub(crate) fn apply(&mut self, plan: Plan<K>) {
        for id in plan.delete {
            let slice = &self.slices[&id.key.name];
            assert_eq!(slice.meta().uid.as_ref(), Some(&id.uid));
            assert_eq!(slice.meta().resource_version.as_ref(), Some(&id.resource_version));
            assert!(slice.meta().deletion_timestamp.is_none(), "{} is being deleted already", id.key);
            self.slices.remove(&id.key.name);
        }
        for slice in plan.update {
            let old = self.slices[&name(&slice)].meta();
            assert!(old.deletion_timestamp.is_none(), "{} is being deleted", name(&slice));
            assert_eq!(slice.meta().uid, old.uid, "a name has changed hands");
            assert_eq!(slice.meta().resource_version, old.resource_version);
            assert_eq!(slice.family(), self.slices[&name(&slice)].family(), "addressType is immutable");
            self.put(slice);
        }
        for slice in plan.create {
            assert!(!self.slices.contains_key(&name(&slice)), "{} exists", name(&slice));
            assert!(slice.meta().uid.is_none() && slice.meta().resource_version.is_none());
            self.add(slice);
        }
    }

    /// Whether writing this slice would change more than the time of the change.
    pub(crate) fn differs(&self, slice: &K) -> bool {
        let plain = |slice: &K| {
            let mut slice = slice.clone();
            slice.meta_mut().annotations = None;
            slice
        };
        plain(slice) != plain(&self.slices[&name(slice)])
    }

    /// A new slice, by whomever.
    pub(crate) fn add(&mut self, mut slice: K) {
        slice.meta_mut().uid = Some(format!("uid-{}", self.version));
        self.put(slice);
    }

    /// A copy of a slice under another name.
    pub(crate) fn copy(&mut self, mut slice: K) {
        slice.meta_mut().name = Some(format!("by-hand-{}", self.version));
        self.add(slice);
    }

    /// A change of a slice, by somebody else.
    pub(crate) fn edit(&mut self, which: usize, edit: impl FnOnce(&mut K)) {
        if let Some(mut slice) = self.nth(which) {
            edit(&mut slice);
            self.put(slice);
        }
    }

    /// A slice is gone.
    pub(crate) fn remove(&mut self, which: usize) {
        if let Some(slice) = self.nth(which) {
            self.slices.remove(&name(&slice));
        }
    }

    /// A copy of some slice, if there is any.
    pub(crate) fn nth(&self, which: usize) -> Option<K> {
        let place = which.checked_rem(self.slices.len())?;
        self.slices.values().nth(place).map(|slice| K::clone(slice))
    }

    fn put(&mut self, mut slice: K) {
        self.version += 1;
        slice.meta_mut().resource_version = Some(self.version.to_string());
        self.slices.insert(name(&slice), Arc::new(slice));
    }
}

fn name<K: Kind>(slice: &K) -> String {
    slice.meta().name.clone().unwrap_or_else(|| panic!("a slice without a name"))
}
