//! Work queue of services: each service is in it at most once, and namespaces take
//! [turns](crate::fair_queue).
//!
//! ```text
//!            add                     next                  WorkItem
//!   change ───────> ready (in turns) ──────> in progress ─ done ────────────────> forgotten
//!                     ▲      ▲                 │  └──── changed meanwhile ──> ready
//!                     │      │ add             │ later, failed
//!                     │   ┌──┴──────┐          │
//!                time │   │ waiting │ <────────┘
//!                     └───┴─────────┘
//! ```
//!
//! - A service is in one of these places only, and in progress at most once at a time.
//! - A failure is followed by a pause, which doubles from 0.2 s. A change of the service ends the
//!   pause, since it may resolve the failure. A pause that the API server has requested is not cut
//!   short.
//! - A service that changes again and again while it is written has a cooldown after each turn,
//!   which grows. Changes during the cooldown are then written together. A service that changes
//!   only now and then has no cooldown.
//! - Adding never blocks, and does nothing for a service that waits already.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use multinet_runtime::{ObjectKey, random_fraction};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::fair_queue::{FairQueue, Limits};
use crate::limits::retries::{
    FIRST, FIRST_COOLDOWN, LONGEST, LONGEST_ASKED, LONGEST_COOLDOWN, LONGEST_OUTAGE,
};

/// Queue of services to plan and write. It begins closed, and a closed queue drops what is added.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    /// Notified when a service becomes ready, or waits for an earlier time than all others.
    wake: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    is_open: bool,
    entries: HashMap<Arc<ObjectKey>, QueueEntry>,
    ready: FairQueue<Arc<ObjectKey>>,
    /// Waiting services by the time at which they become ready. A number makes the key unique.
    waiting: BTreeMap<(Instant, u64), Arc<ObjectKey>>,
    next_number: u64,
}

#[derive(Debug)]
struct QueueEntry {
    position: Position,
    /// Number of failures of the service in a row.
    failures: u32,
    cooldown: Cooldown,
}

/// Pause after each turn of a service that changes faster than it is written.
#[derive(Clone, Copy, Debug)]
struct Cooldown {
    length: Duration,
    /// Whether the last turn wrote something while the service changed again. A single such turn
    /// does not start a cooldown: usually the change is the turn's own write, which the watch shows
    /// before the API server answers.
    is_busy: bool,
    /// Time at which the cooldown ends.
    over: Instant,
}

impl Cooldown {
    fn none(now: Instant) -> Self {
        Self { length: Duration::ZERO, is_busy: false, over: now }
    }

    /// Returns the cooldown after a turn. It doubles after consecutive busy turns, and halves after
    /// a turn that is not busy.
    fn next(self, is_busy: bool, now: Instant) -> Self {
        let length = match (self.is_busy, is_busy) {
            (true, true) => (2 * self.length).clamp(FIRST_COOLDOWN, LONGEST_COOLDOWN),
            (false, true) => self.length,
            (_, false) => Some(self.length / 2).filter(|half| *half >= FIRST_COOLDOWN).unwrap_or_default(),
        };
        Self { length, is_busy, over: now + length }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Ready,
    /// Waiting for a time. If `is_held` is set, a change does not end the wait.
    Waiting {
        until: (Instant, u64),
        is_held: bool,
    },
    /// A [`WorkItem`] exists for the service. `again` tells whether the service was added
    /// meanwhile.
    InProgress {
        again: bool,
    },
}

/// Pause of a service after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// The failure concerns all services. Pauses double up to 5 s.
    Outage,
    /// The failure concerns this service only. Pauses double up to 30 s.
    Service,
    /// A retry cannot succeed before a user changes something. The pause is about 30 s.
    Longest,
    /// The API server has requested this pause. The queue waits for up to half as long again, and
    /// for 45 s at most.
    RetryAfter(Duration),
}

