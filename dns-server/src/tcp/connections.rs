//! The limit on connections that listeners share, and the place of each below it.
//!
//! A newcomer is always let in; beyond the limit somebody else goes for it (`tcp/crowd.rs` says who). Refusing
//! newcomers would let whoever comes first keep everybody else out.
//!
//! What is held for clients is counted over all connections, too: what they have sent of a message that is not
//! complete, and replies that they have not taken. Each may have some of both, but not all of them at the same
//! time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::crowd::Crowd;

/// Octets that may be held for clients, over all connections.
const HELD: usize = 64 << 20;

/// What may be held for one connection however much is held for all.
pub(super) const LITTLE: usize = 4 << 10;

/// What is counted of connections.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Those that ended for others because there were too many.
    pub evicted: Counter,
    /// Messages and replies that there was no room for any more.
    pub without_room: Counter,
}

/// The limit on connections that some listeners share.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// Octets that may be held for clients, and how many are.
    most_held: usize,
    held: AtomicUsize,
    metrics: ConnectionMetrics,
    begun: Instant,
    crowd: Mutex<Crowd<Arc<State>>>,
}

/// What a connection and those who may end it share.
#[derive(Debug)]
struct State {
    /// When it was last used, in milliseconds.
    used: AtomicU64,
    /// Octets that are held for its client.
    held: AtomicUsize,
    evicted: Notify,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    state: Arc<State>,
    shared: Arc<Shared>,
}

/// Octets that are held for a connection's client; none any more when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    octets: usize,
    state: Arc<State>,
    shared: Arc<Shared>,
}

impl Connections {
    /// At most `most`, and at least one, at one time.
    pub fn new(most: usize, metrics: ConnectionMetrics) -> Self {
        Self::with_room(most, HELD, metrics)
    }

    /// The same, with room for so many octets that are held for clients.
    pub fn with_room(most: usize, most_held: usize, metrics: ConnectionMetrics) -> Self {
        let crowd = Mutex::new(Crowd::new());
        let (held, begun) = (AtomicUsize::new(0), Instant::now());
        Self(Arc::new(Shared { most: most.max(1), most_held, held, metrics, begun, crowd }))
    }

    /// A place for a newcomer, if need be that of another.
    pub fn admit(&self, peer: IpAddr) -> Seat {
        let now = self.0.millis(Instant::now());
        let state =
            Arc::new(State { used: AtomicU64::new(now), held: AtomicUsize::new(0), evicted: Notify::new() });
        let mut crowd = self.0.crowd();
        let id = crowd.add(peer, now, Arc::clone(&state));
        if crowd.len() > self.0.most {
            self.0.evict(&mut crowd);
        }
        drop(crowd);
        Seat { id, state, shared: Arc::clone(&self.0) }
    }

    /// Whether the next one takes the place of another.
    pub(crate) fn is_full(&self) -> bool {
        self.0.crowd().len() >= self.0.most
    }

    /// Ends the connection that should go first, for want of something else than places. Says whether there was
    /// one.
    pub(crate) fn evict(&self) -> bool {
        self.0.evict(&mut self.0.crowd())
    }
}

impl Shared {
    fn crowd(&self) -> MutexGuard<'_, Crowd<Arc<State>>> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self, crowd: &mut Crowd<Arc<State>>) -> bool {
        let Some(state) = crowd.evict(|state| state.used.load(Ordering::Relaxed)) else { return false };
        self.metrics.evicted.inc();
        state.evicted.notify_one();
        true
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Seat {
    /// Notes that something was asked.
    pub fn used(&self, now: Instant) {
        self.state.used.store(self.shared.millis(now), Ordering::Relaxed);
    }

    /// An account of what is held for the client.
    pub(crate) fn held(&self) -> Held {
        Held { octets: 0, state: Arc::clone(&self.state), shared: Arc::clone(&self.shared) }
    }

    /// Waits until the place is given to another.
    pub(crate) async fn evicted(&self) {
        self.state.evicted.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.crowd().remove(self.id);
    }
}

impl Held {
    /// Notes how many octets are held. Says whether there is room for them: for a little there always is. Without room
    /// a connection ends for which more than that is held besides.
    pub(crate) fn set(&mut self, octets: usize) -> bool {
        if self.octets != octets {
            // The sums wrap around and back when they shrink.
            let more = octets.wrapping_sub(std::mem::replace(&mut self.octets, octets));
            self.state.held.fetch_add(more, Ordering::Relaxed);
            self.shared.held.fetch_add(more, Ordering::Relaxed);
        }
        if octets == 0 || self.shared.held.load(Ordering::Relaxed) <= self.shared.most_held {
            return true;
        }
        let own = self.state.held.load(Ordering::Relaxed);
        if own.saturating_sub(octets) > LITTLE {
            self.state.evicted.notify_one();
        }
        if own > LITTLE {
            self.shared.metrics.without_room.inc();
        }
        own <= LITTLE
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 100 << 10;

    fn is_evicted(seat: &Seat) -> bool {
        use std::future::Future as _;
        let evicted = std::pin::pin!(seat.evicted());
        evicted.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn much_is_held_for_a_few_and_a_little_for_all() {
        let connections = Connections::with_room(10, ROOM, ConnectionMetrics::default());
        let [one, other] = [(); 2].map(|()| connections.admit([10, 0, 0, 1].into()));
        let [mut first, mut second] = [(); 2].map(|()| one.held());
        assert!(first.set(ROOM / 2) && second.set(ROOM / 2));
        let mut little = other.held();
        assert!(little.set(LITTLE) && !little.set(LITTLE + 1));
        assert!(little.set(0));
        // It counts what is held for all of a connection, and none of it holds much besides the other.
        let mut more = other.held();
        assert!(little.set(LITTLE / 2) && more.set(LITTLE / 2) && !more.set(LITTLE));
        assert!(!is_evicted(&other));
        // But here does.
        assert!(!second.set(ROOM / 2));
        assert!(is_evicted(&one));
        drop(first);
        assert!(more.set(LITTLE));
        assert_eq!(connections.0.metrics.without_room.get(), 3);
        drop((second, little, more));
        assert_eq!(connections.0.held.load(Ordering::Relaxed), 0);
    }
}
