//! As many lines as people can read: of each place in the code that says something, some at once, and then one a second.
//! A peer or tenant that provokes a line again and again would fill disks otherwise.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Name of events that are said however many there are, for somebody has asked for each: `info!(name: UNLIMITED, …)`. So are
/// all events of the levels debug and trace.
pub const UNLIMITED: &str = "every";

/// Lines of one place that may be said at once.
const BURST: u32 = 200;

/// Time in which there may be one more.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lines that were left out, in all.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Places of which lines were left out, and how many, that have something to say again.
static UNREPORTED: Mutex<Vec<(&'static Metadata<'static>, u64)>> = Mutex::new(Vec::new());

/// Returns how many lines were left out because there were too many like them.
pub fn dropped_repeated() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Tells how many lines were left out, where there are lines of the kind again. Not to be called while one is said.
pub(crate) fn report_dropped() {
    let unreported = std::mem::take(&mut *lock(&UNREPORTED));
    for (metadata, lines) in unreported {
        let (target, line) = (metadata.target(), metadata.line());
        tracing::warn!(name: UNLIMITED, lines, target, line, "more lines like the one before were left out");
    }
}

/// Lets through as many events of each place as people can read.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<HashMap<Identifier, Budget>>);

#[derive(Debug)]
struct Budget {
    /// Until when what was said takes up the place's time.
    busy: Instant,
    dropped: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { busy: now, dropped: 0 }
    }

    /// Whether one more line is said at this time.
    fn try_spend(&mut self, now: Instant) -> bool {
        if self.busy.saturating_duration_since(now) > (BURST - 1) * INTERVAL {
            self.dropped += 1;
            return false;
        }
        self.busy = self.busy.max(now) + INTERVAL;
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
        let mut budgets = lock(&self.0);
        let budget = budgets.entry(metadata.callsite()).or_insert_with(|| Budget::new(now));
        if !budget.try_spend(now) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if budget.dropped > 0 {
            let lines = std::mem::take(&mut budget.dropped);
            let mut unreported = lock(&UNREPORTED);
            match unreported.iter_mut().find(|(known, _)| known.callsite() == metadata.callsite()) {
                Some((_, known)) => *known += lines,
                None => unreported.push((metadata, lines)),
            }
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is held is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_some_lines_at_once_and_then_one_a_second() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let mut say = |times: u32, at: Instant| (0..times).filter(|_| budget.try_spend(at)).count();
        assert_eq!(say(1000, begin), BURST as usize);
        assert_eq!(say(1000, begin + INTERVAL), 1);
        assert_eq!(say(1000, begin + 11 * INTERVAL), 10);
        assert_eq!(say(1000, begin + 2 * BURST * INTERVAL), BURST as usize);
        assert_eq!(budget.dropped, 4000 - 2 * u64::from(BURST) - 11);
    }
}
