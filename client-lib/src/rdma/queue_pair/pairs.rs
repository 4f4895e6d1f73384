//! The pairs of a connection, until it is hung up.

use std::sync::{PoisonError, RwLock};

use multinet_verbs::{Error, Pair, Write};

use crate::rdma::stripes::Ticket;

pub(super) struct Pairs {
    /// None any more once they have been taken.
    all: RwLock<Vec<Pair>>,
    further: usize,
}

impl Pairs {
    /// The first one, and those that only carry parts of large frames.
    pub(super) fn new(all: Vec<Pair>) -> Self {
        Self { further: all.len().saturating_sub(1), all: RwLock::new(all) }
    }

    /// How many there are beside the first.
    pub(super) fn further(&self) -> usize {
        self.further
    }

    /// Posts to one of them, from 0. If they have gone, the other side will not miss it.
    pub(super) fn write(&self, number: usize, writes: &[Write<'_>]) -> Result<(), Error> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(number).map_or(Ok(()), |pair| pair.write(writes))
    }

    /// The other side may send one more immediate by this one.
    pub(super) fn receive(&self, number: u8) -> Result<(), Error> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(usize::from(number)).map_or(Ok(()), |pair| pair.receive(Ticket::Received(number).encode()))
    }

    /// All of them, to be let go of.
    pub(super) fn take(&self) -> Vec<Pair> {
        std::mem::take(&mut *self.all.write().unwrap_or_else(PoisonError::into_inner))
    }
}
