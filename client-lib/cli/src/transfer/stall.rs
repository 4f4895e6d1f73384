//! Detects that a transfer makes no progress any more. Pure.
//!
//! Acknowledgements count as progress, connections do not: where large packets are lost on the way,
//! each connection is made, and breaks before any frame gets through. A receiver that is connected,
//! and has taken frames without acknowledging them, writes slowly: the sender waits for it.

use std::time::{Duration, Instant};

use multinet_client::Statistics;

/// Bytes per second that count as progress: a large frame takes its time on a slow network.
const SLOWEST: f64 = 1_048_576.0;

/// Progress of a transfer, as the sender's statistics show it.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// Time that may pass without a connection to a receiver.
    wait: Duration,
    /// Time that may pass without an acknowledgement by the receiver.
    patience: Duration,
    connected: Instant,
    /// Time of the last acknowledgement, or of the last check at which none was due.
    progressed: Instant,
    acknowledged: u64,
    /// Time since when a receiver is connected that has taken all frames; `None` if there is none.
    idle: Option<Instant>,
}

/// Reason why a transfer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The receiver refuses the transfer.
    Refused,
    /// No receiver is connected.
    Gone,
    /// No frame gets through to the receiver.
    Stuck,
}

impl StallDetector {
    /// Begins to watch a transfer with frames of `frame_size` bytes.
    pub(super) fn new(now: Instant, wait: Duration, frame_size: u32) -> Self {
        let patience = wait + Duration::from_secs_f64((f64::from(frame_size) / SLOWEST).ceil());
        Self { wait, patience, connected: now, progressed: now, acknowledged: 0, idle: None }
    }

    /// Returns how long the transfer may go on without an acknowledgement before it fails.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn check(&mut self, now: Instant, statistics: &Statistics) -> Option<Trouble> {
        if statistics.rejected > 0 {
            return Some(Trouble::Refused);
        }
        let is_connected = statistics.connected > 0;
        if is_connected {
            self.connected = now;
        }
        self.idle = (is_connected && statistics.untaken == 0).then(|| self.idle.unwrap_or(now));
        let is_idle_for_long = self.idle.is_some_and(|since| now - since >= self.patience);
        if statistics.acknowledged > self.acknowledged || statistics.held == 0 || is_idle_for_long {
            (self.progressed, self.acknowledged) = (now, statistics.acknowledged);
        }
        if now - self.connected > self.wait {
            return Some(Trouble::Gone);
        }
        (self.idle.is_none() && now - self.progressed > self.patience).then_some(Trouble::Stuck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of the connection for a second.
    #[derive(Clone, Copy)]
    enum Second {
        /// Connected, with numbers of frames: newly acknowledged, not taken, and held.
        Up(u64, u64, usize),
        Down,
    }
    use Second::{Down, Up};

    /// Returns the first trouble, and after how many seconds it is found.
    fn trouble(wait: u64, seconds: impl IntoIterator<Item = Second>) -> Option<(u64, Trouble)> {
        let start = Instant::now();
        let mut progress = StallDetector::new(start, Duration::from_secs(wait), 1 << 20);
        let mut acknowledged = 0;
        (1..).zip(seconds).find_map(|(second, seen)| {
            let mut statistics = Statistics::default();
            (statistics.connected, statistics.held, statistics.untaken) = (0, 16, 16);
            if let Up(more, untaken, held) = seen {
                acknowledged += more;
                (statistics.connected, statistics.untaken, statistics.held) = (1, untaken, held);
            }
            statistics.acknowledged = acknowledged;
            let trouble = progress.check(start + Duration::from_secs(second), &statistics);
            trouble.map(|trouble| (second, trouble))
        })
    }

    fn cycle(parts: &[(Second, usize)]) -> impl Iterator<Item = Second> {
        let round: Vec<Second> =
            parts.iter().flat_map(|&(second, count)| std::iter::repeat_n(second, count)).collect();
        round.into_iter().cycle().take(1000)
    }

    #[test]
    fn connections_that_break_are_no_progress() {
        assert_eq!(trouble(20, cycle(&[(Up(0, 16, 16), 10), (Down, 1)])), Some((22, Trouble::Stuck)));
        // A receiver that dies whenever it has frames.
        assert_eq!(trouble(20, cycle(&[(Up(0, 0, 16), 3), (Down, 2)])), Some((24, Trouble::Stuck)));
        // One that lives, and reads nothing.
        assert_eq!(trouble(20, cycle(&[(Up(0, 16, 16), 1)])), Some((22, Trouble::Stuck)));
    }

    #[test]
    fn a_receiver_that_has_gone_is_waited_for() {
        assert_eq!(trouble(20, cycle(&[(Down, 1)])), Some((21, Trouble::Gone)));
        assert_eq!(trouble(20, cycle(&[(Up(1, 0, 16), 3), (Down, 20)])), None);
    }

    #[test]
    fn a_slow_receiver_is_waited_for() {
        // A reader that takes a frame each minute, by a connection that breaks now and then.
        assert_eq!(trouble(20, cycle(&[(Up(1, 1, 16), 1), (Up(0, 0, 16), 59), (Down, 1)])), None);
        // One that has stopped, and whose connection breaks after long.
        let stopped = cycle(&[(Up(0, 0, 16), 900), (Down, 3), (Up(0, 16, 16), 3), (Up(0, 0, 16), 90)]);
        assert_eq!(trouble(20, stopped), None);
        // Standard input that has nothing for long, by connections that break.
        assert_eq!(trouble(20, cycle(&[(Up(0, 0, 0), 3), (Down, 1)])), None);
    }

    #[test]
    fn a_large_frame_has_more_time() {
        let progress =
            |size| StallDetector::new(Instant::now(), Duration::from_secs(30), size).patience().as_secs();
        assert_eq!((progress(1), progress(1 << 20), progress(1 << 30)), (31, 31, 30 + 1024));
    }

    #[test]
    fn a_refusal_is_reported_at_once() {
        let mut statistics = Statistics::default();
        (statistics.connected, statistics.rejected) = (1, 1);
        let now = Instant::now();
        let mut progress = StallDetector::new(now, Duration::from_secs(30), 1);
        assert_eq!(progress.check(now, &statistics), Some(Trouble::Refused));
    }
}