impl Queue {
    /// Creates a closed queue with limits on the number of services in progress.
    pub fn new(limits: Limits) -> Self {
        let state = QueueState { ready: FairQueue::new(limits), ..QueueState::default() };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Queues a service, unless it is queued already.
    pub fn add(&self, service: &ObjectKey) {
        let mut state = self.lock();
        if state.add(service, Instant::now()) {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Opens the queue. It does not contain services that were added before, so the caller must add
    /// all of them.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Removes all waiting services, and drops services that are added from now on. Work items that
    /// exist stay valid.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        state.ready.clear();
        state.waiting.clear();
        state.entries.retain(|_, entry| matches!(entry.position, Position::InProgress { .. }));
        for entry in state.entries.values_mut() {
            entry.position = Position::InProgress { again: false };
        }
    }

    /// Returns the number of ready services, which wait only for their turn.
    pub fn depth(&self) -> usize {
        self.lock().ready.waiting()
    }

    /// Waits for the next service. Only one task at a time may call this: each change wakes one
    /// waiter.
    pub async fn next(self: &Arc<Self>) -> WorkItem {
        loop {
            let wait = {
                let mut state = self.lock();
                state.wake_due(Instant::now());
                match state.take() {
                    Some((service, failures)) => {
                        return WorkItem {
                            queue: Arc::clone(self),
                            service,
                            failures,
                            has_written: false,
                            is_over: false,
                        };
                    }
                    None => state.waiting.first_key_value().map(|((until, _), _)| *until),
                }
            };
            match wait {
                Some(until) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep_until(until) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }
}

impl QueueState {
    /// Queues a service. Returns whether the task that waits in [`Queue::next`] must be woken.
    fn add(&mut self, service: &ObjectKey, now: Instant) -> bool {
        if !self.is_open {
            return false;
        }
        let Some((key, _)) = self.entries.get_key_value(service) else {
            let key = Arc::new(service.clone());
            let entry = QueueEntry { position: Position::Ready, failures: 0, cooldown: Cooldown::none(now) };
            self.entries.insert(Arc::clone(&key), entry);
            self.ready.push(service, key);
            return true;
        };
        let key = Arc::clone(key);
        let Some(entry) = self.entries.get_mut(service) else { return false };
        match entry.position {
            Position::Waiting { until, is_held: false } if entry.cooldown.over > now => {
                let (failures, cooldown) = (entry.failures, entry.cooldown);
                self.waiting.remove(&until);
                self.wait(&key, failures, cooldown, cooldown.over.min(until.0), true);
                true
            }
            Position::Waiting { until, is_held: false } => {
                entry.position = Position::Ready;
                self.waiting.remove(&until);
                self.ready.push(service, key);
                true
            }
            Position::InProgress { .. } => {
                entry.position = Position::InProgress { again: true };
                false
            }
            Position::Ready | Position::Waiting { .. } => false,
        }
    }

    /// Makes the services ready whose wait has ended.
    fn wake_due(&mut self, now: Instant) {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now
        {
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.position = Position::Ready;
            }
            self.ready.push(&key.clone(), key);
        }
    }

    /// Begins the turn of the next ready service. Returns the service with its number of failures.
    fn take(&mut self) -> Option<(Arc<ObjectKey>, u32)> {
        let (_, key) = self.ready.begin()?;
        let entry = self.entries.get_mut(&key)?;
        entry.position = Position::InProgress { again: false };
        Some((key, entry.failures))
    }

    fn wait(
        &mut self,
        key: &Arc<ObjectKey>,
        failures: u32,
        cooldown: Cooldown,
        until: Instant,
        is_held: bool,
    ) {
        let until = (until, self.next_number);
        self.next_number += 1;
        self.waiting.insert(until, Arc::clone(key));
        let entry = QueueEntry { position: Position::Waiting { until, is_held }, failures, cooldown };
        self.entries.insert(Arc::clone(key), entry);
    }

    /// Ends the turn of a service.
    fn end(&mut self, key: &Arc<ObjectKey>, end: Completion, has_written: bool, now: Instant) {
        self.ready.end(key);
        let Some(QueueEntry { position: Position::InProgress { again }, failures, cooldown }) =
            self.entries.remove(key)
        else {
            return;
        };
        if !self.is_open {
            return;
        }
        match end {
            Completion::Failed(pause) => {
                let is_held = matches!(pause, Backoff::RetryAfter(_));
                // A change during a failed attempt may be caused by the attempt itself. It shortens
                // the pause, but a pause remains.
                let failed = if again { 0 } else { failures };
                let pause = pause.after(failed);
                self.wait(key, failures.saturating_add(1), Cooldown::none(now), now + pause, is_held);
            }
            Completion::Done(later) => self.done(key, later, again, cooldown.next(again && has_written, now)),
            Completion::Requeue => {
                self.entries
                    .insert(Arc::clone(key), QueueEntry { position: Position::Ready, failures: 0, cooldown });
                self.ready.push(key, Arc::clone(key));
            }
        }
    }

    fn done(&mut self, key: &Arc<ObjectKey>, later: Option<Instant>, again: bool, cooldown: Cooldown) {
        match later {
            _ if again => self.wait(key, 0, cooldown, cooldown.over, true),
            Some(later) => self.wait(key, 0, cooldown, later, false),
            None => {}
        }
    }
}

impl Backoff {
    /// Returns the pause after a failure that follows `failures` others. It is reduced at random by
    /// up to half, so that services that failed together are not retried together.
    fn after(self, failures: u32) -> Duration {
        let longest = match self {
            Self::RetryAfter(asked) => {
                let asked = asked.min(LONGEST_ASKED);
                return asked + (asked / 2).mul_f64(random_fraction());
            }
            Self::Longest => LONGEST,
            Self::Service => doubled(failures).min(LONGEST),
            Self::Outage => doubled(failures).min(LONGEST_OUTAGE),
        };
        longest / 2 + (longest / 2).mul_f64(random_fraction())
    }
}

fn doubled(times: u32) -> Duration {
    FIRST.saturating_mul(2u32.saturating_pow(times))
}

/// A service that is being worked on. Dropping it is the same as [`done`](Self::done), so
/// unfinished work must be added again. Dropping it in a panic counts as a failure.
#[derive(Debug)]
#[must_use = "dropping it ends the work"]
pub struct WorkItem {
    queue: Arc<Queue>,
    service: Arc<ObjectKey>,
    failures: u32,
    has_written: bool,
    is_over: bool,
}

#[derive(Debug)]
enum Completion {
    /// The work is done. At the given time, if any, the service becomes ready again.
    Done(Option<Instant>),
    /// Part of the work is done. The service becomes ready again at once.
    Requeue,
    Failed(Backoff),
}

impl WorkItem {
    /// Returns the service to work on.
    pub fn service(&self) -> &ObjectKey {
        &self.service
    }

    /// Returns the number of failures of the service in a row before this turn.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records that this turn has written something to the API server.
    pub fn record_write(&mut self) {
        self.has_written = true;
    }

    /// Ends the turn, with all work done.
    pub fn done(mut self) {
        self.end(Completion::Done(None));
    }

    /// Ends the turn. The service becomes ready again at `time`, or when it changes.
    pub fn requeue_at(mut self, time: Instant) {
        self.end(Completion::Done(Some(time)));
    }

    /// Ends the turn before all work is done. The service gets another turn after those of others.
    pub fn requeue(mut self) {
        self.end(Completion::Requeue);
    }

    /// Ends the turn with a failure. The service is retried after a pause.
    pub fn failed(mut self, pause: Backoff) {
        self.end(Completion::Failed(pause));
    }

    fn end(&mut self, end: Completion) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.queue.lock().end(&self.service, end, self.has_written, Instant::now());
            // A service may have become ready because this one no longer counts toward a limit.
            self.queue.wake.notify_one();
        }
    }
}

impl Drop for WorkItem {
    fn drop(&mut self) {
        self.end(if std::thread::panicking() {
            Completion::Failed(Backoff::Longest)
        } else {
            Completion::Done(None)
        });
    }
}

#[cfg(test)]
mod tests;
