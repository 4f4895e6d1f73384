//! When to ask again, what to hold on to meanwhile, and what to say: a state machine without I/O and without a clock
//! of its own.
//!
//! ```text
//!              answer                       failure                     hold is over
//!   (nothing) ───────> known ────────────────────────> held ─────────────────────────> lost
//!       │                ^  │ answer: Endpoints, if     │ answer: Recovered,             │ answer:
//!       │ failure: Lost  │  │ it differs                │ Endpoints if it differs        │ Endpoints
//!       v                │  v                           v                                v
//!      lost              known                        known                            known
//! ```
//!
//! **When.** After an answer at its time to live, but at least [`MIN_INTERVAL`] and at most [`MAX_INTERVAL`]; after
//! a failure after [`MIN_INTERVAL`], each time twice as long, up to [`MAX_BACKOFF`]. Every interval is drawn from ±10 % of
//! that, so that many who began together, or whom the same outage struck, do not stay in step.
//!
//! **What is said.** Each outage is reported once for each kind of failure, when the set begins to be held and when
//! it is lost; what is asked in between says nothing new.

use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use super::{Change, ResolveError, Resolved};

/// The shortest time from one question to the next, unless somebody is in a hurry.
pub(super) const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The longest, whatever the records' time to live.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// The longest time from one question to the next while DNS fails.
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Half of the range that an interval is drawn from, as a share of it.
const JITTER: f64 = 0.1;
/// Who is in a hurry waits up to so long: many lose the same peer at the same moment.
const SOON_SPREAD: Duration = Duration::from_millis(100);

/// Follows one service.
#[derive(Debug)]
pub(super) struct Refresh {
    /// How long a set is kept while DNS fails.
    hold: Duration,
    rng: fastrand::Rng,
    /// When the next question is due.
    next: Instant,
    /// When the last one was asked.
    asked: Option<Instant>,
    /// It has no outcome yet.
    is_asking: bool,
    /// Somebody is in a hurry since then: the outcome may be older than what they know.
    must_ask_again: bool,
    /// The set that holds.
    current: Option<Resolved>,
    outage: Option<Outage>,
}

/// From the first failure behind an answer (or the beginning) to the next answer.
#[derive(Debug)]
struct Outage {
    since: Instant,
    failures: u32,
    last: ResolveError,
    /// What has been said: whether the set was lost, and the kind of failure.
    reported: Vec<(bool, Discriminant<ResolveError>)>,
}

impl Refresh {
    /// The first question is due now.
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

    /// Whether to ask now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.is_asking && now >= self.next
    }

    /// When to look at the machine again, by itself: a question is due, or the hold is over. Never, if nothing but an
    /// outcome is waited for.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let next = (!self.is_asking).then_some(self.next);
        match (next, self.hold_ends()) {
            (Some(next), Some(end)) => Some(next.min(end)),
            (next, end) => next.or(end),
        }
    }

    /// A question is on its way.
    pub(super) fn on_asked(&mut self, now: Instant) {
        self.asked = Some(now);
        (self.is_asking, self.must_ask_again) = (true, false);
    }

    /// Something indicates that the set is no longer right: ask soon, but no more often than [`MIN_INTERVAL`].
    pub(super) fn refresh_soon(&mut self, now: Instant) {
        if self.is_asking {
            self.must_ask_again = true;
            return;
        }
        let earliest = self.asked.map_or(now, |asked| asked + MIN_INTERVAL).max(now);
        self.next = self.next.min(earliest + SOON_SPREAD.mul_f64(self.rng.f64()));
    }

    /// Time has passed: the set may have to be given up.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Change> {
        if now < self.hold_ends()? {
            return None;
        }
        self.current = None;
        let outage = self.outage.as_mut()?;
        outage.mark_reported(true).then(|| Change::Lost { error: outage.last.clone() })
    }

    /// The question has an outcome; what it changes, at most two things, in this order.
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

    /// When a set that is held is given up.
    fn hold_ends(&self) -> Option<Instant> {
        self.current.as_ref()?;
        // A hold beyond what the clock can tell is one for ever.
        self.outage.as_ref()?.since.checked_add(self.hold)
    }

    /// A time around `around`, within bounds.
    fn spread(&mut self, around: Duration, min: Duration, max: Duration) -> Duration {
        let around = around.clamp(min, max);
        let from = around.mul_f64(1.0 - JITTER).max(min);
        let to = around.mul_f64(1.0 + JITTER).min(max);
        from + (to - from).mul_f64(self.rng.f64())
    }
}

impl Outage {
    /// Whether this is to be said: it has not been, for this kind of failure.
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
