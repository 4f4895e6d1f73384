//! Shuttle's stand-ins for the concurrent map, locks and atomics. The scheduler may delay each
//! operation on them.

use std::sync::PoisonError;

pub(crate) use shuttle::sync::atomic;
use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};
pub(crate) use shuttle_dashmap::{DashMap as Map, Entry};

/// A lock that ignores poisoning, as that of the server does.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns an empty map.
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    Map::new()
}

/// Runs the closure right here: this crate has no runtime whose threads it could block.
pub(crate) fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    run()
}
