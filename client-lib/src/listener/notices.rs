//! Log lines that strangers can cause: some of each kind in a second, and how many were left out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::handshake::RefusalCode;

/// For so long lines are counted together.
const WINDOW: Duration = Duration::from_secs(1);

/// How many lines of one kind are written in that time.
const LINES: u32 = 4;

/// The same of connections that come and go as they should.
const ORDINARY_LINES: u32 = 64;

/// Kinds of lines. There are few, whatever strangers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Connected,
    Ended,
    Protocol,
    Refused(RefusalCode),
    Unreadable,
    Tls,
    Slow,
    Crowd,
    Exhausted,
}

/// What has been written of each kind.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<HashMap<Kind, Lines>>);

#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// A line may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leave {
    /// How many were left out before it, if any.
    pub(super) left_out: Option<u64>,
}

impl Notices {
    /// Whether a line of this kind may be written now; else it is counted.
    pub(super) fn may(&self, kind: Kind, now: Instant) -> Option<Leave> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = kinds.entry(kind).or_insert(Lines { since: now, written: 0, left_out: 0 });
        if now.saturating_duration_since(lines.since) >= WINDOW {
            (lines.since, lines.written) = (now, 0);
        }
        let most = if matches!(kind, Kind::Connected | Kind::Ended) { ORDINARY_LINES } else { LINES };
        if lines.written >= most {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        let left_out = std::mem::take(&mut lines.left_out);
        Some(Leave { left_out: (left_out > 0).then_some(left_out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_a_second_and_a_count_of_the_others() {
        let (notices, start) = (Notices::default(), Instant::now());
        let at = |kind, milliseconds| notices.may(kind, start + Duration::from_millis(milliseconds));
        let plain = Some(Leave { left_out: None });
        for _ in 0..LINES {
            assert_eq!(at(Kind::Slow, 0), plain);
        }
        for _ in 0..1000 {
            assert_eq!(at(Kind::Slow, 999), None);
        }
        assert_eq!(at(Kind::Tls, 999), plain);
        assert_eq!(at(Kind::Slow, 1000), Some(Leave { left_out: Some(1000) }));
        assert_eq!(at(Kind::Slow, 1000), plain);
    }
}
