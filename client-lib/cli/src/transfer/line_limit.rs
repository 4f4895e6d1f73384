//! Bounds how many lines on standard error strangers can cause. Pure.

use std::time::{Duration, Instant};

/// Length of the windows in which lines on standard error are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Most lines that are written in one window.
const LINES: u32 = 4;

/// Limit that allows a few lines on standard error in a second, and counts the others.
#[derive(Debug, Default)]
pub(super) struct LineLimit {
    /// Time when the current window began; `None` before the first line.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LineLimit {
    /// Returns whether a line may be written now; if not, counts it as left out.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            (self.since, self.written) = (Some(now), 0);
        }
        let is_allowed = self.written < LINES;
        match is_allowed {
            true => self.written += 1,
            false => self.left_out += 1,
        }
        is_allowed
    }

    /// Returns how many lines have been left out, when their window is over.
    pub(super) fn left_out(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.left_out > 0 && self.is_over(now);
        is_due.then(|| std::mem::take(&mut self.left_out))
    }

    fn is_over(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now - since >= WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_second_are_allowed_and_the_others_counted() {
        let mut limit = LineLimit::default();
        let start = Instant::now();
        let mut allowed = |now| (0..100).filter(|_| limit.allows(now)).count();
        assert_eq!((allowed(start), allowed(start + WINDOW / 2)), (4, 0));
        assert_eq!(limit.left_out(start + WINDOW / 2), None);
        assert_eq!(limit.left_out(start + WINDOW), Some(196));
        assert_eq!(limit.left_out(start + WINDOW), None);
        assert!(limit.allows(start + WINDOW));
    }
}
