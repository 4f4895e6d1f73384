//! The tallies of all threads. A UDP worker has a tally of its own. The connections of a transport
//! count in the tally of the thread that runs them at the moment.
//!
//! So every tally has one writer, and counting is a plain load and store. Six atomic additions per
//! query would cost ten times as much, and a tally per connection would make a scrape walk 20,000
//! of them.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use strum::VariantArray as _;

use super::tally::Tally;
use crate::answer::proto::Proto;
use crate::ops::top::{self, SketchSnapshot};

/// Number of threads with tallies of their own. Further threads share one by atomic additions. The
/// runtime has one thread per core.
const THREADS: usize = 64;

/// All tallies. There is one per thread and transport, however many connections there are.
#[derive(Debug, Clone)]
pub struct Tallies(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// Number of most frequent queries that each tally counts; 0 for none (`--debug-top`).
    top: u16,
    workers: Mutex<WorkerTallies>,
    connections: [OnceLock<Arc<ThreadTallies>>; Proto::VARIANTS.len()],
}

/// Tallies of UDP workers, one for each worker thread.
#[derive(Debug, Default)]
struct WorkerTallies {
    all: Vec<Arc<Tally>>,
    /// Tallies of workers that have ended, for new workers.
    idle: Vec<Arc<Tally>>,
}

/// Tallies of one transport's connections, one for each thread that serves some.
#[derive(Debug)]
struct ThreadTallies {
    proto: Proto,
    top: u16,
    /// Indexed by the thread's number. The last one is shared by all threads beyond the limit.
    tallies: [OnceLock<Arc<Tally>>; THREADS + 1],
}

impl ThreadTallies {
    /// Returns the tally that only this thread writes to, or the shared one.
    fn of_this_thread(&self) -> &Tally {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            /// Number of the thread, never reused, even after the thread has ended.
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        let number = NUMBER.try_with(|number| *number).map_or(THREADS, |number| number.min(THREADS));
        self.tallies[number].get_or_init(|| Arc::new(Tally::new(self.proto, number == THREADS, self.top)))
    }
}

/// Access of a UDP worker or a connection to the tally that it counts in.
#[derive(Debug)]
pub struct TallyHandle(HandleKind);

#[derive(Debug)]
enum HandleKind {
    Worker { tally: Arc<Tally>, pool: Arc<Pool> },
    Connection(Arc<ThreadTallies>),
}

impl Deref for TallyHandle {
    type Target = Tally;

    #[inline]
    fn deref(&self) -> &Tally {
        match &self.0 {
            HandleKind::Worker { tally, .. } => tally,
            HandleKind::Connection(tallies) => tallies.of_this_thread(),
        }
    }
}

impl Drop for TallyHandle {
    /// Returns a worker's tally to the pool for another worker; its counts remain.
    fn drop(&mut self) {
        if let HandleKind::Worker { tally, pool } = &self.0 {
            pool.workers.lock().idle.push(Arc::clone(tally));
        }
    }
}

impl Default for Tallies {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Tallies {
    /// Returns tallies that count `top` of the most frequent queries each; 0 for none.
    pub fn new(top: u16) -> Self {
        let (workers, connections) = (Mutex::default(), [const { OnceLock::new() }; Proto::VARIANTS.len()]);
        Self(Arc::new(Pool { top, workers, connections }))
    }

    /// Tells whether the names of queries are counted, for `/debug/top`.
    pub fn counts_names(&self) -> bool {
        self.0.top > 0
    }

    /// Returns a handle for a new UDP worker, or for a new connection by `proto`.
    pub fn handle(&self, proto: Proto) -> TallyHandle {
        let top = self.0.top;
        if proto != Proto::Udp {
            let tallies = self.0.connections[proto as usize].get_or_init(|| {
                Arc::new(ThreadTallies { proto, top, tallies: [const { OnceLock::new() }; THREADS + 1] })
            });
            return TallyHandle(HandleKind::Connection(Arc::clone(tallies)));
        }
        let mut workers = self.0.workers.lock();
        let tally = workers.idle.pop().unwrap_or_else(|| {
            let tally = Arc::new(Tally::new(proto, false, top));
            workers.all.push(Arc::clone(&tally));
            tally
        });
        drop(workers);
        TallyHandle(HandleKind::Worker { tally, pool: Arc::clone(&self.0) })
    }

    /// Returns the most frequent queries of all transports, as the JSON of `/debug/top`.
    pub fn top(&self) -> Value {
        let sketches: Vec<SketchSnapshot> = self.all().iter().filter_map(|tally| tally.snapshot()).collect();
        top::merge(&sketches, self.0.top).describe()
    }

    /// Returns the tallies of all workers and connections.
    pub(super) fn all(&self) -> Vec<Arc<Tally>> {
        let mut all = self.0.workers.lock().all.clone();
        let connections = self.0.connections.iter().filter_map(OnceLock::get);
        all.extend(connections.flat_map(|by_thread| &by_thread.tallies).filter_map(OnceLock::get).cloned());
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::answer::query::Rcode;
    use crate::ops::metrics::PacketEvent;
    use crate::store::rrset::rtype;

    fn total(tallies: &Tallies, pick: fn(&Tally) -> u64) -> u64 {
        tallies.all().iter().map(|tally| pick(tally)).sum()
    }

    #[test]
    fn a_worker_has_a_tally_and_connections_share_that_of_their_thread() {
        let tallies = Tallies::default();
        let workers = [tallies.handle(Proto::Udp), tallies.handle(Proto::Udp)];
        workers.iter().for_each(|worker| worker.count(PacketEvent::Ignored, 1));
        let connections: Vec<_> = (0..20_000).map(|_| tallies.handle(Proto::Tcp)).collect();
        connections.iter().for_each(|connection| connection.count(PacketEvent::Ignored, 1));
        std::thread::scope(|scope| {
            scope.spawn(|| connections[0].count(PacketEvent::Ignored, 1));
        });
        // One tally per thread, or one for both if all are taken.
        let expected = total(&tallies, |_| 1);
        assert!((3..=4).contains(&expected), "{expected}");
        assert_eq!(
            total(&tallies, |tally| tally.events[PacketEvent::Ignored as usize].load(Ordering::Relaxed)),
            2 + 20_001
        );
        drop(workers);
        let _again = [tallies.handle(Proto::Udp), tallies.handle(Proto::Udp)];
        assert_eq!(total(&tallies, |_| 1), expected);
    }

    /// The shared tally of threads beyond the limit loses nothing either.
    #[test]
    fn counts_of_many_threads_are_complete() {
        let tallies = Tallies::new(10);
        let connection = tallies.handle(Proto::Tls);
        std::thread::scope(|scope| {
            for _ in 0..2 * THREADS {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        connection.answered(true, Some(rtype::AAAA), Rcode::NoError, 50, &[0; 100]);
                        connection.asked_for(b"\0", rtype::AAAA, Rcode::NoError);
                        connection.record_duration(1, Duration::from_micros(20));
                    }
                });
            }
        });
        let expected = 2000 * THREADS as u64;
        assert_eq!(total(&tallies, |tally| tally.requests[1][1].load(Ordering::Relaxed)), expected);
        assert_eq!(total(&tallies, |tally| tally.response_size.sum.load(Ordering::Relaxed)), 100 * expected);
        assert_eq!(total(&tallies, |tally| tally.duration.count(1)), expected);
        assert_eq!(tallies.top()["names"][0]["count"], expected);
        assert!(total(&tallies, |_| 1) <= THREADS as u64 + 1);
    }
}
