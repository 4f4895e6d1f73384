//! The limit on connections that listeners share, and the memory that is held for their clients.
//!
//! One budget covers all connections. It counts incomplete messages from clients and replies that
//! clients have not read. Each connection may hold some of both, but not all connections at the
//! same time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use multinet_runtime::{ConnectionCloser, ConnectionLimit, ConnectionSlot};
use prometheus_client::metrics::counter::Counter;

use crate::limits::tcp::{GUARANTEED, MAX_HELD};
use crate::ops::metrics::ConnectionMetrics;

/// Limit on the number of connections and on their memory, which several listeners share.
#[derive(Debug, Clone)]
pub struct Connections {
    pub(crate) places: ConnectionLimit,
    budget: Arc<MemoryBudget>,
}

/// Limit on the memory that is held for the clients of all connections together.
#[derive(Debug)]
struct MemoryBudget {
    /// Limit on `held`, in bytes.
    most: usize,
    /// Bytes held now for the clients of all connections.
    held: AtomicUsize,
    without_room: Counter,
}

/// Permission for one connection to exist. Dropping it makes room for another connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    pub(crate) place: ConnectionSlot,
    /// Bytes that all memory accounts of this connection hold together.
    held: Arc<AtomicUsize>,
    budget: Arc<MemoryBudget>,
}

/// Bytes held for one purpose on a connection. Dropping the account returns them to the budget.
#[derive(Debug)]
pub(crate) struct MemoryAccount {
    bytes: usize,
    own: Arc<AtomicUsize>,
    budget: Arc<MemoryBudget>,
    connection: ConnectionCloser,
}

impl Connections {
    /// Makes a limit of `most` connections at a time, or of one if `most` is 0.
    pub fn new(most: usize, metrics: ConnectionMetrics) -> Self {
        Self::with_memory_limit(most, MAX_HELD, metrics)
    }

    /// Like [`Self::new`], with a budget of `most_held` bytes for data held for clients.
    pub fn with_memory_limit(most: usize, most_held: usize, metrics: ConnectionMetrics) -> Self {
        let ConnectionMetrics { evicted, without_room } = metrics;
        let budget = MemoryBudget { most: most_held, held: AtomicUsize::new(0), without_room };
        Self { places: ConnectionLimit::new(most, evicted), budget: Arc::new(budget) }
    }

    /// Admits a connection from `peer`. At the limit, another connection is evicted for it.
    pub fn admit(&self, peer: IpAddr) -> ConnectionPermit {
        ConnectionPermit {
            place: self.places.admit(peer),
            held: Arc::default(),
            budget: Arc::clone(&self.budget),
        }
    }
}

impl ConnectionPermit {
    /// Returns a new, empty account for memory that is held for the connection's client.
    pub(crate) fn memory_account(&self) -> MemoryAccount {
        let (own, budget) = (Arc::clone(&self.held), Arc::clone(&self.budget));
        MemoryAccount { bytes: 0, own, budget, connection: self.place.closer() }
    }
}

impl MemoryAccount {
    /// Sets the number of bytes held, and returns whether they fit. A few bytes always fit. If the
    /// budget is spent and the connection's other accounts hold more than a few, the connection is
    /// evicted.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if self.bytes != bytes {
            // Relaxed suffices: the sums are compared with limits, and order no other memory.
            // Wrapping addition also subtracts: a negative difference wraps around, and the sum
            // wraps back.
            let more = bytes.wrapping_sub(std::mem::replace(&mut self.bytes, bytes));
            self.own.fetch_add(more, Ordering::Relaxed);
            self.budget.held.fetch_add(more, Ordering::Relaxed);
        }
        if bytes == 0 || self.budget.held.load(Ordering::Relaxed) <= self.budget.most {
            return true;
        }
        let own = self.own.load(Ordering::Relaxed);
        if own.saturating_sub(bytes) > GUARANTEED {
            self.connection.close();
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
        let evicted = std::pin::pin!(permit.place.evicted());
        evicted.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn a_spent_budget_leaves_a_little_memory_to_every_connection() {
        let connections = Connections::with_memory_limit(10, LIMIT, ConnectionMetrics::default());
        let [one, other] = [(); 2].map(|()| connections.admit([10, 0, 0, 1].into()));
        let [mut first, mut second] = [(); 2].map(|()| one.memory_account());
        assert!(first.set(LIMIT / 2) && second.set(LIMIT / 2));
        let mut little = other.memory_account();
        assert!(little.set(GUARANTEED) && !little.set(GUARANTEED + 1));
        assert!(little.set(0));
        // All accounts of a connection count together. This connection is not evicted, since no
        // other account of it holds much.
        let mut more = other.memory_account();
        assert!(little.set(GUARANTEED / 2) && more.set(GUARANTEED / 2) && !more.set(GUARANTEED));
        assert!(!is_evicted(&other));
        // This connection is, since its other account holds much.
        assert!(!second.set(LIMIT / 2));
        assert!(is_evicted(&one));
        drop(first);
        assert!(more.set(GUARANTEED));
        assert_eq!(connections.budget.without_room.get(), 3);
        drop((second, little, more));
        assert_eq!(connections.budget.held.load(Ordering::Relaxed), 0);
    }
}
