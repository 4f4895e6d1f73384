//! Limit of open connections. A new connection is always admitted. Beyond the limit an older one is
//! evicted for it; `connection_limit/eviction.rs` decides which. If new connections were refused
//! instead, the first client to open enough of them would keep all others out.

mod eviction;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::Instant;

use eviction::EvictionOrder;
pub use eviction::network_of;
use parking_lot::Mutex;

/// Limit of a server's open connections, beyond which older ones are evicted. Clones share it.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<LimitState>);

#[derive(Debug)]
struct LimitState {
    /// Largest number of open connections.
    most: usize,
    /// Metric that counts evicted connections.
    evicted: Counter,
    /// Origin of the times in [`Connection::used`].
    begun: Instant,
    order: Mutex<EvictionOrder<Arc<Connection>>>,
}

/// State that the task of an open connection shares with the [`ConnectionLimit`].
#[derive(Debug)]
struct Connection {
    /// Time of the last use, in milliseconds. Written without the lock, on every use; a stale value
    /// only makes the choice of a connection to evict less exact, so `Relaxed` is enough.
    used: AtomicU64,
    /// Wakes the connection's task when it has to close the connection.
    evicted: Notify,
}

/// Admission of one connection by a [`ConnectionLimit`], which dropping it gives back.
#[derive(Debug)]
pub struct ConnectionSlot {
    id: u64,
    connection: Arc<Connection>,
    shared: Arc<LimitState>,
}

/// Handle that closes an admitted connection.
#[derive(Debug, Clone)]
pub struct ConnectionCloser(Arc<Connection>);

impl ConnectionLimit {
    /// Creates a limit of `most` connections, and at least one. `evicted` counts evicted ones.
    pub fn new(most: usize, evicted: Counter) -> Self {
        let order = Mutex::new(EvictionOrder::new());
        Self(Arc::new(LimitState { most: most.max(1), evicted, begun: Instant::now(), order }))
    }

    /// Admits a connection of `peer`. Evicts another one if the limit is exceeded.
    pub fn admit(&self, peer: IpAddr) -> ConnectionSlot {
        let now = self.0.millis(Instant::now());
        let connection = Arc::new(Connection { used: AtomicU64::new(now), evicted: Notify::new() });
        let mut order = self.0.order.lock();
        let id = order.add(peer, now, Arc::clone(&connection));
        if order.len() > self.0.most {
            self.0.evict(&mut order);
        }
        drop(order);
        ConnectionSlot { id, connection, shared: Arc::clone(&self.0) }
    }

    /// Returns whether the next connection will cause an eviction.
    pub fn is_full(&self) -> bool {
        self.0.order.lock().len() >= self.0.most
    }

    /// Evicts a connection, for callers that lack another resource such as file descriptors.
    /// Returns whether there was one.
    pub fn evict(&self) -> bool {
        self.0.evict(&mut self.0.order.lock())
    }
}

impl LimitState {
    fn evict(&self, order: &mut EvictionOrder<Arc<Connection>>) -> bool {
        let Some(connection) = order.evict(|connection| connection.used.load(Ordering::Relaxed)) else {
            return false;
        };
        self.evicted.inc();
        connection.evicted.notify_one();
        true
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }
}

impl ConnectionSlot {
    /// Records that the connection was used at `now`, which counts when one has to be evicted.
    pub fn touch(&self, now: Instant) {
        self.connection.used.store(self.shared.millis(now), Ordering::Relaxed);
    }

    /// Waits until the connection has to be closed: it was evicted, or a [`ConnectionCloser`]
    /// closed it.
    pub async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }

    /// Returns a handle by which other tasks close the connection.
    pub fn closer(&self) -> ConnectionCloser {
        ConnectionCloser(Arc::clone(&self.connection))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.order.lock().remove(self.id);
    }
}

impl ConnectionCloser {
    /// Tells the connection's task to close it.
    pub fn close(&self) {
        self.0.evicted.notify_one();
    }
}
