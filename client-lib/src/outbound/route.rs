//! Choice of the connection for a frame, be it new or requeued.

use super::peer::PeerState;
use super::ring::Entry;
use super::{Action, LinkId, Outbound, PeerId, Refused};
use crate::choose::{Choice, choose};
use crate::handshake::Delivery;
use crate::wire::WINDOW;

/// Properties of a frame that decide which peers it may go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requirements {
    pub(super) length: usize,
    pub(super) key: u64,
    pub(super) only: Option<PeerId>,
    pub(super) avoid: Option<PeerId>,
}

impl<F: Clone> Outbound<F> {
    /// Chooses the connection for a new frame, or returns why the frame is not accepted now.
    pub(super) fn place_new(&mut self, wanted: Requirements) -> Result<LinkId, Refused> {
        if wanted.only.is_some_and(|only| !self.is_active(only)) {
            return Err(Refused::Gone);
        }
        if self.is_window_full() {
            return Err(Refused::Undecided { sequence: self.ring.floor() });
        }
        if self.ring.len() >= self.settings.replay {
            return Err(Refused::Full);
        }
        let link = self.choose(wanted)?;
        if self.is_overtaking(wanted) { Err(Refused::Full) } else { Ok(link) }
    }

    /// Requeues frames that were not taken yet and whose key belongs to another connection by now.
    /// Otherwise later frames of the key could overtake them.
    pub(super) fn recall_moved(&mut self) {
        if self.settings.choice != Choice::ByKey {
            return;
        }
        let is_new =
            |entry: &Entry<F>| !entry.is_handed && entry.previous_peer.is_none() && entry.only.is_none();
        for sequence in self.ring.sequences(|entry| entry.link.is_some() && is_new(entry)) {
            let Some(&Entry { length, key, link: Some(link), .. }) = self.ring.get(sequence) else {
                continue;
            };
            let peer = self.peer_for(Requirements { length, key, only: None, avoid: None });
            if peer.is_some_and(|peer| {
                (peer.id, peer.index_for_key(key)) != (link.peer, usize::from(link.index))
            }) {
                self.withdraw(sequence, link);
                self.requeued.insert(sequence);
            }
        }
    }

    /// Assigns requeued frames to connections, oldest first. No frame goes before an older one of
    /// its key.
    pub(super) fn reassign(&mut self) {
        if self.requeued.is_empty() {
            return;
        }
        // Oldest frame of each key that has to wait: younger ones of the key wait for it.
        let (mut next, mut keys) = (0, self.paused_keys());
        while let Some(&sequence) = self.requeued.range(next..).next()
            && self.has_credit()
        {
            next = sequence + 1;
            let Some(&Entry { length, key, only, avoid, .. }) = self.ring.get(sequence) else { continue };
            let wanted = Requirements { length, key, only, avoid };
            let is_by_key = self.is_by_key(wanted);
            if is_by_key && keys.get(&key).is_some_and(|&oldest| oldest < sequence) {
                continue;
            }
            match self.place_requeued(wanted) {
                Some(link) => {
                    self.requeued.remove(&sequence);
                    self.assign(sequence, link);
                    self.actions.push_back(Action::Write(link));
                }
                None if is_by_key => {
                    keys.insert(key, sequence);
                }
                None => {}
            }
        }
    }

    pub(super) fn assign(&mut self, sequence: u64, link: LinkId) {
        if let Some(entry) = self.ring.get_mut(sequence) {
            entry.link = Some(link);
        }
        if let Some(at) = self.link_mut(link) {
            at.ledger.assign(sequence);
        }
    }

    /// Takes a frame back from a connection's queue, where it was not written yet.
    pub(super) fn withdraw(&mut self, sequence: u64, link: LinkId) {
        if let Some(entry) = self.ring.get_mut(sequence) {
            entry.release();
        }
        if let Some(at) = self.link_mut(link) {
            at.ledger.withdraw(sequence);
        }
        self.return_keys(link.peer);
    }

