//! Shuttle's stand-ins for the concurrent map, locks and atomics. The scheduler may delay each
//! operation on them.

pub(crate) use shuttle::sync::{RwLock, atomic};
pub(crate) use shuttle_dashmap::{DashMap as Map, Entry};

/// Returns an empty map.
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    Map::new()
}

/// Runs the closure right here: this crate has no runtime whose threads it could block.
pub(crate) fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    run()
}
