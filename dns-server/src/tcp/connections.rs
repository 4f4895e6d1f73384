//! The limit on connections that listeners share, and the place of each below it.
//!
//! A newcomer is always let in; beyond the limit somebody else goes for it (`tcp/crowd.rs` says who). Refusing
//! newcomers would let whoever comes first keep everybody else out.
//!
//! What waits to be written is counted over all connections, too. Each may let some wait, but not all of them at
//! the same time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::crowd::Crowd;

/// Octets of replies that may wait for clients to read them, over all connections.
const WAITING: usize = 64 << 20;

/// The limit on connections that some listeners share.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// Octets that may wait to be written, and how many do.
    most_waiting: usize,
    waiting: AtomicUsize,
    evicted: Counter,
    begun: Instant,
    crowd: Mutex<Crowd<Arc<State>>>,
}

/// What a connection and those who may end it share.
#[derive(Debug)]
struct State {
    /// When it was last used, in milliseconds.
    used: AtomicU64,
    evicted: Notify,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    state: Arc<State>,
    shared: Arc<Shared>,
    /// What waits to be written on this connection.
    waiting: AtomicUsize,
}

impl Connections {
    /// At most `most`, and at least one, at one time; those that end for others are counted in `evicted`.
    pub fn new(most: usize, evicted: Counter) -> Self {
        Self::with_room(most, WAITING, evicted)
    }

    /// The same, with room for so many octets that wait to be written.
    pub fn with_room(most: usize, most_waiting: usize, evicted: Counter) -> Self {
        let crowd = Mutex::new(Crowd::new());
        let waiting = AtomicUsize::new(0);
        Self(Arc::new(Shared {
            most: most.max(1),
            most_waiting,
            waiting,
            evicted,
            begun: Instant::now(),
            crowd,
        }))
    }

    /// A place for a newcomer, if need be that of another.
    pub fn admit(&self, peer: IpAddr) -> Seat {
        let now = self.0.millis(Instant::now());
        let state = Arc::new(State { used: AtomicU64::new(now), evicted: Notify::new() });
        let mut crowd = self.0.crowd();
        let id = crowd.add(peer, now, Arc::clone(&state));
        if crowd.len() > self.0.most {
            self.0.evict(&mut crowd);
        }
        drop(crowd);
        Seat { id, state, shared: Arc::clone(&self.0), waiting: AtomicUsize::new(0) }
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
        self.evicted.inc();
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

    /// Notes how much waits to be written. Says whether there is room for what waits everywhere.
    pub(super) fn waits(&self, octets: usize) -> bool {
        let before = self.waiting.load(Ordering::Relaxed);
        let all = &self.shared.waiting;
        if before != octets {
            // Only this connection writes its own number. The sum wraps around and back when it shrinks.
            self.waiting.store(octets, Ordering::Relaxed);
            all.fetch_add(octets.wrapping_sub(before), Ordering::Relaxed);
        }
        octets == 0 || all.load(Ordering::Relaxed) <= self.shared.most_waiting
    }

    /// Waits until the place is given to another.
    pub(crate) async fn evicted(&self) {
        self.state.evicted.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waits(0);
        self.shared.crowd().remove(self.id);
    }
}
