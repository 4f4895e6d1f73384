//! What threads share the store by: a concurrent map, locks and atomics.
//!
//! With the feature `shuttle`, which only a test asks for, they are stand-ins under which a scheduler chooses the order of all
//! steps that threads take; see `tests/model/orders.rs`.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{RwLock, atomic};

use tokio::runtime::{Handle, RuntimeFlavor};

#[cfg(not(feature = "shuttle"))]
pub(crate) use dashmap::Entry;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{RwLock, atomic};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle_dashmap::Entry;

/// A map that threads read while another changes it.
#[cfg(not(feature = "shuttle"))]
pub(crate) type Map<K, V> = dashmap::DashMap<K, V, foldhash::fast::RandomState>;
#[cfg(feature = "shuttle")]
pub(crate) type Map<K, V> = shuttle_dashmap::DashMap<K, V>;

/// An empty map.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    // Many more than threads, so that two readers seldom meet at one lock.
    const SHARDS: usize = 128;
    Map::with_hasher_and_shard_amount(foldhash::fast::RandomState::default(), SHARDS)
}

#[cfg(feature = "shuttle")]
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    Map::new()
}

/// Runs what has to wait for another thread, or takes long. On a thread of the runtime that serves connections, those
/// go on elsewhere meanwhile.
pub(crate) fn aside<T>(run: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}
