//! When to query again, how long to keep the last set of endpoints, and what to report: a state
//! machine without I/O and without a clock.
//!
//! ```text
//!              answer                      failure                      hold is over
//!   (nothing) ───────> known ───────────────────────> held ────────────────────────> lost
//!       │               ^  │ answer: Endpoints if     │ answer: Recovered, and      │ answer:
//!       │ failure:      │  │ they differ              │ Endpoints if they differ    │ Endpoints
//!       v Lost          │  v                          v                             v
//!      lost             known                       known                         known
//! ```
//!
//! **Intervals.** After an answer, the next query is due at the end of its time to live, but not
//! before [`MIN_INTERVAL`] nor after [`MAX_INTERVAL`]. After a failure it is due after
//! [`MIN_INTERVAL`], which doubles with each failure up to [`MAX_BACKOFF`]. Each interval is drawn
//! from a range of ±10 %, so that clients that began together, or had the same outage, do not stay
//! in step.
//!
//! **Reports.** Each outage is reported once for each kind of failure, when the set begins to be
//! held and when it is lost.

use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use super::{Change, ResolveError, Resolved};

/// Minimum time between two queries for a service's endpoints.
pub(super) const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between two queries for a service's endpoints, whatever the records' time to live.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum time between two queries for a service's endpoints while DNS fails.
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Half of the range that an interval is drawn from, as a fraction of the interval.
const JITTER: f64 = 0.1;
/// Range of the delay of a refresh that is asked for: many clients lose the same peer at the same
/// moment.
const SOON_SPREAD: Duration = Duration::from_millis(100);

/// State machine that decides when to query a service's endpoints, and what to report.
#[derive(Debug)]
pub(super) struct Refresh {
    /// Time for which the last endpoints are kept while DNS fails.
    hold: Duration,
    rng: fastrand::Rng,
    /// Time at which the next query is due.
    next: Instant,
    /// Time at which the last query was sent. `None` before the first.
    asked: Option<Instant>,
    /// Whether a query for the endpoints is in flight.
    is_asking: bool,
    /// Whether a refresh was asked for while a query was in flight, whose answer may be older than
    /// the reason for it.
    must_ask_again: bool,
    /// Endpoints that count as current. `None` before the first answer and after they were lost.
    current: Option<Resolved>,
    outage: Option<Outage>,
}

/// Outage: from the first failure after an answer (or at the beginning) until the next answer.
#[derive(Debug)]
struct Outage {
    since: Instant,
    failures: u32,
    last: ResolveError,
    /// Reports so far: whether the set was lost, and the kind of failure.
    reported: Vec<(bool, Discriminant<ResolveError>)>,
}

impl Refresh {
    /// Creates the state machine of a service. Its first query is due at `now`.
    pub(super) fn new(now: Instant, hold: Duration, rng: fastrand::Rng) -> Self {
        Self {
            hold,
            rng,
            next: now,
            asked: None,
            is_asking: false,
            must_ask_again: false,
            current: None,
            outage: None,
        }
    }

    /// Returns whether a query is to be sent now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.is_asking && now >= self.next
    }

    /// Returns when to call [`tick`](Self::tick) or query, if nothing happens before. `None` while
    /// only an outcome is awaited.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let next = (!self.is_asking).then_some(self.next);
        match (next, self.hold_ends()) {
            (Some(next), Some(end)) => Some(next.min(end)),
            (next, end) => next.or(end),
        }
    }

    /// Records that a query was sent at `now`.
    pub(super) fn on_asked(&mut self, now: Instant) {
        self.asked = Some(now);
        (self.is_asking, self.must_ask_again) = (true, false);
    }

    /// Makes a query due soon, because something indicates that the set has changed.
    /// [`MIN_INTERVAL`] still holds.
    pub(super) fn refresh_soon(&mut self, now: Instant) {
        if self.is_asking {
            self.must_ask_again = true;
            return;
        }
        let earliest = self.asked.map_or(now, |asked| asked + MIN_INTERVAL).max(now);
        self.next = self.next.min(earliest + SOON_SPREAD.mul_f64(self.rng.f64()));
    }

    /// Returns the change that the passing of time causes: a set that was held too long is lost.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Change> {
        if now < self.hold_ends()? {
            return None;
        }
        self.current = None;
        let outage = self.outage.as_mut()?;
        outage.mark_reported(true).then(|| Change::Lost { error: outage.last.clone() })
    }

    /// Takes the outcome of a query. Returns the changes that it causes, at most two, in order.
    pub(super) fn on_outcome(
        &mut self,
        now: Instant,
        outcome: Result<Resolved, ResolveError>,
    ) -> Vec<Change> {
        self.is_asking = false;
        let changes = match outcome {
            Ok(resolved) => self.on_answer(now, resolved),
            Err(error) => self.on_failure(now, error).into_iter().collect(),
        };
        if self.must_ask_again {
            self.refresh_soon(now);
        }
        changes
    }

    fn on_answer(&mut self, now: Instant, resolved: Resolved) -> Vec<Change> {
        self.next = now + self.spread(resolved.ttl, MIN_INTERVAL, MAX_INTERVAL);
        let mut changes = Vec::new();
        if self.outage.take().is_some() && self.current.is_some() {
            changes.push(Change::Recovered);
        }
        let is_same = self.current.as_ref().is_some_and(|current| current.is_same_set(&resolved));
        if !is_same {
            changes.push(Change::Endpoints(resolved.clone()));
        }
        self.current = Some(resolved);
        changes
    }

    fn on_failure(&mut self, now: Instant, error: ResolveError) -> Option<Change> {
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: now,
            failures: 0,
            last: error.clone(),
            reported: Vec::new(),
        });
        outage.failures = outage.failures.saturating_add(1);
        outage.last = error;
        let backoff = MIN_INTERVAL.saturating_mul(2_u32.saturating_pow(outage.failures - 1));
        self.next = now + self.spread(backoff, MIN_INTERVAL, MAX_BACKOFF);

        if self.hold_ends().is_some_and(|end| now >= end) {
            self.current = None;
        }
        let is_lost = self.current.is_none();
        let outage = self.outage.as_mut()?;
        outage.mark_reported(is_lost).then(|| match is_lost {
            true => Change::Lost { error: outage.last.clone() },
            false => Change::Held { since: outage.since, error: outage.last.clone() },
        })
    }

    /// Returns when the endpoints that are kept in an outage are given up. `None` if none are kept.
    fn hold_ends(&self) -> Option<Instant> {
        self.current.as_ref()?;
        // A sum beyond the clock's range makes the hold endless.
        self.outage.as_ref()?.since.checked_add(self.hold)
    }

    /// Returns a random duration around `around` (±10 %), between `min` and `max`.
    fn spread(&mut self, around: Duration, min: Duration, max: Duration) -> Duration {
        let around = around.clamp(min, max);
        let from = around.mul_f64(1.0 - JITTER).max(min);
        let to = around.mul_f64(1.0 + JITTER).min(max);
        from + (to - from).mul_f64(self.rng.f64())
    }
}

impl Outage {
    /// Marks this kind of failure as reported. Returns whether it had not been reported in this
    /// outage.
    fn mark_reported(&mut self, is_lost: bool) -> bool {
        let report = (is_lost, discriminant(self.last.cause()));
        let is_first = !self.reported.contains(&report);
        if is_first {
            self.reported.push(report);
        }
        is_first
    }
}

#[cfg(test)]
mod tests;
