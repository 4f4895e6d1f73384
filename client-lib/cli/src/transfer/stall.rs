//! Whether a transfer still gets on. Pure.
//!
//! Acknowledgements of the receiver count, not that it can be connected: where large packets are
//! lost on the way, each connection is made, and breaks with nothing of its frames through. A
//! receiver that has taken frames, and does not acknowledge them, is connected and writes slowly:
//! it is waited for.

use std::time::{Duration, Instant};

use multinet_client::Statistics;

/// Bytes in a second, at least: a large frame on a slow network is no standstill.
const SLOWEST: f64 = 1_048_576.0;

/// Watches the fate of frames.
#[derive(Debug)]
pub(super) struct Progress {
    /// Without a connection.
    wait: Duration,
    /// Without an acknowledgement.
    patience: Duration,
    connected: Instant,
    /// When something was acknowledged last, or all was well for long.
    got_on: Instant,
    acknowledged: u64,
    /// Since when there has been a receiver that has all it was sent.
    idle: Option<Instant>,
}

/// Why a transfer will not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The receiver does not want it.
    Refused,
    /// No receiver is connected.
    Gone,
    /// Nothing gets through.
    Stuck,
}

impl Progress {
    /// Frames have so many bytes.
    pub(super) fn new(now: Instant, wait: Duration, frame_size: u32) -> Self {
        let patience = wait + Duration::from_secs_f64((f64::from(frame_size) / SLOWEST).ceil());
        Self { wait, patience, connected: now, got_on: now, acknowledged: 0, idle: None }
    }

    /// How long nothing may be acknowledged.
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
            (self.got_on, self.acknowledged) = (now, statistics.acknowledged);
        }
        if now - self.connected > self.wait {
            return Some(Trouble::Gone);
        }
        (self.idle.is_none() && now - self.got_on > self.patience).then_some(Trouble::Stuck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second, as it is seen.
    #[derive(Clone, Copy)]
    enum Second {
        /// Connected; so many frames more have been acknowledged, so many are not taken, so many
        /// are held.
        Up(u64, u64, usize),
        Down,
    }
    use Second::{Down, Up};

    /// After how many seconds there is which trouble.
    fn trouble(wait: u64, seconds: impl IntoIterator<Item = Second>) -> Option<(u64, Trouble)> {
        let start = Instant::now();
        let mut progress = Progress::new(start, Duration::from_secs(wait), 1 << 20);
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
    fn connections_of_which_each_breaks_are_no_progress() {
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
    fn whoever_is_slow_is_waited_for() {
        // A reader that takes a frame each minute, by a connection that breaks now and then.
        assert_eq!(trouble(20, cycle(&[(Up(1, 1, 16), 1), (Up(0, 0, 16), 59), (Down, 1)])), None);
        // One that has stopped, and whose connection breaks after long.
        let stopped = cycle(&[(Up(0, 0, 16), 900), (Down, 3), (Up(0, 16, 16), 3), (Up(0, 0, 16), 90)]);
        assert_eq!(trouble(20, stopped), None);
        // Standard input that has nothing for long, by connections that break.
        assert_eq!(trouble(20, cycle(&[(Up(0, 0, 0), 3), (Down, 1)])), None);
    }

    #[test]
    fn a_large_frame_has_time_of_its_own() {
        let progress =
            |size| Progress::new(Instant::now(), Duration::from_secs(30), size).patience().as_secs();
        assert_eq!((progress(1), progress(1 << 20), progress(1 << 30)), (31, 31, 30 + 1024));
    }

    #[test]
    fn a_refusal_is_told_at_once() {
        let mut statistics = Statistics::default();
        (statistics.connected, statistics.rejected) = (1, 1);
        let now = Instant::now();
        let mut progress = Progress::new(now, Duration::from_secs(30), 1);
        assert_eq!(progress.check(now, &statistics), Some(Trouble::Refused));
    }
}
