//! Pauses of frames that a receiver's application has rejected.
//!
//! Each frame waits before it is sent again, longer each time. Otherwise a frame that no receiver
//! wants, or not yet, would go back and forth as fast as the network allows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{LinkId, Outbound};
use crate::choose::Choice;

/// Pause of a frame after its first rejection. Each further rejection doubles it.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Upper bound of the pause of a rejected frame.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl<F: Clone> Outbound<F> {
    pub(super) fn on_rejected(&mut self, now: Instant, link: LinkId, sequence: u64) {
        let Some(entry) = self.ring.get_mut(sequence).filter(|entry| entry.is_with(link.peer)) else {
            return;
        };
        let assigned = entry.link;
        if self.gives_up_rejected {
            self.remove_frame(sequence);
            self.given_up.add(sequence);
            assigned.into_iter().for_each(|link| self.count_decided(link));
            self.counts.rejected += 1;
            return;
        }
        entry.release();
        entry.avoid = Some(link.peer);
        let until = now + pause_after(entry.rejections);
        entry.rejections = entry.rejections.saturating_add(1);
        entry.not_before = Some(until);
        self.paused.insert((until, sequence));
        assigned.into_iter().for_each(|link| self.count_decided(link));
        self.counts.rejected += 1;
    }

    /// Requeues rejected frames whose pause is over.
    pub(super) fn resume(&mut self, now: Instant) {
        let count = self.requeued.len();
        while let Some(&(until, sequence)) = self.paused.first()
            && until <= now
        {
            self.paused.pop_first();
            if let Some(entry) = self.ring.get_mut(sequence) {
                entry.not_before = None;
                self.requeued.insert(sequence);
            }
        }
        if self.requeued.len() > count {
            self.reassign();
        }
    }

    /// Returns the oldest paused frame of each key. Younger frames of these keys have to wait for
    /// it.
    pub(super) fn paused_keys(&self) -> HashMap<u64, u64> {
        let mut oldest = HashMap::new();
        if self.settings.choice != Choice::ByKey {
            return oldest;
        }
        for &(_, sequence) in &self.paused {
            if let Some(entry) = self.ring.get(sequence).filter(|entry| entry.only.is_none()) {
                let known = oldest.entry(entry.key).or_insert(sequence);
                *known = sequence.min(*known);
            }
        }
        oldest
    }
}

fn pause_after(earlier: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << earlier.min(16)).min(LONGEST_PAUSE)
}
