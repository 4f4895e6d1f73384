//! Translation of a watch's events into calls of the index.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

use kube::Resource;

use crate::metrics::KindMetrics;
use crate::{Guarded, Index, ObjectKey, TerminalSafe};

/// Passes objects to an index, counts them in metrics, and keeps undecodable ones from the index.
pub(super) struct Sink<K, I: ?Sized> {
    index: Arc<I>,
    metrics: KindMetrics,
    /// Keys of the objects that the list under way has had so far; `None` outside of a list.
    live: Option<HashSet<ObjectKey>>,
    /// Objects whose newest version does not decode, with that resourceVersion.
    undecodable: HashMap<ObjectKey, Option<String>>,
    /// Number of calls to the index since its last commit.
    uncommitted: usize,
    kind: PhantomData<fn(K)>,
}

impl<K: Resource, I: Index<K> + ?Sized> Sink<K, I> {
    pub(super) fn new(index: Arc<I>, metrics: KindMetrics) -> Self {
        Self { index, metrics, live: None, undecodable: HashMap::new(), uncommitted: 0, kind: PhantomData }
    }

    /// Begins a list of all objects, also in the index.
    pub(super) fn start_list(&mut self) {
        self.live = Some(HashSet::new());
        self.index.start();
    }

    /// Ends a complete list: the index drops the objects that were not in it, and commits.
    pub(super) fn end_list(&mut self) {
        let live = self.live.take().unwrap_or_default();
        self.undecodable.retain(|key, _| live.contains(key));
        self.metrics.undecodable.set(self.undecodable.len() as i64);
        self.metrics.relists.inc();
        self.index.reset(&live);
        self.index.commit();
        self.uncommitted = 0;
    }

    /// Ends a list that broke off. Its objects are committed, because they are current. An index
    /// that needs a whole list keeps waiting for a reset.
    pub(super) fn abandon_list(&mut self) {
        self.live = None;
        self.commit();
    }

    /// Passes on an object that is new, has changed, or is part of a list.
    pub(super) fn apply(&mut self, object: Guarded<K>) {
        match &self.live {
            Some(_) => self.metrics.listed.inc(),
            None => self.metrics.applied.inc(),
        };
        let Some(key) = object.key() else {
            tracing::warn!("ignoring an object without a name from the API server");
            return;
        };
        match object {
            Guarded::Good(object) => {
                if self.undecodable.remove(&key).is_some() {
                    tracing::info!(object = %TerminalSafe(&key.to_string()), "the object can be decoded again");
                    self.metrics.undecodable.set(self.undecodable.len() as i64);
                }
                self.index.apply(object);
                self.uncommitted += 1;
            }
            Guarded::Bad(object) => {
                let version = object.metadata.resource_version;
                if self.undecodable.get(&key) != Some(&version) {
                    tracing::warn!(
                        object = %TerminalSafe(&key.to_string()),
                        version = %TerminalSafe(version.as_deref().unwrap_or_default()),
                        "cannot decode an object; using its last good version, if there was one: {}",
                        TerminalSafe(&object.error),
                    );
                    self.undecodable.insert(key.clone(), version);
                    self.metrics.undecodable.set(self.undecodable.len() as i64);
                }
            }
        }
        if let Some(live) = &mut self.live {
            live.insert(key);
        }
    }

    /// Passes the deletion of an object on to the index.
    pub(super) fn delete(&mut self, object: &Guarded<K>) {
        self.metrics.deleted.inc();
        let Some(key) = object.key() else { return };
        if self.undecodable.remove(&key).is_some() {
            self.metrics.undecodable.set(self.undecodable.len() as i64);
        }
        if let Some(live) = &mut self.live {
            live.remove(&key);
        }
        self.index.delete(&key);
        self.uncommitted += 1;
    }

    /// Returns the number of calls to the index since its last commit.
    pub(super) fn uncommitted(&self) -> usize {
        self.uncommitted
    }

    /// Commits the index, if it has been called since its last commit.
    pub(super) fn commit(&mut self) {
        if self.uncommitted > 0 {
            self.index.commit();
            self.uncommitted = 0;
        }
    }
}
