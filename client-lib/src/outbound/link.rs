//! One connection to a peer: its state, when it is made again, and where the frames of its keys go.

use std::time::{Duration, Instant};

use super::ledger::CreditLedger;

/// Pause before reconnecting after the first failure. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Upper bound of the pause before reconnecting.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Duration after which a connection counts as stable: failures before it are forgotten.
const GOOD: Duration = Duration::from_secs(10);

/// One of the connections that a peer is to have, whether it is up or not.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) state: State,
    /// Number of attempts to connect in a row that failed, or whose connection did not last.
    failures: u32,
    /// Whether keyed frames that were taken for this connection may still reach the receiver, even
    /// after a break.
    pub(super) may_have_keyed_frames: bool,
    pub(super) keys: KeyPlacement,
    pub(crate) ledger: CreditLedger,
}

/// State of a connection: whether it is made, up, or ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The connection is down, and is attempted again at `until`.
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
    /// The state machine has asked its caller to end the connection.
    Closing {
        epoch: u64,
    },
    /// The connection is not made again, because its peer drains.
    Closed,
}

/// Place of the frames whose keys are assigned to one connection of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyPlacement {
    /// The frames go by this connection, and wait for it while it is down.
    #[default]
    Here,
    /// The frames go by the peer's other connections.
    Away,
    /// Waiting for this connection, until the receiver's application has taken the frames that the
    /// other connections had when it came up.
    Returning(Vec<Watermark>),
}

/// Number of frames that a connection had been assigned at one moment. Epoch 0 stands for a
/// connection that was down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    epoch: u64,
    assigned: u64,
}

/// Reason why a connection to a peer is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DownReason {
    /// The connection could not be made, or broke after it was up.
    Broken,
    /// The receiver refused the connection in the handshake.
    Refused,
}

impl Lane {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Waiting { until: now },
            failures: 0,
            may_have_keyed_frames: false,
            keys: KeyPlacement::default(),
            ledger: CreditLedger::default(),
        }
    }

    /// Schedules a closed connection to be made again at once.
    pub(crate) fn reopen(&mut self, now: Instant) {
        if self.state == State::Closed {
            self.state = State::Waiting { until: now };
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Returns whether no attempt to make this connection has ended yet.
    pub(crate) fn is_untried(&self) -> bool {
        self.failures == 0 && matches!(self.state, State::Waiting { .. } | State::Connecting { .. })
    }

    /// Returns whether the connection is in this epoch. Reports on earlier epochs are stale.
    pub(crate) fn is_in(&self, wanted: u64) -> bool {
        match self.state {
            State::Connecting { epoch } | State::Up { epoch, .. } | State::Closing { epoch } => {
                epoch == wanted
            }
            State::Waiting { .. } | State::Closed => false,
        }
    }

    /// Returns when something is due: the next attempt, or the end of the drain.
    pub(crate) fn due(&self, draining_until: Option<Instant>) -> Option<Instant> {
        match self.state {
            State::Waiting { until } if draining_until.is_none() => Some(until),
            State::Connecting { .. } | State::Up { .. } => draining_until,
            _ => None,
        }
    }

    /// Records that the connection is up, unless it was closed while it was being made.
    pub(crate) fn on_up(&mut self, now: Instant, slots: u64, frame_size: usize) {
        if let State::Connecting { epoch } = self.state {
            self.state = State::Up { epoch, since: now };
            self.may_have_keyed_frames |= self.keys == KeyPlacement::Here;
            self.ledger.reset(slots, frame_size);
        }
    }

    /// Records that the connection could not be made, or broke. `jitter`, from 0 to 1, keeps
    /// senders from retrying in step.
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

    /// Gives this connection's keys to the others, once none of its keyed frames can still arrive.
    fn give_keys_away(&mut self, reason: DownReason) {
        // A receiver that refuses a connection has ended the one before it.
        self.may_have_keyed_frames &= reason != DownReason::Refused;
        if !self.may_have_keyed_frames {
            self.keys = KeyPlacement::Away;
        }
    }

    /// Returns the number of frames that the connection has been assigned so far. If it is down,
    /// nothing needs to be waited for.
    pub(super) fn watermark(&self) -> Watermark {
        match self.state {
            State::Up { epoch, .. } => Watermark { epoch, assigned: self.ledger.assigned },
            _ => Watermark { epoch: 0, assigned: 0 },
        }
    }

    /// Returns whether all frames up to the watermark have arrived or never will, so that later
    /// frames of other connections cannot overtake them.
    pub(super) fn has_passed(&self, watermark: Watermark) -> bool {
        match self.state {
            // Frames may have been withdrawn since.
            State::Up { epoch, .. } if epoch == watermark.epoch => {
                self.ledger.taken >= watermark.assigned.min(self.ledger.assigned)
            }
            State::Up { .. } => true,
            _ => !self.may_have_keyed_frames,
        }
    }
}
