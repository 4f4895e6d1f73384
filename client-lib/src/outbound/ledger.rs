//! The credits of one connection: what has been given to it, and what its receiver has reported.

use std::collections::VecDeque;

use thiserror::Error;

/// What has been given to a connection, and what has become of it. All counters count since it was made.
#[derive(Debug, Default)]
pub(crate) struct CreditLedger {
    /// Sequences that wait to be written.
    pub(crate) queue: VecDeque<u64>,
    /// How many frames the receiver has room for.
    pub(crate) slots: u64,
    /// It is about to end, and gets no more.
    pub(crate) is_ending: bool,
    /// The largest payload.
    pub(crate) frame_size: usize,
    /// How many frames have been given to it.
    pub(crate) assigned: u64,
    /// How many have been handed over to be written.
    pub(crate) handed: u64,
    /// Those among them that have not been written yet, where the ring does not keep them. `None` stands for a message that is no frame.
    pub(crate) unwritten: VecDeque<Option<u64>>,
    /// The limit that the receiver is to be told it is kept to.
    pub(crate) limit_answer: Option<u32>,
    /// How many slots have become free again.
    pub(crate) freed: u64,
    /// How many frames the receiver's code has taken.
    pub(crate) taken: u64,
    /// How many frames the receiver's code has acknowledged or rejected; where that is not promised, it is what has been freed.
    pub(crate) decided: u64,
}

/// What a receiver says that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it says that {now} frames {what}, after it said {before}, of {sent} that were sent")]
pub(crate) struct InvalidReport {
    what: &'static str,
    now: u64,
    before: u64,
    sent: u64,
}

impl CreditLedger {
    pub(super) fn reset(&mut self, slots: u64, frame_size: usize) {
        self.queue.clear();
        self.unwritten.clear();
        // What follows is all there is: a field more must be thought of here.
        let Self {
            queue: _,
            unwritten: _,
            limit_answer,
            slots: has,
            is_ending,
            frame_size: size,
            assigned,
            handed,
            freed,
            taken,
            decided,
        } = self;
        (*has, *size, *is_ending, *limit_answer) = (slots, frame_size, false, None);
        (*assigned, *handed, *freed, *taken, *decided) = (0, 0, 0, 0, 0);
    }

    /// Gives it a frame.
    pub(crate) fn assign(&mut self, sequence: u64) {
        self.assigned += 1;
        self.queue.push_back(sequence);
    }

    /// Takes a frame away that has not been handed over.
    pub(crate) fn withdraw(&mut self, sequence: u64) {
        let count = self.queue.len();
        self.queue.retain(|&waiting| waiting != sequence);
        self.assigned -= (count - self.queue.len()) as u64;
    }

    /// One that has been handed over is not sent after all. A receiver that has told of it already cannot have had it.
    pub(crate) fn not_sent(&mut self, sequence: u64, is_decided: bool) {
        self.handed -= 1;
        self.assigned -= 1;
        self.freed = self.freed.min(self.handed);
        self.taken = self.taken.min(self.handed);
        self.decided = self.decided.saturating_sub(u64::from(is_decided)).min(self.assigned);
        self.unwritten.retain(|&unwritten| unwritten != Some(sequence));
    }

    /// The receiver has room for so many frames from now on. Those that have been given to it and are too many: they have not been handed over.
    pub(crate) fn set_limit(&mut self, slots: u64) -> Vec<u64> {
        self.slots = slots;
        let under_way = self.handed - self.freed.min(self.decided);
        let kept = usize::try_from(slots.saturating_sub(under_way)).unwrap_or(usize::MAX);
        self.queue.iter().skip(kept).copied().collect()
    }

    /// How many frames are under way.
    pub(crate) fn outstanding(&self) -> u64 {
        self.assigned - self.freed
    }

    /// How many more it gets: as many as the receiver has room for. A slot that is free, but whose frame has not been decided on, does not count: a receiver
    /// that never decides would hold as many frames as all receivers together may.
    pub(crate) fn credits(&self) -> u64 {
        if self.is_ending {
            return 0;
        }
        let undecided = self.assigned - self.decided;
        self.slots.saturating_sub(undecided.max(self.outstanding()))
    }

    /// The receiver says how many slots it has freed, and how many frames its code has taken.
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
