//! The limit on connections that listeners share, and what is held for their clients.
//!
//! Memory is counted over all connections: for the parts of messages that clients have sent, and for replies that
//! they have not taken. Each may have some of both, but not all of them at the same time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use multinet_runtime::{Evictor, Place, Places};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use crate::ops::metrics::ConnectionMetrics;

/// Octets that may be held for clients, over all connections.
const MAX_HELD: usize = 64 << 20;

/// What may be held for one connection however much is held for all.
pub(super) const GUARANTEED: usize = 4 << 10;

/// The limit on connections that some listeners share.
#[derive(Debug, Clone)]
pub struct Connections {
    places: Places,
    budget: Arc<MemoryBudget>,
}

/// MemoryBudget for what is held for clients.
#[derive(Debug)]
struct MemoryBudget {
    /// Octets that there may be, and how many there are.
    most: usize,
    held: AtomicUsize,
    without_room: Counter,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    place: Place,
    /// Octets that are held for its client.
    held: Arc<AtomicUsize>,
    budget: Arc<MemoryBudget>,
}

/// Octets that are held for a connection's client; none any more when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    bytes: usize,
    own: Arc<AtomicUsize>,
    budget: Arc<MemoryBudget>,
    connection: Evictor,
}

impl Connections {
    /// At most `most`, and at least one, at one time.
    pub fn new(most: usize, metrics: ConnectionMetrics) -> Self {
        Self::with_memory_limit(most, MAX_HELD, metrics)
    }

    /// The same, with room for so many bytes that are held for clients.
    pub fn with_memory_limit(most: usize, most_held: usize, metrics: ConnectionMetrics) -> Self {
        let ConnectionMetrics { evicted, without_room } = metrics;
        let budget = MemoryBudget { most: most_held, held: AtomicUsize::new(0), without_room };
        Self { places: Places::new(most, evicted), budget: Arc::new(budget) }
    }

    /// A place for a newcomer, if need be that of another.
    pub fn admit(&self, peer: IpAddr) -> ConnectionPermit {
        ConnectionPermit {
            place: self.places.admit(peer),
            held: Arc::default(),
            budget: Arc::clone(&self.budget),
        }
    }

    /// Whether the next one takes the place of another.
    pub(crate) fn is_full(&self) -> bool {
        self.places.is_full()
    }

    /// Ends the connection that should go first, for want of something else than places. Says whether there was
    /// one.
    pub(crate) fn evict(&self) -> bool {
        self.places.evict()
    }
}

impl ConnectionPermit {
    /// Notes that something was asked.
    pub fn used(&self, now: Instant) {
        self.place.used(now);
    }

    /// An account of what is held for the client.
    pub(crate) fn memory_account(&self) -> MemoryAccount {
        let (own, budget) = (Arc::clone(&self.held), Arc::clone(&self.budget));
        MemoryAccount { bytes: 0, own, budget, connection: self.place.evictor() }
    }

    /// The means to end the connection for another.
    pub(crate) fn evictor(&self) -> Evictor {
        self.place.evictor()
    }

    /// Waits until the place is given to another.
    pub(crate) async fn evicted(&self) {
        self.place.evicted().await;
    }
}

impl MemoryAccount {
    /// Notes how many bytes are held. Says whether there is room for them: for a little there always is. Without room
    /// a connection ends for which more than that is held besides.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if self.bytes != bytes {
            // The sums wrap around and back when they shrink.
            let more = bytes.wrapping_sub(std::mem::replace(&mut self.bytes, bytes));
            self.own.fetch_add(more, Ordering::Relaxed);
            self.budget.held.fetch_add(more, Ordering::Relaxed);
        }
        if bytes == 0 || self.budget.held.load(Ordering::Relaxed) <= self.budget.most {
            return true;
        }
        let own = self.own.load(Ordering::Relaxed);
        if own.saturating_sub(bytes) > GUARANTEED {
            self.connection.evict();
        }
        if own > GUARANTEED {
            self.budget.without_room.inc();
        }
        own <= GUARANTEED
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100 << 10;

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        use std::future::Future as _;
        let evicted = std::pin::pin!(permit.evicted());
        evicted.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn much_is_held_for_a_few_and_a_little_for_all() {
        let connections = Connections::with_memory_limit(10, LIMIT, ConnectionMetrics::default());
        let [one, other] = [(); 2].map(|()| connections.admit([10, 0, 0, 1].into()));
        let [mut first, mut second] = [(); 2].map(|()| one.memory_account());
        assert!(first.set(LIMIT / 2) && second.set(LIMIT / 2));
        let mut little = other.memory_account();
        assert!(little.set(GUARANTEED) && !little.set(GUARANTEED + 1));
        assert!(little.set(0));
        // It counts what is held for all of a connection, and none of it holds much besides the other.
        let mut more = other.memory_account();
        assert!(little.set(GUARANTEED / 2) && more.set(GUARANTEED / 2) && !more.set(GUARANTEED));
        assert!(!is_evicted(&other));
        // But here does.
        assert!(!second.set(LIMIT / 2));
        assert!(is_evicted(&one));
        drop(first);
        assert!(more.set(GUARANTEED));
        assert_eq!(connections.budget.without_room.get(), 3);
        drop((second, little, more));
        assert_eq!(connections.budget.held.load(Ordering::Relaxed), 0);
    }
}
