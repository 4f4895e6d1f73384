//! Credits of one connection: frames assigned to it, and what its receiver has reported.

use std::collections::VecDeque;
use std::mem::take;

use thiserror::Error;

/// Counters of one connection, since it was made.
///
/// Invariant: `taken` and `freed` ≤ `handed` ≤ `assigned`.
#[derive(Debug, Default)]
pub(crate) struct CreditLedger {
    /// Sequences of frames that are assigned to the connection and wait to be written.
    pub(crate) queue: VecDeque<u64>,
    /// Number of frames that the receiver lets this connection have in flight.
    pub(crate) slots: u64,
    /// Whether the connection is about to end, and so gets no further frames.
    pub(crate) is_ending: bool,
    /// The largest payload of a frame that the receiver accepts, in bytes.
    pub(crate) frame_size: usize,
    /// Number of frames ever assigned to the connection.
    pub(crate) assigned: u64,
    /// Number of assigned frames that have left `queue` to be written.
    pub(crate) handed: u64,
    /// Sequences of frames that were taken, but are not written yet; at most once only, where the
    /// ring does not keep them. `None` stands for a message that is not a frame.
    pub(crate) unwritten: VecDeque<Option<u64>>,
    /// New limit of slots that is to be confirmed to the receiver. `None` if none is.
    pub(crate) limit_answer: Option<u32>,
    /// Number of slots that the receiver has reported as freed.
    pub(crate) freed: u64,
    /// Number of frames that the receiver reports its application to have taken.
    pub(crate) taken: u64,
    /// Number of frames that the receiver's application has acknowledged or rejected. At most once,
    /// the same as `freed`.
    pub(crate) decided: u64,
}

/// A receiver's report that contradicts what it was sent, or what it reported before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it reports that {now} frames {what}, after it reported {before}, of {sent} that were sent")]
pub(crate) struct InvalidReport {
    what: &'static str,
    now: u64,
    before: u64,
    sent: u64,
}

impl CreditLedger {
    pub(super) fn reset(&mut self, slots: u64, frame_size: usize) {
        // These two keep their memory.
        let (mut queue, mut unwritten) = (take(&mut self.queue), take(&mut self.unwritten));
        queue.clear();
        unwritten.clear();
        *self = Self { queue, unwritten, slots, frame_size, ..Self::default() };
    }

    /// Queues a frame to be written on the connection.
    pub(crate) fn assign(&mut self, sequence: u64) {
        self.assigned += 1;
        self.queue.push_back(sequence);
    }

    /// Removes a frame from the connection's queue, if it is still there.
    pub(crate) fn withdraw(&mut self, sequence: u64) {
        let count = self.queue.len();
        self.queue.retain(|&waiting| waiting != sequence);
        self.assigned -= (count - self.queue.len()) as u64;
    }

    /// Takes back a frame that was taken from the queue but not written. A receiver that has
    /// already reported it was wrong, so the counters are capped.
    pub(crate) fn not_sent(&mut self, sequence: u64, is_decided: bool) {
        self.handed -= 1;
        self.assigned -= 1;
        self.freed = self.freed.min(self.handed);
        self.taken = self.taken.min(self.handed);
        self.decided = self.decided.saturating_sub(u64::from(is_decided)).min(self.assigned);
        self.unwritten.retain(|&unwritten| unwritten != Some(sequence));
    }

    /// Sets the number of slots, and returns the queued frames that no longer fit.
    pub(crate) fn set_limit(&mut self, slots: u64) -> Vec<u64> {
        self.slots = slots;
        let under_way = self.handed - self.freed.min(self.decided);
        let kept = usize::try_from(slots.saturating_sub(under_way)).unwrap_or(usize::MAX);
        self.queue.iter().skip(kept).copied().collect()
    }

    /// Returns the number of frames queued or sent whose slots the receiver has not freed.
    pub(crate) fn outstanding(&self) -> u64 {
        self.assigned - self.freed
    }

    /// Returns how many more frames the connection may be assigned.
    ///
    /// A free slot whose frame is undecided does not count. Otherwise a receiver that never decides
    /// could hold more frames than all receivers together may.
    pub(crate) fn credits(&self) -> u64 {
        if self.is_ending {
            return 0;
        }
        let undecided = self.assigned - self.decided;
        self.slots.saturating_sub(undecided.max(self.outstanding()))
    }

    /// Applies a receiver's report of the slots that it has freed and the frames that its
    /// application has taken.
    pub(crate) fn apply_report(
        &mut self,
        freed: u64,
        taken: u64,
        is_kept: bool,
    ) -> Result<(), InvalidReport> {
        let sent = self.handed;
        let check = |what, now, before| {
            if now < before || now > sent { Err(InvalidReport { what, now, before, sent }) } else { Ok(()) }
        };
        check("have left their slots", freed, self.freed)?;
        check("have been taken", taken, self.taken)?;
        (self.freed, self.taken) = (freed, taken);
        if !is_kept {
            self.decided = freed;
        }
        Ok(())
    }
}
