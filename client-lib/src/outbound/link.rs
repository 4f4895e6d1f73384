//! One connection to a peer: its books of credits, and when it is to be made again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::lanes::Keys;

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A connection that has lasted this long has made its peer's earlier failures good.
const GOOD: Duration = Duration::from_secs(10);

/// A lane to a peer, connected or not.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) state: State,
    /// How often in a row it could not be made, or did not last.
    failures: u32,
    /// Frames of keys that it has been handed may still be on their way, whatever has become of it.
    pub(super) has_had: bool,
    pub(super) keys: Keys,
    pub(crate) books: Books,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Until then nothing is tried.
    Waiting {
        until: Instant,
    },
    Connecting {
        epoch: u64,
    },
    Up {
        epoch: u64,
        since: Instant,
    },
    /// It is being ended.
    Closing {
        epoch: u64,
    },
    /// It is not to be made any more.
    Closed,
}

/// What has been given to a connection, and what has become of it. All counters count since it was made.
#[derive(Debug, Default)]
pub(crate) struct Books {
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
    pub(crate) to_answer: Option<u32>,
    /// How many slots have become free again.
    pub(crate) freed: u64,
    /// How many frames the receiver's code has taken.
    pub(crate) taken: u64,
    /// How many frames the receiver's code has acknowledged or rejected; where that is not promised, it is what has been freed.
    pub(crate) decided: u64,
}

/// How an attempt to have a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It could not be made, or has broken.
    Broken,
    /// The receiver does not want it, and has said so.
    Refused,
}

/// What a receiver says that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it says that {now} frames {what}, after it said {before}, of {sent} that were sent")]
pub(crate) struct Impossible {
    what: &'static str,
    now: u64,
    before: u64,
    sent: u64,
}

impl Link {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Waiting { until: now },
            failures: 0,
            has_had: false,
            keys: Keys::default(),
            books: Books::default(),
        }
    }

    /// It is to be made again, after all.
    pub(crate) fn reopen(&mut self, now: Instant) {
        if self.state == State::Closed {
            self.state = State::Waiting { until: now };
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Whether it has never been tried to the end.
    pub(crate) fn is_untried(&self) -> bool {
        self.failures == 0 && matches!(self.state, State::Waiting { .. } | State::Connecting { .. })
    }

    /// Whether this is the epoch that it is in.
    pub(crate) fn is_in(&self, wanted: u64) -> bool {
        match self.state {
            State::Connecting { epoch } | State::Up { epoch, .. } | State::Closing { epoch } => {
                epoch == wanted
            }
            State::Waiting { .. } | State::Closed => false,
        }
    }

    /// When something is to be done with it: try it again, or end it if its peer leaves then.
    pub(crate) fn due(&self, leaves: Option<Instant>) -> Option<Instant> {
        match self.state {
            State::Waiting { until } if leaves.is_none() => Some(until),
            State::Connecting { .. } | State::Up { .. } => leaves,
            _ => None,
        }
    }

    /// It has been made, unless it is not wanted any more.
    pub(crate) fn up(&mut self, now: Instant, slots: u64, frame_size: usize) {
        if let State::Connecting { epoch } = self.state {
            self.state = State::Up { epoch, since: now };
            self.has_had |= self.keys == Keys::Here;
            self.books.reset(slots, frame_size);
        }
    }

    /// It could not be made, or has broken. `chance`, from 0 to 1, keeps many senders out of step.
    pub(crate) fn down(&mut self, now: Instant, end: End, chance: f64) {
        self.lend(end);
        if let State::Up { since, .. } = self.state
            && now - since >= GOOD
        {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = doubled.min(LONGEST_PAUSE).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0);
        self.state = State::Waiting { until: now + pause };
        self.books.reset(0, 0);
    }
}

impl Books {
    fn reset(&mut self, slots: u64, frame_size: usize) {
        self.queue.clear();
        self.unwritten.clear();
        // What follows is all there is: a field more must be thought of here.
        let Self {
            queue: _,
            unwritten: _,
            to_answer,
            slots: has,
            is_ending,
            frame_size: size,
            assigned,
            handed,
            freed,
            taken,
            decided,
        } = self;
        (*has, *size, *is_ending, *to_answer) = (slots, frame_size, false, None);
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
    pub(crate) fn limit(&mut self, slots: u64) -> Vec<u64> {
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
    pub(crate) fn settle(&mut self, freed: u64, taken: u64, is_kept: bool) -> Result<(), Impossible> {
        let sent = self.handed;
        let check = |what, now, before| {
            if now < before || now > sent { Err(Impossible { what, now, before, sent }) } else { Ok(()) }
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
