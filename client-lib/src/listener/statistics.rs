//! Counts of what a listener has received.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Data;

/// Counters of all frames and connections since a listener began.
#[derive(Default)]
pub(super) struct Counters {
    frames: AtomicU64,
    bytes: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
}

/// Counts of what a [`Listener`](super::Listener) has received so far, and what it uses now.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     listener: &multinet_client::Listener,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let before = listener.statistics();
/// tokio::time::sleep(Duration::from_secs(1)).await;
/// println!("{} bytes per second", listener.statistics().bytes - before.bytes);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStatistics {
    /// Frames that have come so far, without those that had come before.
    pub frames: u64,
    /// Bytes in the payloads of the `frames`, without keys and metadata.
    pub bytes: u64,
    /// Frames that were dropped, as they had come before: only senders that deliver at least once
    /// repeat some.
    pub duplicates: u64,
    /// Connections that were not let in, for any reason.
    pub refused: u64,
    /// Frames that wait for the program to receive them.
    pub waiting: usize,
    /// Connections that exist now, and those that have ended, but whose frames the program still
    /// has.
    pub connections: usize,
    /// Bytes of memory that are promised to the `connections`: slots, with or without frames in
    /// them.
    pub promised: usize,
}

impl Counters {
    pub(super) fn statistics(
        &self,
        waiting: usize,
        connections: usize,
        promised: usize,
    ) -> ListenerStatistics {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ListenerStatistics {
            frames: now(&self.frames),
            bytes: now(&self.bytes),
            duplicates: now(&self.duplicates),
            refused: now(&self.refused),
            waiting,
            connections,
            promised,
        }
    }

    pub(super) fn arrived(&self, data: &Data) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(data.payload.into(), Ordering::Relaxed);
    }

    pub(super) fn dropped(&self) {
        self.duplicates.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}
