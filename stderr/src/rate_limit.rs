//! Rate limit of log events, per call site: a burst, then one a second. Otherwise a peer or tenant
//! that provokes the same line again and again could fill disks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Event name that exempts an event from the rate limit: `info!(name: UNLIMITED, …)`. For lines
/// that an operator asked for one by one. Events of the levels debug and trace are always exempt.
pub const UNLIMITED: &str = "every";

/// Number of events that one call site may log at once.
const BURST: u32 = 200;

/// Time after which a call site may log one more event.
const INTERVAL: Duration = Duration::from_secs(1);

/// Number of log events that the rate limit has dropped since the process started.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Call sites that log again after events of theirs were dropped, with the number of those events.
static UNREPORTED: Mutex<Vec<(&'static Metadata<'static>, u64)>> = Mutex::new(Vec::new());

/// Returns how many log events the rate limit has dropped since the process started.
pub fn dropped_repeated() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Logs how many events were dropped, for each call site that logs again. Must not be called while
/// an event is being handled: the warning is an event itself.
pub(crate) fn report_dropped() {
    let unreported = std::mem::take(&mut *UNREPORTED.lock());
    for (metadata, lines) in unreported {
        let (target, line) = (metadata.target(), metadata.line());
        tracing::warn!(name: UNLIMITED, lines, target, line, "dropped repeated log lines");
    }
}

/// Filter that lets events of a call site pass only within their rate limit.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<HashMap<Identifier, Budget>>);

/// Leaky bucket that limits the log events of one call site.
#[derive(Debug)]
struct Budget {
    /// Time at which the bucket is empty again. Each event moves it on by [`INTERVAL`].
    empty_at: Instant,
    /// Events of the call site that were dropped since its last one that passed.
    dropped: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { empty_at: now, dropped: 0 }
    }

    /// Returns whether one more event of the call site passes at this time, and counts it.
    fn try_spend(&mut self, now: Instant) -> bool {
        if self.empty_at.saturating_duration_since(now) > (BURST - 1) * INTERVAL {
            self.dropped += 1;
            return false;
        }
        self.empty_at = self.empty_at.max(now) + INTERVAL;
        true
    }
}

impl<S> Filter<S> for RateLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.name() == UNLIMITED {
            return true;
        }
        let now = Instant::now();
        let mut budgets = self.0.lock();
        let budget = budgets.entry(metadata.callsite()).or_insert_with(|| Budget::new(now));
        if !budget.try_spend(now) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if budget.dropped > 0 {
            // The warning is an event itself, so it is left to the thread that writes the lines.
            let lines = std::mem::take(&mut budget.dropped);
            let mut unreported = UNREPORTED.lock();
            match unreported.iter_mut().find(|(known, _)| known.callsite() == metadata.callsite()) {
                Some((_, known)) => *known += lines,
                None => unreported.push((metadata, lines)),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_site_logs_a_burst_then_one_event_a_second() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let mut log = |times: u32, at: Instant| (0..times).filter(|_| budget.try_spend(at)).count();
        assert_eq!(log(1000, begin), BURST as usize);
        assert_eq!(log(1000, begin + INTERVAL), 1);
        assert_eq!(log(1000, begin + 11 * INTERVAL), 10);
        assert_eq!(log(1000, begin + 2 * BURST * INTERVAL), BURST as usize);
        assert_eq!(budget.dropped, 4000 - 2 * u64::from(BURST) - 11);
    }
}
