//! Queries about peers and frames.

use super::{Outbound, PeerId, Statistics};
use crate::handshake::Delivery;

impl<F: Clone> Outbound<F> {
    /// Returns counts of frames, peers and connections.
    pub(crate) fn statistics(&self) -> Statistics {
        let (connected, outstanding) =
            self.connected().fold((0, 0), |(peers, sum), (_, frames)| (peers + 1, sum + frames));
        Statistics {
            connected,
            connections: self.connections(),
            outstanding,
            credits: self.credits(),
            held: self.held(),
            untaken: self.untaken(),
            ..self.counts
        }
    }

    /// Returns the number of frames that are neither written (at most once) nor acknowledged (at
    /// least once).
    pub(crate) fn held(&self) -> usize {
        self.ring.len() + self.unwritten().count()
    }

    /// Returns the number of frames that no receiver's application has taken over a current
    /// connection.
    pub(crate) fn untaken(&self) -> u64 {
        let links = self.peers.iter().flat_map(|peer| &peer.links).filter(|link| link.is_up());
        let under_way: u64 = links.map(|link| link.ledger.assigned.saturating_sub(link.ledger.taken)).sum();
        under_way + (self.requeued.len() + self.paused.len()) as u64
    }

    /// Returns whether a frame still waits to be written (at most once) or acknowledged (at least
    /// once).
    pub(crate) fn holds(&self, sequence: u64) -> bool {
        self.ring.get(sequence).is_some() || self.unwritten().any(|&other| other == sequence)
    }

    /// Returns whether a frame that is no longer held was given up.
    pub(crate) fn has_given_up(&self, sequence: u64) -> bool {
        self.given_up.contains(sequence)
    }

    /// Returns the number of frames that were given up: no receiver got them, or their connection
    /// broke before they were written.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.count()
    }

    /// Returns the sequence that the next submitted frame gets.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.ring.next()
    }

    /// Returns whether all frames before a sequence are done: written, acknowledged or given up.
    pub(crate) fn is_idle_before(&self, sequence: u64) -> bool {
        self.ring.floor() >= sequence && self.unwritten().all(|&unwritten| unwritten >= sequence)
    }

    /// Returns the peer that a frame is assigned to, is meant for, or went to last.
    pub(crate) fn peer_of(&self, sequence: u64) -> Option<PeerId> {
        let entry = self.ring.get(sequence)?;
        entry.link.map(|link| link.peer).or(entry.only).or(entry.previous_peer)
    }

    /// Returns whether all frames are done: written, acknowledged or given up.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle_before(self.next_sequence())
    }

    /// Returns the connected, active peers, each with its number of frames in flight.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (PeerId, u64)> {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none() && peer.is_up());
        stay.map(|peer| (peer.id, peer.outstanding()))
    }

    /// Returns the number of connections that are up to peers that DNS names.
    pub(crate) fn connections(&self) -> usize {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none());
        stay.flat_map(|peer| &peer.links).filter(|link| link.is_up()).count()
    }

    /// Returns the number of further frames that peers which DNS names have room for.
    pub(crate) fn credits(&self) -> u64 {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none());
        stay.flat_map(|peer| &peer.links).map(|link| link.ledger.credits()).sum()
    }

    /// Returns whether DNS still names a peer. Only such a peer gets new frames.
    pub(crate) fn is_active(&self, peer: PeerId) -> bool {
        self.position(peer).is_some_and(|at| self.peers[at].draining_until.is_none())
    }

    /// Returns whether the peer exists in the state machine: it is active, or drains.
    pub(crate) fn knows(&self, peer: PeerId) -> bool {
        self.position(peer).is_some()
    }

    /// Returns the sequences of frames that were taken but not written. At least once, the ring has
    /// them anyway.
    fn unwritten(&self) -> impl Iterator<Item = &u64> {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let peers = if is_kept { &[][..] } else { &self.peers };
        peers.iter().flat_map(|peer| &peer.links).flat_map(|link| link.ledger.unwritten.iter().flatten())
    }
}
