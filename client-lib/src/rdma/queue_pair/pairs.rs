//! The queue pairs of one connection, until it is closed.

use multinet_verbs::{Error, QueuePair, Write};
use parking_lot::RwLock;

use crate::rdma::stripes::WorkRequestId;

pub(super) struct QueuePairs {
    /// The first queue pair and the extra ones; empty once [`take`](Self::take) has taken them.
    all: RwLock<Vec<QueuePair>>,
    extra: usize,
}

impl QueuePairs {
    /// Creates the set of the first queue pair and those behind it, which only carry stripes.
    pub(super) fn new(all: Vec<QueuePair>) -> Self {
        Self { extra: all.len().saturating_sub(1), all: RwLock::new(all) }
    }

    /// Returns the number of queue pairs beside the first, even after they have been taken.
    pub(super) fn extra(&self) -> usize {
        self.extra
    }

    /// Posts writes to one of the queue pairs. Does nothing once they have been taken: the peer
    /// will notice that the connection has ended.
    pub(super) fn post_writes(&self, number: usize, writes: &[Write<'_>]) -> Result<(), Error> {
        let all = self.all.read();
        all.get(number).map_or(Ok(()), |pair| pair.post_writes(writes))
    }

    /// Posts a receive request, so that the peer may send one more immediate by this queue pair.
    pub(super) fn post_receive(&self, number: u8) -> Result<(), Error> {
        let all = self.all.read();
        let id = WorkRequestId::Receive(number).encode();
        all.get(usize::from(number)).map_or(Ok(()), |pair| pair.post_receive(id))
    }

    /// Takes all queue pairs out, to be destroyed as the connection is closed.
    pub(super) fn take(&self) -> Vec<QueuePair> {
        std::mem::take(&mut *self.all.write())
    }
}
