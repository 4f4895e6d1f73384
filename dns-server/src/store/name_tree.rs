//! The names of services below an apex, for queries to read while the publisher changes them.

use std::sync::Arc;

use crate::store::build::ServiceAnswers;
use crate::store::lookup::{self, LookupResult};
use crate::store::name::{self, Labels};
use crate::store::reverse::ServiceKey;
use crate::sync::{self, Entry, Map};

/// The services below one apex, by the labels of their names in wire format, and the names between
/// these and the apex. All names have the same number of labels.
#[derive(Debug)]
pub(crate) struct NameTree {
    labels: usize,
    pub(crate) map: Map<ServiceKey, Arc<ServiceAnswers>>,
    /// For each name above services, the number of services below it.
    above: Map<Box<[u8]>, usize>,
}

impl NameTree {
    /// Makes a tree of services whose keys have this many labels.
    pub(crate) fn new(labels: usize) -> Self {
        Self { labels, map: sync::map(), above: sync::map() }
    }

    /// Looks up a name of which the first `below` labels are below the apex, and calls `read` with
    /// the result.
    pub(crate) fn look_up<R>(
        &self,
        name: Labels<'_>,
        below: usize,
        read: impl FnOnce(&LookupResult<'_>) -> R,
    ) -> R {
        match below.checked_sub(self.labels) {
            Some(service_at) => match self.map.get(name.between(service_at, below)) {
                Some(service) => read(&lookup::find(&service, name, service_at)),
                None => read(&LookupResult::Nothing),
            },
            None => {
                let exists = self.above.contains_key(name.between(0, below));
                read(if exists { &LookupResult::Empty } else { &LookupResult::Nothing })
            }
        }
    }

    /// Adds or replaces a service. The names above it exist first.
    pub(crate) fn insert(&self, key: &ServiceKey, answers: &Arc<ServiceAnswers>) {
        if !self.map.contains_key(key) {
            for above in above(key) {
                *self.above.entry(above.into()).or_default() += 1;
            }
        }
        self.map.insert(Arc::clone(key), Arc::clone(answers));
    }

    /// Removes a service, and then the names that exist only above it.
    pub(crate) fn remove(&self, key: &ServiceKey) {
        if self.map.remove(key).is_none() {
            return;
        }
        for above in above(key) {
            if let Entry::Occupied(mut services) = self.above.entry(above.into()) {
                match services.get() {
                    0 | 1 => drop(services.remove()),
                    _ => *services.get_mut() -= 1,
                }
            }
        }
    }

    /// Returns all services with their keys.
    pub(crate) fn all(&self) -> Vec<(ServiceKey, Arc<ServiceAnswers>)> {
        self.map.iter().map(|entry| (Arc::clone(entry.key()), Arc::clone(entry.value()))).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty() && self.above.is_empty()
    }
}

/// Returns the names above a service's key, without the apex.
fn above(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(name::parent(key), |&above| name::parent(above)).filter(|above| !above.is_empty())
}
