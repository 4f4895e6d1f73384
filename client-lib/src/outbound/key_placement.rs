//! Which of a peer's connections has the frames of a key.
//!
//! All of them lead to one receiver, where the frames of a key come in order. So a key has one lane, and waits for it when it breaks: what
//! it was handed may still be on its way, and only the connection that follows puts an end to that. Where none follows, because
//! the receiver has no room for as many, other lanes stand in. When it is there after all, its keys come back as soon as
//! the receiver's code has taken what they have under way.

use super::link::{KeyPlacement, Link};
use super::peer::Peer;
use crate::choose::weight;

impl Peer {
    /// The lane that has the frames of a key.
    pub(super) fn index_for_key(&self, key: u64) -> usize {
        // The remainder is less than the number of lanes, which is one of 16 bits.
        let own = key.checked_rem(self.links.len() as u64).unwrap_or_default() as usize;
        if self.links.get(own).is_none_or(|link| link.keys != KeyPlacement::Away) {
            return own;
        }
        let others = (0..self.links.len()).filter(|&index| self.links[index].keys != KeyPlacement::Away);
        others.max_by_key(|&index| weight(key, index as u64)).unwrap_or(own)
    }

    /// A lane is up: its keys are to come back.
    pub(super) fn reclaim_keys(&mut self, index: usize) {
        let watermarks = self.links.iter().map(Link::watermark).collect();
        if let Some(link) = self.links.get_mut(index).filter(|link| link.keys != KeyPlacement::Here) {
            link.keys = KeyPlacement::Returning(watermarks);
        }
    }

    /// Keys come back to the lanes whose turn it is.
    pub(super) fn return_keys(&mut self) {
        for index in 0..self.links.len() {
            let KeyPlacement::Returning(watermarks) = &self.links[index].keys else { continue };
            let mut others =
                self.links.iter().zip(watermarks).enumerate().filter(|&(other, _)| other != index);
            if others.all(|(_, (link, &watermark))| link.has_passed(watermark)) {
                (self.links[index].keys, self.links[index].may_have_keyed_frames) =
                    (KeyPlacement::Here, true);
            }
        }
    }
}
