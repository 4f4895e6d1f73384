//! What others may know of peers and frames.

use super::{Counts, Outbound, PeerId};
use crate::handshake::Delivery;

impl<F: Clone> Outbound<F> {
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// How many frames it still has.
    pub(crate) fn held(&self) -> usize {
        self.ring.len() + self.unwritten().count()
    }

    /// How many frames no receiver's code has taken, by any connection that is there.
    pub(crate) fn untaken(&self) -> u64 {
        let links = self.peers.iter().flat_map(|peer| &peer.links).filter(|link| link.is_up());
        let under_way: u64 = links.map(|link| link.ledger.assigned.saturating_sub(link.ledger.taken)).sum();
        under_way + (self.requeued.len() + self.paused.len()) as u64
    }

    /// Whether it still has a frame.
    pub(crate) fn holds(&self, sequence: u64) -> bool {
        self.ring.get(sequence).is_some() || self.unwritten().any(|&other| other == sequence)
    }

    /// Whether a frame that it has no more has been given up.
    pub(crate) fn has_given_up(&self, sequence: u64) -> bool {
        self.given_up.contains(sequence)
    }

    /// How many frames have been given up: nobody got them, or they were not even written to a connection that has broken.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.count()
    }

    /// The sequence that the next frame gets.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.ring.next()
    }

    /// Whether everything before a sequence has been written, or acknowledged, or given up.
    pub(crate) fn is_idle_before(&self, sequence: u64) -> bool {
        self.ring.floor() >= sequence && self.unwritten().all(|&unwritten| unwritten >= sequence)
    }

    /// The peer that has a frame, or is to have it, or had it.
    pub(crate) fn peer_of(&self, sequence: u64) -> Option<PeerId> {
        let entry = self.ring.get(sequence)?;
        entry.link.map(|link| link.peer).or(entry.only).or(entry.previous_peer)
    }

    /// Whether everything has been written, or acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle_before(self.next_sequence())
    }

    /// The peers that are connected and stay, with the frames under way to each.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (PeerId, u64)> {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none() && peer.is_up());
        stay.map(|peer| (peer.id, peer.outstanding()))
    }

    /// How many connections there are to the peers that stay.
    pub(crate) fn connections(&self) -> usize {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none());
        stay.flat_map(|peer| &peer.links).filter(|link| link.is_up()).count()
    }

    /// How many frames the peers that stay have room for.
    pub(crate) fn credits(&self) -> u64 {
        let stay = self.peers.iter().filter(|peer| peer.draining_until.is_none());
        stay.flat_map(|peer| &peer.links).map(|link| link.ledger.credits()).sum()
    }

    /// Whether a peer gets new frames: DNS names it.
    pub(crate) fn is_active(&self, peer: PeerId) -> bool {
        self.position(peer).is_some_and(|at| self.peers[at].draining_until.is_none())
    }

    /// Whether it knows a peer.
    pub(crate) fn knows(&self, peer: PeerId) -> bool {
        self.position(peer).is_some()
    }

    /// Frames that have been handed over, and that only this still tells of: where frames are kept, there are none to look for.
    fn unwritten(&self) -> impl Iterator<Item = &u64> {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let peers = if is_kept { &[][..] } else { &self.peers };
        peers.iter().flat_map(|peer| &peer.links).flat_map(|link| link.ledger.unwritten.iter().flatten())
    }
}
