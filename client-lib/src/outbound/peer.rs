//! A peer and its lanes.

use std::time::Instant;

use super::link::{KeyPlacement, Link, State};
use super::{LinkId, PeerId};
use crate::choose::{Candidate, hash};

/// What makes a peer the same peer, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    /// Its name in DNS, with the port.
    pub(crate) target: String,
    /// Uid of its pod: one that is replaced is another peer.
    pub(crate) uid: Option<String>,
    /// Less is nearer.
    pub(crate) distance: u8,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) info: PeerInfo,
    /// Hash of its name: a pod that takes another's place gets its keys.
    name_hash: u64,
    /// It gets nothing new any more, and its connections end then, or before if nothing is under way.
    pub(super) draining_until: Option<Instant>,
    /// By lane.
    pub(super) links: Vec<Link>,
}

/// What tells peers apart: name and uid.
pub(super) type PeerKey = (String, Option<String>);

impl PeerInfo {
    pub(super) fn key(&self) -> PeerKey {
        (self.target.clone(), self.uid.clone())
    }
}

impl Peer {
    pub(super) fn new(id: PeerId, info: PeerInfo, links: Vec<Link>) -> Self {
        let name_hash = hash(info.target.as_bytes());
        Self { id, info, name_hash, draining_until: None, links }
    }

    /// It does not leave, or comes back before it has gone.
    pub(super) fn stop_draining(&mut self, now: Instant) {
        self.draining_until = None;
        self.links.iter_mut().for_each(|link| link.reopen(now));
    }

    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(Link::is_up)
    }

    /// Whether none of its connections has been tried to the end.
    pub(super) fn is_untried(&self) -> bool {
        self.links.iter().all(Link::is_untried)
    }

    /// How many frames are under way.
    pub(super) fn outstanding(&self) -> u64 {
        self.links.iter().map(|link| link.ledger.outstanding()).sum()
    }

    /// The largest payload that a connection takes; 0 if there is none.
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

    /// The connection with the most credits, of all or of one lane.
    pub(super) fn best_link(&self, index: Option<usize>, length: usize) -> Option<LinkId> {
        let (index, link) = self.usable(index, length).max_by_key(|(_, link)| link.ledger.credits())?;
        match link.state {
            State::Up { epoch, .. } if link.ledger.credits() > 0 => {
                Some(LinkId { peer: self.id, index, epoch })
            }
            _ => None,
        }
    }

    /// The connections that may have a frame of that length.
    fn usable(&self, index: Option<usize>, length: usize) -> impl Iterator<Item = (u16, &Link)> {
        let links = (0_u16..).zip(&self.links);
        links.filter(move |&(at, link)| {
            let has_key = |index| index == usize::from(at) && link.keys == KeyPlacement::Here;
            link.is_up() && link.ledger.frame_size >= length && index.is_none_or(has_key)
        })
    }
}
