//! Assignment of keys to the connections of a peer.
//!
//! All connections lead to one receiver, and frames of a key have to arrive there in order. So a
//! key has one connection, and waits for it after a break: frames that were taken before the break
//! may still be on their way, and only the next connection of this index rules that out. If the
//! receiver refuses that connection, for lack of room, the others take over its keys. Once it is
//! up, its keys return, as soon as the receiver's application has taken what the others had.

use super::link::{KeyPlacement, Lane};
use super::peer::PeerState;
use crate::choose::weight;

impl PeerState {
    /// Returns the index of the connection that has the frames of a key.
    pub(super) fn index_for_key(&self, key: u64) -> usize {
        // The remainder is less than the number of connections, which fits into 16 bits.
        let own = key.checked_rem(self.links.len() as u64).unwrap_or_default() as usize;
        if self.links.get(own).is_none_or(|link| link.keys != KeyPlacement::Away) {
            return own;
        }
        let others = (0..self.links.len()).filter(|&index| self.links[index].keys != KeyPlacement::Away);
        others.max_by_key(|&index| weight(key, index as u64)).unwrap_or(own)
    }

    /// Starts to return a connection's keys from the other connections, once it is up again.
    pub(super) fn reclaim_keys(&mut self, index: usize) {
        let watermarks = self.links.iter().map(Lane::watermark).collect();
        if let Some(link) = self.links.get_mut(index).filter(|link| link.keys != KeyPlacement::Here) {
            link.keys = KeyPlacement::Returning(watermarks);
        }
    }

    /// Gives each connection its keys back, once the others' frames of these keys have been taken.
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
