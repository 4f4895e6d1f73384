//! The services that wait to be looked at: each once, and namespaces in [turns](crate::fair_queue).
//!
//! ```text
//!            add                     next                    WorkItem
//!   change ───────> ready (in turns) ──────> in work ── done ──────────────────> forgotten
//!                     ▲      ▲                 │  └──── changed meanwhile ──> ready
//!                     │      │ add             │ later, failed
//!                     │   ┌──┴──────┐          │
//!                time │   │ waiting │ <────────┘
//!                     └───┴─────────┘
//! ```
//!
//! - A service is in one of these places only, and never in work twice at the same time.
//! - A failure is followed by a pause that doubles from 0.2 s. A change of the service ends the pause, since it may be what
//!   the failure waited for; unless the API server has asked for that pause.
//! - A service that changes while it is written, several times in a row, rests after its turn, ever longer: what changes
//!   meanwhile is written at once, as a few large changes instead of many small ones. One that changes now and then never rests.
//! - Adding never blocks, and costs nothing for a service that is there already.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use multinet_runtime::{ObjectKey, random_fraction};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::fair_queue::{FairQueue, Limits};

/// The first pause after a failure.
const FIRST: Duration = Duration::from_millis(200);

/// The longest pause after failures that have nothing to do with the service, such as an API server that is gone: one that is
/// back is noticed within this time.
const LONGEST_OUTAGE: Duration = Duration::from_secs(5);

/// The longest pause after failures of the service's own.
const LONGEST: Duration = Duration::from_secs(30);

/// The longest pause that an API server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// The first rest after a turn, about as long as a write takes.
const FIRST_COOLDOWN: Duration = Duration::from_millis(10);

/// The longest rest after a turn: how much later a change may be in DNS because the service keeps changing.
const LONGEST_COOLDOWN: Duration = Duration::from_millis(500);

/// Services that wait. It begins closed: what is added to a closed queue is not kept.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    /// Something is ready, or waits for an earlier time than before.
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    entries: HashMap<Arc<ObjectKey>, QueueEntry>,
    ready: FairQueue<Arc<ObjectKey>>,
    /// By the time at which they get ready; the number tells those of one time apart.
    waiting: BTreeMap<(Instant, u64), Arc<ObjectKey>>,
    next_number: u64,
}

#[derive(Debug)]
struct QueueEntry {
    position: Position,
    /// How often its work has failed in a row.
    failures: u32,
    cooldown: Cooldown,
}

/// How long a service rests after each turn, because it changes faster than it is written.
#[derive(Clone, Copy, Debug)]
struct Cooldown {
    length: Duration,
    /// In its last turn, something was written and it changed again. That alone is no hurry: most often the watch has shown
    /// the write before the API server has answered it.
    is_busy: bool,
    /// When the last one is over.
    over: Instant,
}

impl Cooldown {
    fn none(now: Instant) -> Self {
        Self { length: Duration::ZERO, is_busy: false, over: now }
    }

    /// The rest after a turn: twice as long after several in a row in which something was written and the service changed again,
    /// half as long after one in which it did not.
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
    /// Until then, whatever happens, if `is_held`.
    Waiting {
        until: (Instant, u64),
        is_held: bool,
    },
    /// Whether it has been added since.
    InProgress {
        again: bool,
    },
}

/// How long a service waits after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// What failed concerns everybody; pauses double up to 5 s.
    Outage,
    /// What failed concerns this service only; pauses double up to 30 s.
    Service,
    /// It will not succeed before somebody changes something: 30 s.
    Longest,
    /// The API server has asked for this pause: at least that, at most half as much again, 45 s at most.
    RetryAfter(Duration),
}

impl Queue {
    /// A queue that has no more services in work than that.
    pub fn new(limits: Limits) -> Self {
        let state = State { ready: FairQueue::new(limits), ..State::default() };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Has a service looked at soon. Nothing happens if it is waiting for that already.
    pub fn add(&self, service: &ObjectKey) {
        let mut state = self.lock();
        if state.add(service, Instant::now()) {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Takes services from now on. Those added before are not there: the caller adds all that there are.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Forgets all services that wait, and takes no more. Those in work stay so until their turns end.
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

    /// How many services wait for nothing but their turn.
    pub fn depth(&self) -> usize {
        self.lock().ready.waiting()
    }

    /// The next service, once there is one. To be awaited by one task at a time.
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

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is something new to take.
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

    /// Moves those whose time has come.
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

    /// The service whose turn it is, and how often it has failed.
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

    /// A turn is over: what becomes of the service.
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
                // What has changed meanwhile may be the attempt's own doing: it does not go on without any pause.
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
    /// The pause after so many failures before this one: doubled each time, shortened by up to a half at random so that
    /// services that failed together do not come back together.
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

/// A service that is in work. Dropping it is as good as [`done`](Self::done): what was not finished has to be added again. A
/// panic is a failure.
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
    /// Nothing is left to do, until then.
    Done(Option<Instant>),
    /// As much is done as one turn is for.
    Requeue,
    Failed(Backoff),
}

impl WorkItem {
    /// The service.
    pub fn service(&self) -> &ObjectKey {
        &self.service
    }

    /// How often its work has failed in a row before.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes that something was written.
    pub fn record_write(&mut self) {
        self.has_written = true;
    }

    /// The work is done.
    pub fn done(mut self) {
        self.end(Completion::Done(None));
    }

    /// The work is done, and the service is to be looked at again at that time, or as soon as it changes.
    pub fn requeue_at(mut self, time: Instant) {
        self.end(Completion::Done(Some(time)));
    }

    /// As much is done as one turn is for: the service has another one, after those of others.
    pub fn requeue(mut self) {
        self.end(Completion::Requeue);
    }

    /// The work has failed.
    pub fn failed(mut self, pause: Backoff) {
        self.end(Completion::Failed(pause));
    }

    fn end(&mut self, end: Completion) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.queue.lock().end(&self.service, end, self.has_written, Instant::now());
            // There may be something to take that had to wait for this one.
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
