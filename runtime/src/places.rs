//! Places for connections: a newcomer is always let in, and beyond the limit another goes for it (`places/crowd.rs`
//! says which). Refusing newcomers would let whoever comes first keep everybody else out.

mod crowd;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::Instant;

use crowd::Crowd;
pub use crowd::network_of;

/// A number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    evicted: Counter,
    begun: Instant,
    crowd: Mutex<Crowd<Arc<Occupant>>>,
}

/// Connection, as those see it who may end it.
#[derive(Debug)]
struct Occupant {
    /// When it was last used, in milliseconds.
    used: AtomicU64,
    evicted: Notify,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    id: u64,
    occupant: Arc<Occupant>,
    shared: Arc<Shared>,
}

/// Ends the connection that has a place.
#[derive(Debug, Clone)]
pub struct Evictor(Arc<Occupant>);

impl Places {
    /// At most `most`, and at least one; `evicted` counts those who have gone for others.
    pub fn new(most: usize, evicted: Counter) -> Self {
        let crowd = Mutex::new(Crowd::new());
        Self(Arc::new(Shared { most: most.max(1), evicted, begun: Instant::now(), crowd }))
    }

    /// A place for a newcomer, if need be that of another.
    pub fn admit(&self, peer: IpAddr) -> Place {
        let now = self.0.millis(Instant::now());
        let occupant = Arc::new(Occupant { used: AtomicU64::new(now), evicted: Notify::new() });
        let mut crowd = self.0.crowd();
        let id = crowd.add(peer, now, Arc::clone(&occupant));
        if crowd.len() > self.0.most {
            self.0.evict(&mut crowd);
        }
        drop(crowd);
        Place { id, occupant, shared: Arc::clone(&self.0) }
    }

    /// Whether the next one takes the place of another.
    pub fn is_full(&self) -> bool {
        self.0.crowd().len() >= self.0.most
    }

    /// Ends the connection that should go first, for want of something else than places. Says whether there was
    /// one.
    pub fn evict(&self) -> bool {
        self.0.evict(&mut self.0.crowd())
    }
}

impl Shared {
    fn crowd(&self) -> MutexGuard<'_, Crowd<Arc<Occupant>>> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self, crowd: &mut Crowd<Arc<Occupant>>) -> bool {
        let Some(occupant) = crowd.evict(|occupant| occupant.used.load(Ordering::Relaxed)) else {
            return false;
        };
        self.evicted.inc();
        occupant.evicted.notify_one();
        true
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Place {
    /// Notes that the connection is in use.
    pub fn used(&self, now: Instant) {
        self.occupant.used.store(self.shared.millis(now), Ordering::Relaxed);
    }

    /// Waits until the place is given to another.
    pub async fn evicted(&self) {
        self.occupant.evicted.notified().await;
    }

    /// The means to end the connection for another reason.
    pub fn evictor(&self) -> Evictor {
        Evictor(Arc::clone(&self.occupant))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.crowd().remove(self.id);
    }
}

impl Evictor {
    /// Ends the connection.
    pub fn evict(&self) {
        self.0.evicted.notify_one();
    }
}
