//! As many lines as people can read: of each place in the code that says something, some at once, and then one a second.
//! A peer or tenant that provokes a line again and again would fill disks otherwise.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Name of events that are said however many there are, for somebody has asked for each: `info!(name: EVERY, …)`. So are
/// all events of the levels debug and trace.
pub const EVERY: &str = "every";

/// Lines of one place that may be said at once.
const BURST: u32 = 200;

/// Time in which there may be one more.
const PAUSE: Duration = Duration::from_secs(1);

/// Lines that were left out, in all.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Places of which lines were left out, and how many, that have something to say again.
static UNTOLD: Mutex<Vec<(&'static Metadata<'static>, u64)>> = Mutex::new(Vec::new());

/// Returns how many lines were left out because there were too many like them.
pub fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Tells how many lines were left out, where there are lines of the kind again. Not to be called while one is said.
pub(crate) fn tell() {
    let untold = std::mem::take(&mut *lock(&UNTOLD));
    for (about, lines) in untold {
        let (target, line) = (about.target(), about.line());
        tracing::warn!(name: EVERY, lines, target, line, "more lines like the one before were left out");
    }
}

/// Lets through as many events of each place as people can read.
#[derive(Debug, Default)]
pub(crate) struct Few(Mutex<HashMap<Identifier, Place>>);

#[derive(Debug)]
struct Place {
    /// Until when what was said takes up the place's time.
    busy: Instant,
    left_out: u64,
}

impl Place {
    fn new(now: Instant) -> Self {
        Self { busy: now, left_out: 0 }
    }

    /// Whether one more line is said at this time.
    fn may_say(&mut self, now: Instant) -> bool {
        if self.busy.saturating_duration_since(now) > (BURST - 1) * PAUSE {
            self.left_out += 1;
            return false;
        }
        self.busy = self.busy.max(now) + PAUSE;
        true
    }
}

impl<S> Filter<S> for Few {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO || about.name() == EVERY {
            return true;
        }
        let now = Instant::now();
        let mut places = lock(&self.0);
        let place = places.entry(about.callsite()).or_insert_with(|| Place::new(now));
        if !place.may_say(now) {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if place.left_out > 0 {
            let lines = std::mem::take(&mut place.left_out);
            let mut untold = lock(&UNTOLD);
            match untold.iter_mut().find(|(known, _)| known.callsite() == about.callsite()) {
                Some((_, known)) => *known += lines,
                None => untold.push((about, lines)),
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
        let mut place = Place::new(begin);
        let mut say = |times: u32, at: Instant| (0..times).filter(|_| place.may_say(at)).count();
        assert_eq!(say(1000, begin), BURST as usize);
        assert_eq!(say(1000, begin + PAUSE), 1);
        assert_eq!(say(1000, begin + 11 * PAUSE), 10);
        assert_eq!(say(1000, begin + 2 * BURST * PAUSE), BURST as usize);
        assert_eq!(place.left_out, 4000 - 2 * u64::from(BURST) - 11);
    }
}
