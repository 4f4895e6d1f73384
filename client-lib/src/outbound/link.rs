//! One connection to a peer: its books of credits, and when it is to be made again.

use std::time::{Duration, Instant};

use super::ledger::CreditLedger;

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
    pub(super) may_have_keyed_frames: bool,
    pub(super) keys: KeyPlacement,
    pub(crate) ledger: CreditLedger,
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

/// Where the frames of a lane's keys are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyPlacement {
    /// With it, or waiting for it.
    #[default]
    Here,
    /// With the other lanes.
    Away,
    /// Waiting until what the other lanes had when it came has been taken.
    Returning(Vec<Watermark>),
}

/// What a lane had been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    epoch: u64,
    assigned: u64,
}

/// How an attempt to have a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DownReason {
    /// It could not be made, or has broken.
    Broken,
    /// The receiver does not want it, and has said so.
    Refused,
}

impl Link {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Waiting { until: now },
            failures: 0,
            may_have_keyed_frames: false,
            keys: KeyPlacement::default(),
            ledger: CreditLedger::default(),
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
    pub(crate) fn due(&self, draining_until: Option<Instant>) -> Option<Instant> {
        match self.state {
            State::Waiting { until } if draining_until.is_none() => Some(until),
            State::Connecting { .. } | State::Up { .. } => draining_until,
            _ => None,
        }
    }

    /// It has been made, unless it is not wanted any more.
    pub(crate) fn on_up(&mut self, now: Instant, slots: u64, frame_size: usize) {
        if let State::Connecting { epoch } = self.state {
            self.state = State::Up { epoch, since: now };
            self.may_have_keyed_frames |= self.keys == KeyPlacement::Here;
            self.ledger.reset(slots, frame_size);
        }
    }

    /// It could not be made, or has broken. `jitter`, from 0 to 1, keeps many senders out of step.
    pub(crate) fn on_down(&mut self, now: Instant, reason: DownReason, jitter: f64) {
        self.give_keys_away(reason);
        if let State::Up { since, .. } = self.state
            && now - since >= GOOD
        {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = doubled.min(LONGEST_PAUSE).mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        self.state = State::Waiting { until: now + pause };
        self.ledger.reset(0, 0);
    }

    /// It is down.
    fn give_keys_away(&mut self, reason: DownReason) {
        // Whoever refuses a connection has ended the one before it.
        self.may_have_keyed_frames &= reason != DownReason::Refused;
        if !self.may_have_keyed_frames {
            self.keys = KeyPlacement::Away;
        }
    }

    /// What it has been given so far, if it is up.
    pub(super) fn watermark(&self) -> Watermark {
        match self.state {
            State::Up { epoch, .. } => Watermark { epoch, assigned: self.ledger.assigned },
            _ => Watermark { epoch: 0, assigned: 0 },
        }
    }

    /// Whether nothing that it had been given by then can come later than what others are given now.
    pub(super) fn has_passed(&self, watermark: Watermark) -> bool {
        match self.state {
            // One frame or another may have been taken back since.
            State::Up { epoch, .. } if epoch == watermark.epoch => {
                self.ledger.taken >= watermark.assigned.min(self.ledger.assigned)
            }
            State::Up { .. } => true,
            _ => !self.may_have_keyed_frames,
        }
    }
}
