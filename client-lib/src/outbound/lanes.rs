//! Which of a peer's connections has the frames of a key.
//!
//! All of them lead to one receiver, where the frames of a key come in order. So a key has one lane, and waits for it when it breaks: what
//! it was handed may still be on its way, and only the connection that follows puts an end to that. Where none follows, because
//! the receiver has no room for as many, other lanes stand in. When it is there after all, its keys come back as soon as
//! the receiver's code has taken what they have under way.

use super::link::{End, Link, State};
use super::peer::Peer;
use crate::choose::weight;

/// Where the frames of a lane's keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Keys {
    /// With it, or waiting for it.
    #[default]
    Here,
    /// With the other lanes.
    Away,
    /// Waiting until what the other lanes had when it came has been taken.
    Returning(Vec<Mark>),
}

/// What a lane had been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    epoch: u64,
    assigned: u64,
}

impl Link {
    /// It is down.
    pub(super) fn lend(&mut self, end: End) {
        // Whoever refuses a connection has ended the one before it.
        self.has_had &= end != End::Refused;
        if !self.has_had {
            self.keys = Keys::Away;
        }
    }

    /// What it has been given so far, if it is up.
    fn mark(&self) -> Mark {
        match self.state {
            State::Up { epoch, .. } => Mark { epoch, assigned: self.books.assigned },
            _ => Mark { epoch: 0, assigned: 0 },
        }
    }

    /// Whether nothing that it had been given by then can come later than what others are given now.
    fn is_past(&self, mark: Mark) -> bool {
        match self.state {
            // One frame or another may have been taken back since.
            State::Up { epoch, .. } if epoch == mark.epoch => {
                self.books.taken >= mark.assigned.min(self.books.assigned)
            }
            State::Up { .. } => true,
            _ => !self.has_had,
        }
    }
}

impl Peer {
    /// The lane that has the frames of a key.
    pub(super) fn lane_of(&self, key: u64) -> usize {
        // The remainder is less than the number of lanes, which is one of 16 bits.
        let own = key.checked_rem(self.links.len() as u64).unwrap_or_default() as usize;
        if self.links.get(own).is_none_or(|link| link.keys != Keys::Away) {
            return own;
        }
        let others = (0..self.links.len()).filter(|&lane| self.links[lane].keys != Keys::Away);
        others.max_by_key(|&lane| weight(key, lane as u64)).unwrap_or(own)
    }

    /// A lane is up: its keys are to come back.
    pub(super) fn call_back(&mut self, lane: usize) {
        let marks = self.links.iter().map(Link::mark).collect();
        if let Some(link) = self.links.get_mut(lane).filter(|link| link.keys != Keys::Here) {
            link.keys = Keys::Returning(marks);
        }
    }

    /// Keys come back to the lanes whose turn it is.
    pub(super) fn bring_back(&mut self) {
        for lane in 0..self.links.len() {
            let Keys::Returning(marks) = &self.links[lane].keys else { continue };
            let mut others = self.links.iter().zip(marks).enumerate().filter(|&(other, _)| other != lane);
            if others.all(|(_, (link, &mark))| link.is_past(mark)) {
                (self.links[lane].keys, self.links[lane].has_had) = (Keys::Here, true);
            }
        }
    }
}
