//! Log lines that strangers can cause: some of each kind in a second, and a count of the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::warn;

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
pub(super) struct Notices {
    kinds: Mutex<HashMap<Kind, Lines>>,
    /// A line has been left out.
    wake: Notify,
}

#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl Notices {
    /// Whether a line of this kind may be written now; else it is counted.
    pub(super) fn may(&self, kind: Kind) -> bool {
        let now = Instant::now();
        let mut kinds = self.kinds();
        let lines = kinds.entry(kind).or_insert(Lines { since: now, written: 0, left_out: 0 });
        if now - lines.since >= WINDOW {
            (lines.since, lines.written) = (now, 0);
        }
        let most = if matches!(kind, Kind::Connected | Kind::Ended) { ORDINARY_LINES } else { LINES };
        if lines.written >= most {
            lines.left_out += 1;
            self.wake.notify_one();
            return false;
        }
        lines.written += 1;
        true
    }

    /// Says how many have been left out, for ever.
    pub(super) async fn run(&self) {
        loop {
            self.wake.notified().await;
            sleep(WINDOW).await;
            for (kind, count) in self.left_out() {
                warn!(left_out = count, "more lines like those on senders that {kind}");
            }
        }
    }

    /// How many lines of each kind have been left out since this was asked last.
    fn left_out(&self) -> Vec<(Kind, u64)> {
        let mut kinds = self.kinds();
        let counts = kinds.iter_mut().map(|(&kind, lines)| (kind, std::mem::take(&mut lines.left_out)));
        counts.filter(|&(_, count)| count > 0).collect()
    }

    /// No code panics while it holds the lock.
    fn kinds(&self) -> MutexGuard<'_, HashMap<Kind, Lines>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Kind {
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
    async fn some_lines_a_second_and_a_count_of_the_others() {
        let notices = Notices::default();
        let written = |kind, count: u32| (0..count).filter(|_| notices.may(kind)).count();
        assert_eq!(written(Kind::Slow, 1000), 4);
        assert_eq!(written(Kind::Connected, 1000), 64);
        assert_eq!(written(Kind::Tls, 3), 3);
        let mut left_out = notices.left_out();
        left_out.sort_by_key(|&(_, count)| count);
        assert_eq!(left_out, [(Kind::Connected, 936), (Kind::Slow, 996)]);
        assert!(notices.left_out().is_empty());
        sleep(WINDOW).await;
        assert_eq!(written(Kind::Slow, 1000), 4);
    }
}