    fn place_requeued(&mut self, wanted: Requirements) -> Option<LinkId> {
        match self.choose(wanted) {
            Ok(link) => Some(link),
            // Only the peer that has rejected it is left.
            Err(Refused::NoPeer | Refused::TooLarge { .. }) if wanted.avoid.is_some() => {
                self.choose(Requirements { avoid: None, ..wanted }).ok()
            }
            Err(_) => None,
        }
    }

    fn choose(&mut self, wanted: Requirements) -> Result<LinkId, Refused> {
        let is_by_key = self.is_by_key(wanted);
        let peer = self.peer_for(wanted);
        let best_link = |peer: &PeerState| {
            peer.best_link(is_by_key.then(|| peer.index_for_key(wanted.key)), wanted.length)
        };
        match peer.and_then(best_link) {
            Some(link) => Ok(link),
            None => {
                let only = peer.map(|peer| peer.id);
                Err(self.refused(wanted, only))
            }
        }
    }

    /// Returns the peer that gets a frame, even if the frame has to wait for it.
    pub(super) fn peer_for(&mut self, wanted: Requirements) -> Option<&PeerState> {
        let choice = if wanted.only.is_some() { Choice::RoundRobin } else { self.settings.choice };
        // A frame waits for the peer of its key until the first attempt to connect has ended.
        let is_awaited = |peer: &PeerState| choice == Choice::ByKey && peer.is_untried();
        let is_there = |peer: &PeerState| wanted.allows(peer) && (peer.is_up() || is_awaited(peer));
        let candidate = |index: usize| {
            let peer = self.peers.get(index).filter(|peer| is_there(peer))?;
            Some(peer.candidate(wanted.length))
        };
        let at = choose(choice, wanted.key, &mut self.round_robin, self.peers.len(), candidate)?;
        self.peers.get(at)
    }

    /// Returns the reason why no peer, or not the only possible one, can take a frame now.
    fn refused(&self, wanted: Requirements, only: Option<PeerId>) -> Refused {
        let only = only.and_then(|only| self.peers.get(self.position(only)?));
        let up = self.peers.iter().filter(|peer| wanted.allows(peer) && peer.is_up());
        let most = up.map(PeerState::frame_size).max();
        match (most, only) {
            (None, _) => Refused::NoPeer,
            (_, Some(only)) if !only.is_up() => Refused::Full,
            (_, Some(only)) if only.frame_size() < wanted.length => {
                Refused::TooLarge { most: only.frame_size() }
            }
            (Some(most), None) if most < wanted.length => Refused::TooLarge { most },
            _ => Refused::Full,
        }
    }

    /// Returns whether a frame would overtake a requeued or paused one of its key.
    fn is_overtaking(&self, wanted: Requirements) -> bool {
        let is_before = |entry: &Entry<F>| entry.only.is_none() && entry.key == wanted.key;
        let paused = self.paused.iter().map(|(_, sequence)| sequence);
        self.is_by_key(wanted)
            && self
                .requeued
                .iter()
                .chain(paused)
                .any(|&sequence| self.ring.get(sequence).is_some_and(is_before))
    }

    /// Returns whether receivers could not tell a further frame from repeats of the oldest.
    fn is_window_full(&self) -> bool {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        is_kept && self.ring.next() - self.ring.floor() >= WINDOW
    }

    fn has_credit(&self) -> bool {
        self.peers.iter().flat_map(|peer| &peer.links).any(|link| link.is_up() && link.ledger.credits() > 0)
    }

    fn is_by_key(&self, wanted: Requirements) -> bool {
        self.settings.choice == Choice::ByKey && wanted.only.is_none()
    }
}

impl Requirements {
    fn allows(&self, peer: &PeerState) -> bool {
        match self.only {
            Some(only) => peer.id == only,
            None => peer.draining_until.is_none() && self.avoid != Some(peer.id),
        }
    }
}
