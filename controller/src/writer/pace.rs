//! When a status is written: at once if people wait for it, else when its numbers have settled; but
//! of a service that changes all the time only now and then (pure).
//!
//! A status costs the API server more than a slice does, and while a service changes nobody can
//! read its numbers anyway: they wait for a second in which the service has no turn, so that they
//! are not in the way of the slices.

use std::collections::HashMap;
use std::time::Duration;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

use crate::rate_limiter::RateLimiter;

/// How often a status is written in a row. Whatever happens to a service in its life is no more
/// than that; an annotation that somebody has flip all the time is.
const BURST: u32 = 25;

/// How much time passes then from one time to the next.
const INTERVAL: Duration = Duration::from_secs(10);

/// How long numbers wait for more numbers.
const PAUSE: Duration = Duration::from_secs(1);

/// How long they wait at most.
const LONGEST: Duration = Duration::from_secs(10);

/// The services whose numbers wait, and how often the status of each has been written.
#[derive(Debug)]
pub(super) struct StatusPacer {
    waiting: HashMap<ObjectKey, Wait>,
    writes: RateLimiter<ObjectKey>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    until: Instant,
}

/// What to do about a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Write it.
    Now,
    /// Decide anew at that time.
    At(Instant),
    /// There is nothing to write.
    Never,
}

impl Default for StatusPacer {
    fn default() -> Self {
        Self { waiting: HashMap::new(), writes: RateLimiter::new(BURST, INTERVAL) }
    }
}

impl StatusPacer {
    /// `urgent`: whether the status that is to be written cannot wait; `None`, if there is none.
    pub(super) fn when(&mut self, service: &ObjectKey, urgent: Option<bool>, now: Instant) -> When {
        let next = self.writes.next(service, now);
        let when = match (urgent, self.waiting.get(service).copied()) {
            (None, _) => When::Never,
            (Some(_), _) if next > now => When::At(next),
            (Some(true), _) => When::Now,
            (Some(false), Some(wait)) if wait.until <= now => When::Now,
            (Some(false), wait) => {
                let since = wait.map_or(now, |wait| wait.since);
                let until = (now + PAUSE).min(since + LONGEST);
                self.waiting.insert(service.clone(), Wait { since, until });
                When::At(until)
            }
        };
        // If it is to be written now, it waits until it is: should that fail, it does not wait once more.
        if when == When::Never {
            self.waiting.remove(service);
        }
        when
    }

    /// A status has been written.
    pub(super) fn written(&mut self, service: &ObjectKey, now: Instant) {
        self.waiting.remove(service);
        self.writes.consume(service.clone(), now);
    }

    /// Somebody else writes from now on.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_when_they_have_settled_and_the_rest_at_once() {
        let mut pace = StatusPacer::default();
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(pace.when(&service, None, start), When::Never);
        assert_eq!(pace.when(&service, Some(false), start), When::At(after(1000)));
        assert_eq!(pace.when(&service, Some(false), after(700)), When::At(after(1700)));
        for time in [1700, 1701] {
            assert_eq!(pace.when(&service, Some(false), after(time)), When::Now, "until it is written");
        }
        pace.written(&service, after(1701));
        assert_eq!(pace.when(&service, Some(false), after(1701)), When::At(after(2701)));
        assert_eq!(pace.when(&service, Some(true), after(1702)), When::Now, "with all the numbers");
        assert_eq!(pace.when(&service, None, after(1703)), When::Never);
        assert!(pace.waiting.is_empty());
    }

    #[test]
    fn numbers_that_never_settle_are_written_now_and_then() {
        let mut pace = StatusPacer::default();
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let start = Instant::now();
        let mut changes = (0_u64..).map(|change| start + Duration::from_millis(400 * change));
        let written = changes.find(|&now| pace.when(&service, Some(false), now) == When::Now);
        assert_eq!(written, Some(start + Duration::from_millis(10_000)));
    }

    #[test]
    fn a_service_that_flips_is_told_of_at_intervals_in_the_end() {
        let mut pace = StatusPacer::default();
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let start = Instant::now();
        let mut written = 0;
        for flip in 0..1000_u64 {
            let now = start + Duration::from_millis(100 * flip);
            if pace.when(&service, Some(true), now) == When::Now {
                pace.written(&service, now);
                written += 1;
            }
        }
        assert_eq!(written, BURST + 9, "within 100 s");
        let now = start + Duration::from_secs(100);
        assert_eq!(pace.when(&service, Some(true), now), When::Now);
        pace.written(&service, now);
        assert_eq!(pace.when(&service, Some(true), now), When::At(now + INTERVAL));
    }
}
