//! Limits that a receiver sets on a connection after the handshake.

use super::{LinkId, Outbound};
use crate::handshake::Delivery;

impl<F: Clone> Outbound<F> {
    /// Records that a receiver has room for `limit` frames on a connection from now on. Queued
    /// frames beyond that go to other connections, or wait.
    pub(crate) fn on_limit(&mut self, link: LinkId, limit: u32) {
        let slots = u64::from(limit).min(self.settings.max_per_connection());
        let Some(at) = self.link_mut(link).filter(|at| at.is_up()) else { return };
        at.ledger.limit_answer = Some(limit);
        let too_many = at.ledger.set_limit(slots);
        for sequence in too_many {
            self.withdraw(sequence, link);
            self.requeued.insert(sequence);
        }
        self.owes_limit_answers = true;
        self.reassign();
    }

    /// Returns the limit that a connection has to confirm to its receiver, before it writes any
    /// further frame.
    pub(crate) fn take_limit_answer(&mut self, link: LinkId) -> Option<u32> {
        if !self.owes_limit_answers {
            return None;
        }
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let ledger = &mut self.link_mut(link).filter(|at| at.is_up())?.ledger;
        let answer = ledger.limit_answer.take();
        if answer.is_some() && !is_kept {
            // The answer is written in its turn among the frames, so on_written counts it.
            ledger.unwritten.push_back(None);
        }
        let mut links = self.peers.iter().flat_map(|peer| &peer.links);
        self.owes_limit_answers = links.any(|link| link.ledger.limit_answer.is_some());
        answer
    }
}
