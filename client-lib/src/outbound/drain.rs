//! Draining of peers that DNS no longer names.

use std::time::Instant;

use super::link::State;
use super::ring::Entry;
use super::{Action, LinkId, Outbound};
use crate::handshake::Delivery;

impl<F: Clone> Outbound<F> {
    /// Closes the connections of draining peers that are done or out of time, and forgets peers
    /// without connections.
    pub(super) fn close_drained(&mut self, now: Instant) {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        for peer in &mut self.peers {
            let Some(draining_until) = peer.draining_until else { continue };
            for (index, link) in (0..).zip(&mut peer.links) {
                match link.state {
                    // No connection is left to drain.
                    State::Waiting { .. } => link.state = State::Closed,
                    State::Connecting { epoch } | State::Up { epoch, .. } => {
                        let id = LinkId { peer: peer.id, index, epoch };
                        let has_work = !link.ledger.queue.is_empty() || link.ledger.outstanding() > 0;
                        // A paused frame that names this peer keeps its connections, too: no other
                        // peer may have it.
                        let is_for_it = |entry: &Entry<F>| {
                            entry.link == Some(id)
                                || entry.not_before.is_some() && entry.only == Some(peer.id)
                        };
                        let waits = is_kept && self.ring.any(is_for_it);
                        if now >= draining_until || !(has_work || waits) {
                            link.state = State::Closing { epoch };
                            self.actions.push_back(Action::Close(id));
                        }
                    }
                    State::Closing { .. } | State::Closed => {}
                }
            }
        }
        let count = self.peers.len();
        self.peers.retain(|peer| peer.links.iter().any(|link| link.state != State::Closed));
        if self.peers.len() != count {
            self.give_up_orphans();
        }
    }

    /// Gives up frames that only one peer may have, if that peer is gone.
    fn give_up_orphans(&mut self) {
        let peers = &self.peers;
        let gone = self.ring.sequences(|entry| {
            entry.link.is_none() && entry.only.is_some_and(|to| peers.iter().all(|peer| peer.id != to))
        });
        gone.into_iter().for_each(|sequence| self.give_up(sequence));
    }
}
