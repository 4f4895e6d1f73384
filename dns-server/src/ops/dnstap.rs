//! dnstap: passes queries and replies on to a collector (<https://dnstap.info>).
//!
//! ```text
//!  Worker::answer ─> Tap ═══ bounded queue ═══> writer ─> Frame Streams ─> collector
//!                     └─ full: drops and counts
//! ```
//!
//! A worker copies the query and the reply once and goes on; a task encodes and writes them. The
//! worker does not even wake the task, since waking costs more than answering: the task polls the
//! queue. Messages that the collector does not take in time are dropped and counted. Answers never
//! wait.

mod frames;
mod message;
mod writer;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;

use crate::answer::proto::Proto;
use crate::limits::dnstap::{QUEUE, QUEUE_BYTES};
pub use writer::Writer;

/// Address of a dnstap collector (`--dnstap`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collector {
    /// Path of the collector's Unix socket.
    Unix(PathBuf),
    /// IP address and TCP port of the collector.
    Tcp(SocketAddr),
}

impl FromStr for Collector {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let tcp = |address: &str| address.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Some(Self::Unix(path.into())),
            Some(("tcp", address)) => tcp(address).map(Self::Tcp),
            _ => None,
        }
        .ok_or("write unix:PATH or tcp:ADDR:PORT")
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Counters of dnstap messages. A query and its reply are two messages.
#[derive(Debug, Clone, Default)]
pub struct TapMetrics {
    written: Counter,
    dropped: Counter,
}

impl TapMetrics {
    /// Registers all dnstap counters for `/metrics`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("dnstap_messages", "dnstap messages written", self.written.clone());
        let help = "dnstap messages dropped because the collector did not take them in time";
        registry.register("dnstap_dropped", help, self.dropped.clone());
    }
}

/// A query to be passed to the collector, with its reply if it got one.
#[derive(Debug)]
struct Exchange {
    proto: Proto,
    peer: SocketAddr,
    asked_at: SystemTime,
    answered_at: SystemTime,
    /// The query's bytes, followed by the reply's.
    bytes: Bytes,
    query_len: usize,
}

impl Exchange {
    fn query(&self) -> Bytes {
        self.bytes.slice(..self.query_len)
    }

    /// Returns the reply's bytes; empty if the query got no reply.
    fn reply(&self) -> Bytes {
        self.bytes.slice(self.query_len..)
    }

    fn messages(&self) -> u64 {
        if self.bytes.len() > self.query_len { 2 } else { 1 }
    }
}

/// Sending end of the queue to the dnstap collector, of which each worker has a clone.
#[derive(Debug, Clone)]
pub struct Tap {
    queue: mpsc::Sender<Exchange>,
    waiting: Arc<AtomicUsize>,
    dropped: Counter,
}

impl Tap {
    /// Queues a query and its reply, which may be empty. Never waits: what does not fit is dropped.
    pub fn send(&self, proto: Proto, peer: SocketAddr, asked_at: SystemTime, query: &[u8], reply: &[u8]) {
        let size = query.len() + reply.len();
        let place = self.queue.try_reserve().ok().filter(|_| {
            // Relaxed suffices: the sum only bounds memory. Another thread may briefly see too much
            // and drop a message that would have fit.
            let fits = self.waiting.fetch_add(size, Ordering::Relaxed) + size <= QUEUE_BYTES;
            if !fits {
                self.waiting.fetch_sub(size, Ordering::Relaxed);
            }
            fits
        });
        let Some(place) = place else {
            self.dropped.inc_by(if reply.is_empty() { 1 } else { 2 });
            return;
        };
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(query);
        bytes.extend_from_slice(reply);
        let (bytes, answered_at) = (Bytes::from(bytes), SystemTime::now());
        place.send(Exchange { proto, peer, asked_at, answered_at, bytes, query_len: query.len() });
    }
}

/// Makes a queue to a collector: its sending end, and the task that writes to the collector.
pub fn tap(collector: Collector, metrics: &TapMetrics) -> (Tap, Writer) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let waiting = Arc::new(AtomicUsize::new(0));
    let tap = Tap { queue: sender, waiting: Arc::clone(&waiting), dropped: metrics.dropped.clone() };
    (tap, Writer::new(collector, receiver, waiting, metrics.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_parsed_as_it_is_shown() {
        for text in ["unix:/run/dnstap.sock", "unix:dnstap.sock", "tcp:10.0.0.1:6000", "tcp:[::1]:6000"] {
            assert_eq!(text.parse::<Collector>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "/run/dnstap.sock",
            "unix:",
            "tcp:",
            "tcp:host:1",
            "tcp:10.0.0.1",
            "tcp:10.0.0.1:0",
            "udp:10.0.0.1:1",
        ] {
            assert!(text.parse::<Collector>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped_and_counted() {
        let metrics = TapMetrics::default();
        let (tap, _writer) = tap("unix:/nowhere".parse().unwrap(), &metrics);
        let peer = SocketAddr::from(([192, 0, 2, 1], 5353));
        let send = |reply: &[u8]| tap.send(Proto::Tcp, peer, SystemTime::now(), b"query", reply);
        for _ in 0..QUEUE {
            send(b"reply");
        }
        assert_eq!(metrics.dropped.get(), 0);
        send(b"reply");
        send(b"");
        assert_eq!(metrics.dropped.get(), 3);
    }

    #[test]
    fn large_replies_are_bounded_by_their_size() {
        let metrics = TapMetrics::default();
        let (tap, _writer) = tap("unix:/nowhere".parse().unwrap(), &metrics);
        let peer = SocketAddr::from(([192, 0, 2, 1], 5353));
        let reply = vec![0; 1 << 16];
        for _ in 0..1000 {
            tap.send(Proto::Tcp, peer, SystemTime::now(), b"", &reply);
        }
        assert_eq!(metrics.dropped.get(), 2 * (1000 - QUEUE_BYTES as u64 / (1 << 16)));
    }
}
