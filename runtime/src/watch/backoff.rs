//! Pauses before the next attempt.

use std::time::Duration;

use crate::limits::api::{FIRST_PAUSE, LONGEST_ASKED, LONGEST_PAUSE};
use crate::random_fraction;

/// Exponential back-off: pauses double, each shortened by up to a half at random, so that many
/// clients of a restarted API server do not come back at the same moment.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_PAUSE }
    }
}

impl Backoff {
    /// Returns the pause before the next attempt. If the API server has asked for a pause, `asked`,
    /// the result is between that and half as much again.
    pub(super) fn pause(&mut self, asked: Option<Duration>) -> Duration {
        let longest = match asked {
            Some(asked) => asked.min(LONGEST_ASKED) * 3 / 2,
            None => self.next,
        };
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        let shortest = if asked.is_some() { longest * 2 / 3 } else { longest / 2 };
        shortest + (longest - shortest).mul_f64(random_fraction())
    }

    /// Makes the next pause the first, shortest one again, after an attempt that succeeded.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let mut longest = FIRST_PAUSE;
        for _ in 0..10 {
            let pause = backoff.pause(None);
            assert!(longest / 2 <= pause && pause <= longest, "{pause:?} is not within {longest:?}");
            longest = (longest * 2).min(LONGEST_PAUSE);
        }
        assert_eq!(longest, LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.pause(None) <= FIRST_PAUSE);
    }

    #[test]
    fn a_pause_that_the_server_asks_for_is_granted_within_bounds() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            let pause = backoff.pause(Some(Duration::from_secs(1)));
            assert!(Duration::from_secs(1) <= pause && pause <= Duration::from_millis(1500), "{pause:?}");
        }
        assert!(backoff.pause(Some(Duration::MAX)) <= LONGEST_ASKED * 3 / 2);
    }

    #[test]
    fn pauses_of_several_clients_differ() {
        let pauses: Vec<Duration> = (0..20).map(|_| Backoff::default().pause(None)).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
