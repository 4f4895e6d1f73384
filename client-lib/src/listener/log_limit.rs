//! Limits log lines that senders can cause: some of each kind are written in a second, and the
//! others counted.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::handshake::RefusalCode;

/// Time in which log lines of one kind are counted together.
const WINDOW: Duration = Duration::from_secs(1);

/// Most log lines of one kind in a [`WINDOW`].
const LINES: u32 = 4;

/// Most log lines in a [`WINDOW`] on connections that begin, or that end in the usual way.
const ORDINARY_LINES: u32 = 64;

/// Kinds of log lines that senders can cause. They are few, whatever senders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LineKind {
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

/// Counts of the log lines that senders cause, by kind, and of those left out.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    kinds: Mutex<HashMap<LineKind, Lines>>,
    /// Notified when a line has been left out.
    wake: Notify,
}

#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl LogLimit {
    /// Returns whether a line of this kind may be written now. If not, it is counted.
    pub(super) fn allows(&self, kind: LineKind) -> bool {
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        let lines = kinds.entry(kind).or_insert(Lines { since: now, written: 0, left_out: 0 });
        if now - lines.since >= WINDOW {
            (lines.since, lines.written) = (now, 0);
        }
        let most = if matches!(kind, LineKind::Connected | LineKind::Ended) { ORDINARY_LINES } else { LINES };
        if lines.written >= most {
            lines.left_out += 1;
            self.wake.notify_one();
            return false;
        }
        lines.written += 1;
        true
    }

    /// Logs once in a [`WINDOW`] how many lines have been left out, for ever.
    pub(super) async fn run(&self) {
        loop {
            self.wake.notified().await;
            sleep(WINDOW).await;
            for (kind, count) in self.left_out() {
                warn!(left_out = count, "the log leaves out more lines on senders that {kind}");
            }
        }
    }

    /// Returns how many lines of each kind have been left out since the last call.
    fn left_out(&self) -> Vec<(LineKind, u64)> {
        let mut kinds = self.kinds.lock();
        let counts = kinds.iter_mut().map(|(&kind, lines)| (kind, std::mem::take(&mut lines.left_out)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

impl fmt::Display for LineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Ended => f.write_str("have gone"),
            Self::Protocol => f.write_str("broke the protocol"),
            Self::Refused(code) => write!(f, "were refused ({code:?})"),
            Self::Unreadable => f.write_str("are no peers of multinet"),
            Self::Tls => f.write_str("failed at TLS"),
            Self::Slow => f.write_str("took too long for their handshake"),
            Self::Crowd => f.write_str("came while too many were in their handshake"),
            Self::Exhausted => f.write_str("could not be accepted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_lines_are_written_in_a_second_and_the_others_counted() {
        let limit = LogLimit::default();
        let written = |kind, count: u32| (0..count).filter(|_| limit.allows(kind)).count();
        assert_eq!(written(LineKind::Slow, 1000), 4);
        assert_eq!(written(LineKind::Connected, 1000), 64);
        assert_eq!(written(LineKind::Tls, 3), 3);
        let mut left_out = limit.left_out();
        left_out.sort_by_key(|&(_, count)| count);
        assert_eq!(left_out, [(LineKind::Connected, 936), (LineKind::Slow, 996)]);
        assert!(limit.left_out().is_empty());
        sleep(WINDOW).await;
        assert_eq!(written(LineKind::Slow, 1000), 4);
    }
}
