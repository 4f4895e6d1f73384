//! Peers that have come to fetch payloads, on their way to the program that offers them.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::pending::{ConnectionCounts, Counted};
use crate::handshake::Fetch;
use crate::stream::Stream;

/// Part of the connections that peers of one address may have.
const PART_EACH: usize = 16;

/// Fewest connections that peers of one address may have.
const LEAST_EACH: usize = 8;

/// Queue of connections from fetchers.
pub(super) struct Fetchers {
    pub(super) queue: mpsc::Sender<ArrivedFetcher>,
    pub(super) counts: Arc<ConnectionCounts>,
}

/// Connection from a peer that has come to fetch payloads, after its first message.
pub(crate) struct ArrivedFetcher {
    pub(crate) stream: Stream,
    pub(crate) fetch: Fetch,
    pub(crate) from: SocketAddr,
    /// Counts the connection as long as it lasts.
    pub(crate) counted: Counted,
}

impl Fetchers {
    /// Creates a queue for at most `most` connections at a time.
    pub(super) fn new(most: usize) -> (Self, mpsc::Receiver<ArrivedFetcher>) {
        let (queue, receiver) = mpsc::channel(1);
        let counts = ConnectionCounts::new(most, (most / PART_EACH).max(LEAST_EACH));
        (Self { queue, counts }, receiver)
    }
}
