//! Shuttle's stand-ins for what threads share the store by. Each operation on them is a step that
//! the scheduler may put off.

pub(crate) use shuttle::sync::{RwLock, atomic};
pub(crate) use shuttle_dashmap::{DashMap as Map, Entry};

/// Returns an empty map.
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    Map::new()
}

/// Runs `run` here: there is no runtime whose threads it could hold up.
pub(crate) fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    run()
}
