//! A peer and its connections.

use std::time::Instant;

use super::link::{KeyPlacement, Lane, State};
use super::{LinkId, PeerId};
use crate::choose::{Candidate, hash};

/// Identity of a peer, and its distance from this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    /// DNS name of the peer's pod, with the port.
    pub(crate) target: String,
    /// Uid of the peer's pod, if known. A pod that replaces another is another peer.
    pub(crate) uid: Option<String>,
    /// Distance of the peer from this process, for comparison with others. 0 is nearest.
    pub(crate) distance: u8,
}

#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) id: PeerId,
    pub(super) info: PeerInfo,
    /// Hash of the target, by which keys are placed. So a pod that takes the place of another gets
    /// its keys.
    name_hash: u64,
    /// Time when a draining peer's connections end at the latest. A draining peer gets no new
    /// frames. `None` for an active peer.
    pub(super) draining_until: Option<Instant>,
    /// Connections to the peer, by index.
    pub(super) links: Vec<Lane>,
}

/// Identity of a peer: DNS name with port, and the pod's uid.
pub(super) type PeerKey = (String, Option<String>);

impl PeerInfo {
    pub(super) fn key(&self) -> PeerKey {
        (self.target.clone(), self.uid.clone())
    }
}

impl PeerState {
    pub(super) fn new(id: PeerId, info: PeerInfo, links: Vec<Lane>) -> Self {
        let name_hash = hash(info.target.as_bytes());
        Self { id, info, name_hash, draining_until: None, links }
    }

    /// Makes a draining peer active again, and lets its closed connections be made again.
    pub(super) fn stop_draining(&mut self, now: Instant) {
        self.draining_until = None;
        self.links.iter_mut().for_each(|link| link.reopen(now));
    }

    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(Lane::is_up)
    }

    /// Returns whether no attempt to connect to the peer has ended yet.
    pub(super) fn is_untried(&self) -> bool {
        self.links.iter().all(Lane::is_untried)
    }

    /// Returns the number of frames queued or in flight on all connections to the peer.
    pub(super) fn outstanding(&self) -> u64 {
        self.links.iter().map(|link| link.ledger.outstanding()).sum()
    }

    /// Returns the largest payload that any connection to the peer accepts, or 0 without a
    /// connection.
    pub(super) fn frame_size(&self) -> usize {
        self.links.iter().map(|link| link.ledger.frame_size).max().unwrap_or_default()
    }

    pub(super) fn candidate(&self, length: usize) -> Candidate {
        let credits = self.usable(None, length).map(|(_, link)| link.ledger.credits()).sum();
        Candidate {
            name: self.name_hash,
            credits,
            outstanding: self.outstanding(),
            distance: self.info.distance,
        }
    }

    /// Returns the connection with the most credits, among all or only the one with this index.
    pub(super) fn best_link(&self, index: Option<usize>, length: usize) -> Option<LinkId> {
        let (index, link) = self.usable(index, length).max_by_key(|(_, link)| link.ledger.credits())?;
        match link.state {
            State::Up { epoch, .. } if link.ledger.credits() > 0 => {
                Some(LinkId { peer: self.id, index, epoch })
            }
            _ => None,
        }
    }

    /// Returns the connections that accept a payload of `length` bytes, with their indices. With
    /// `index`, only that one, if it has its keys.
    fn usable(&self, index: Option<usize>, length: usize) -> impl Iterator<Item = (u16, &Lane)> {
        let links = (0_u16..).zip(&self.links);
        links.filter(move |&(at, link)| {
            let has_key = |index| index == usize::from(at) && link.keys == KeyPlacement::Here;
            link.is_up() && link.ledger.frame_size >= length && index.is_none_or(has_key)
        })
    }
}
