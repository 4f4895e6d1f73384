//! From events to calls of the index.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

use kube::Resource;

use crate::metrics::KindMetrics;
use crate::{Guarded, Index, ObjectKey, TerminalSafe};

/// Feeds an index; keeps count, and keeps undecodable objects away from it.
pub(super) struct Sink<K, I: ?Sized> {
    index: Arc<I>,
    metrics: KindMetrics,
    /// The keys of the list under way, if there is one.
    live: Option<HashSet<ObjectKey>>,
    /// The objects whose newest version does not decode, with that version.
    undecodable: HashMap<ObjectKey, Option<String>>,
    /// Calls of the index since the last commit.
    uncommitted: usize,
    kind: PhantomData<fn(K)>,
}

impl<K: Resource, I: Index<K> + ?Sized> Sink<K, I> {
    pub(super) fn new(index: Arc<I>, metrics: KindMetrics) -> Self {
        Self { index, metrics, live: None, undecodable: HashMap::new(), uncommitted: 0, kind: PhantomData }
    }

    /// What follows is a list.
    pub(super) fn start_list(&mut self) {
        self.live = Some(HashSet::new());
        self.index.start();
    }

    /// The list was complete.
    pub(super) fn end_list(&mut self) {
        let live = self.live.take().unwrap_or_default();
        self.undecodable.retain(|key, _| live.contains(key));
        self.metrics.undecodable.set(self.undecodable.len() as i64);
        self.metrics.relists.inc();
        self.index.reset(&live);
        self.index.commit();
        self.uncommitted = 0;
    }

    /// The list broke off. What it has told until then is true all the same; an index that waits for the whole goes on waiting.
    pub(super) fn abandon_list(&mut self) {
        self.live = None;
        self.commit();
    }

    /// An object is new, has changed, or is part of the list.
    pub(super) fn apply(&mut self, object: Guarded<K>) {
        match &self.live {
            Some(_) => self.metrics.listed.inc(),
            None => self.metrics.applied.inc(),
        };
        let Some(key) = object.key() else {
            tracing::warn!("passing over an object without a name");
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
                        "cannot decode an object; its last good version, if any, stays in use: {}",
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

    /// An object is gone.
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

    /// How many calls of the index have not been committed yet.
    pub(super) fn uncommitted(&self) -> usize {
        self.uncommitted
    }

    /// Lets the index publish, if there is anything.
    pub(super) fn commit(&mut self) {
        if self.uncommitted > 0 {
            self.index.commit();
            self.uncommitted = 0;
        }
    }
}
