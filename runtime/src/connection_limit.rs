//! ConnectionLimit for connections: a newcomer is always let in, and beyond the limit another goes for it (`places/order.rs`
//! says which). Refusing newcomers would let whoever comes first keep everybody else out.

mod eviction;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::Instant;

use eviction::EvictionOrder;
pub use eviction::network_of;

/// A number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    evicted: Counter,
    begun: Instant,
    order: Mutex<EvictionOrder<Arc<Connection>>>,
}

/// Connection, as those see it who may end it.
#[derive(Debug)]
struct Connection {
    /// When it was last used, in milliseconds.
    used: AtomicU64,
    evicted: Notify,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    id: u64,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
}

/// Ends the connection that has a place.
#[derive(Debug, Clone)]
pub struct ConnectionCloser(Arc<Connection>);

impl ConnectionLimit {
    /// At most `most`, and at least one; `evicted` counts those who have gone for others.
    pub fn new(most: usize, evicted: Counter) -> Self {
        let order = Mutex::new(EvictionOrder::new());
        Self(Arc::new(Shared { most: most.max(1), evicted, begun: Instant::now(), order }))
    }

    /// A place for a newcomer, if need be that of another.
    pub fn admit(&self, peer: IpAddr) -> ConnectionSlot {
        let now = self.0.millis(Instant::now());
        let connection = Arc::new(Connection { used: AtomicU64::new(now), evicted: Notify::new() });
        let mut order = self.0.order();
        let id = order.add(peer, now, Arc::clone(&connection));
        if order.len() > self.0.most {
            self.0.evict(&mut order);
        }
        drop(order);
        ConnectionSlot { id, connection, shared: Arc::clone(&self.0) }
    }

    /// Whether the next one takes the place of another.
    pub fn is_full(&self) -> bool {
        self.0.order().len() >= self.0.most
    }

    /// Ends the connection that should go first, for want of something else than places. Says whether there was
    /// one.
    pub fn evict(&self) -> bool {
        self.0.evict(&mut self.0.order())
    }
}

impl Shared {
    fn order(&self) -> MutexGuard<'_, EvictionOrder<Arc<Connection>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
    /// Notes that the connection is in use.
    pub fn touch(&self, now: Instant) {
        self.connection.used.store(self.shared.millis(now), Ordering::Relaxed);
    }

    /// Waits until the place is given to another.
    pub async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }

    /// The means to end the connection for another reason.
    pub fn closer(&self) -> ConnectionCloser {
        ConnectionCloser(Arc::clone(&self.connection))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.order().remove(self.id);
    }
}

impl ConnectionCloser {
    /// Ends the connection.
    pub fn close(&self) {
        self.0.evicted.notify_one();
    }
}
