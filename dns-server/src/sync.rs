//! The concurrent map, locks and atomics through which threads share the store.
//!
//! The crate in `orders.rs` replaces this module by stand-ins under which a scheduler chooses the
//! order of all steps of the threads.

pub(crate) use std::sync::atomic;

pub(crate) use dashmap::Entry;
pub(crate) use parking_lot::RwLock;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Map that threads read while another thread changes it.
pub(crate) type Map<K, V> = dashmap::DashMap<K, V, foldhash::fast::RandomState>;

/// Returns an empty [`Map`].
pub(crate) fn map<K: Eq + std::hash::Hash, V>() -> Map<K, V> {
    // Many more shards than threads, so that two readers rarely meet at one lock.
    const SHARDS: usize = 128;
    Map::with_hasher_and_shard_amount(foldhash::fast::RandomState::default(), SHARDS)
}

/// Runs a closure that waits for another thread or takes long. On a thread of the multi-threaded
/// runtime, tokio moves the other connections to another thread meanwhile.
pub(crate) fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}
