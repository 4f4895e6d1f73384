//! Decides when a status is written (pure): at once if people wait for the change, else when its
//! numbers have settled. The status of a service that changes all the time is written at intervals.
//!
//! Writing a status costs the API server more than writing a slice. Numbers that keep changing are
//! of little use to people. They wait until the service has had no turn for a second, so that they
//! do not delay slices.

use std::collections::HashMap;

use multinet_runtime::ObjectKey;
use tokio::time::Instant;

use crate::limits::writes::{NUMBERS_LONGEST, NUMBERS_PAUSE, STATUS_BURST, STATUS_INTERVAL};
use crate::rate_limiter::RateLimiter;

/// Services whose numbers are waiting, and the write rate of each service's status.
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

/// Time to write a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Write the status now.
    Now,
    /// Decide again at this time whether to write the status.
    At(Instant),
    /// There is no status to write.
    Never,
}

impl Default for StatusPacer {
    fn default() -> Self {
        Self { waiting: HashMap::new(), writes: RateLimiter::new(STATUS_BURST, STATUS_INTERVAL) }
    }
}

impl StatusPacer {
    /// Decides when to write the status of a service. `urgent` tells whether the change cannot
    /// wait; `None` means that there is no change.
    pub(super) fn when(&mut self, service: &ObjectKey, urgent: Option<bool>, now: Instant) -> When {
        let next = self.writes.next(service, now);
        let when = match (urgent, self.waiting.get(service).copied()) {
            (None, _) => When::Never,
            (Some(_), _) if next > now => When::At(next),
            (Some(true), _) => When::Now,
            (Some(false), Some(wait)) if wait.until <= now => When::Now,
            (Some(false), wait) => {
                let since = wait.map_or(now, |wait| wait.since);
                let until = (now + NUMBERS_PAUSE).min(since + NUMBERS_LONGEST);
                self.waiting.insert(service.clone(), Wait { since, until });
                When::At(until)
            }
        };
        // Keep the entry until the status is written. If that fails, the retry need not wait again.
        if when == When::Never {
            self.waiting.remove(service);
        }
        when
    }

    /// Records that a status was written.
    pub(super) fn written(&mut self, service: &ObjectKey, now: Instant) {
        self.waiting.remove(service);
        self.writes.consume(service.clone(), now);
    }

    /// Forgets waiting statuses and write rates, since leadership has ended.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn settled_numbers_and_urgent_changes_are_written() {
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
    fn unsettled_numbers_are_written_at_intervals() {
        let mut pace = StatusPacer::default();
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let start = Instant::now();
        let mut changes = (0_u64..).map(|change| start + Duration::from_millis(400 * change));
        let written = changes.find(|&now| pace.when(&service, Some(false), now) == When::Now);
        assert_eq!(written, Some(start + Duration::from_millis(10_000)));
    }

    #[test]
    fn a_service_that_keeps_changing_is_written_at_intervals() {
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
        assert_eq!(written, STATUS_BURST + 9, "within 100 s");
        let now = start + Duration::from_secs(100);
        assert_eq!(pace.when(&service, Some(true), now), When::Now);
        pace.written(&service, now);
        assert_eq!(pace.when(&service, Some(true), now), When::At(now + STATUS_INTERVAL));
    }
}
