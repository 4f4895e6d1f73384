//! A peer and its lanes.

use std::time::Instant;

use super::lanes::Keys;
use super::link::{Link, State};
use super::{LinkId, PeerId};
use crate::choose::{Candidate, hash};

/// What makes a peer the same peer, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
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
    pub(super) identity: Identity,
    /// Hash of its name: a pod that takes another's place gets its keys.
    name: u64,
    /// It gets nothing new any more, and its connections end then, or before if nothing is under way.
    pub(super) leaves: Option<Instant>,
    /// By lane.
    pub(super) links: Vec<Link>,
}

/// What tells peers apart: name and uid.
pub(super) type Key = (String, Option<String>);

impl Identity {
    pub(super) fn key(&self) -> Key {
        (self.target.clone(), self.uid.clone())
    }
}

impl Peer {
    pub(super) fn new(id: PeerId, identity: Identity, links: Vec<Link>) -> Self {
        let name = hash(identity.target.as_bytes());
        Self { id, identity, name, leaves: None, links }
    }

    /// It does not leave, or comes back before it has gone.
    pub(super) fn stay(&mut self, now: Instant) {
        self.leaves = None;
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
        self.links.iter().map(|link| link.books.outstanding()).sum()
    }

    /// The largest payload that a connection takes; 0 if there is none.
    pub(super) fn frame_size(&self) -> usize {
        self.links.iter().map(|link| link.books.frame_size).max().unwrap_or_default()
    }

    pub(super) fn candidate(&self, length: usize) -> Candidate {
        let credits = self.usable(None, length).map(|(_, link)| link.books.credits()).sum();
        Candidate {
            name: self.name,
            credits,
            outstanding: self.outstanding(),
            distance: self.identity.distance,
        }
    }

    /// The connection with the most credits, of all or of one lane.
    pub(super) fn freest(&self, lane: Option<usize>, length: usize) -> Option<LinkId> {
        let (lane, link) = self.usable(lane, length).max_by_key(|(_, link)| link.books.credits())?;
        match link.state {
            State::Up { epoch, .. } if link.books.credits() > 0 => {
                Some(LinkId { peer: self.id, lane, epoch })
            }
            _ => None,
        }
    }

    /// The connections that may have a frame of that length.
    fn usable(&self, lane: Option<usize>, length: usize) -> impl Iterator<Item = (u16, &Link)> {
        let lanes = (0_u16..).zip(&self.links);
        lanes.filter(move |&(at, link)| {
            let has_key = |lane| lane == usize::from(at) && link.keys == Keys::Here;
            link.is_up() && link.books.frame_size >= length && lane.is_none_or(has_key)
        })
    }
}
