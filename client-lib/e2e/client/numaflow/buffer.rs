//! A buffer between vertices, as Numaflow keeps it in JetStream.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Settings of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// The most messages that are not acknowledged.
    pub(super) capacity: usize,
    /// Time after which a message is delivered again whose reader has died.
    pub(super) redelivery: Duration,
    /// Time in which a second message with the same id is dropped.
    pub(super) window: Duration,
}

/// A message. Its offset is the same whenever it is delivered.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) offset: u64,
    /// Id by which repeats are dropped, which sinks are told.
    pub(super) id: String,
    pub(super) keys: Vec<String>,
    pub(super) value: Vec<u8>,
    pub(super) headers: Vec<(String, String)>,
    /// Event time, in seconds since 1970.
    pub(super) time: i64,
}

pub(super) struct Buffer {
    settings: Settings,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Message>,
    in_progress: usize,
    /// Messages of readers that died, by the time at which they are delivered again.
    late: BTreeMap<(Instant, u64), Message>,
    /// Ids of the window, in the order in which they came.
    recent: VecDeque<(Instant, String)>,
    ids: HashSet<String>,
    next_offset: u64,
    dropped: usize,
    acknowledged: usize,
}

/// A message that a reader works on. While it does, the reader reports progress, so the message is
/// not delivered again. If this is dropped without a decision, the reader has died.
pub(super) struct Delivery {
    buffer: Arc<Buffer>,
    message: Message,
    is_decided: bool,
}

impl Buffer {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { settings, state: Mutex::default(), changed: Notify::new() })
    }

    /// Appends a message, unless one with its id came within the window. Waits while the buffer is
    /// full.
    pub(super) async fn publish(&self, mut message: Message) {
        let (window, capacity) = (self.settings.window, self.settings.capacity);
        self.until(|state, now| {
            while let Some((_, old)) = state.recent.pop_front_if(|(came, _)| now - *came >= window) {
                state.ids.remove(&old);
            }
            if state.ids.contains(&message.id) {
                state.dropped += 1;
                return Some(());
            }
            if state.len() >= capacity {
                return None;
            }
            state.ids.insert(message.id.clone());
            state.recent.push_back((now, message.id.clone()));
            message.offset = state.next_offset;
            state.next_offset += 1;
            state.waiting.push_back(message.clone());
            Some(())
        })
        .await;
    }

    /// Waits for the next message. Cancellation loses none.
    pub(super) async fn next(self: &Arc<Self>) -> Delivery {
        let message = self.until(|state, _| state.take()).await;
        Delivery { buffer: Arc::clone(self), message, is_decided: false }
    }

    pub(super) fn try_next(self: &Arc<Self>) -> Option<Delivery> {
        let message = self.state.lock().take()?;
        Some(Delivery { buffer: Arc::clone(self), message, is_decided: false })
    }

    /// Waits until no message can be appended.
    pub(super) async fn full(&self) {
        self.until(|state, _| (state.len() >= self.settings.capacity).then_some(())).await;
    }

    /// Returns how many messages have been acknowledged so far.
    pub(super) fn count(&self) -> usize {
        self.state.lock().acknowledged
    }

    /// Returns how many repeats were dropped.
    pub(super) fn dropped(&self) -> usize {
        self.state.lock().dropped
    }

    /// Calls `attempt` whenever something has changed, until it returns a value.
    async fn until<T>(&self, mut attempt: impl FnMut(&mut State, Instant) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let due = {
                let (mut state, now) = (self.state.lock(), Instant::now());
                while let Some(entry) = state.late.first_entry()
                    && entry.key().0 <= now
                {
                    let message = entry.remove();
                    state.waiting.push_front(message);
                }
                if let Some(value) = attempt(&mut state, now) {
                    self.changed.notify_waiters();
                    return value;
                }
                state.late.first_key_value().map(|((due, _), _)| *due)
            };
            match due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }

    fn decide(&self, decision: impl FnOnce(&mut State)) {
        decision(&mut self.state.lock());
        self.changed.notify_waiters();
    }
}

impl State {
    /// Returns how many messages are not acknowledged.
    fn len(&self) -> usize {
        self.waiting.len() + self.in_progress + self.late.len()
    }

    fn take(&mut self) -> Option<Message> {
        let message = self.waiting.pop_front()?;
        self.in_progress += 1;
        Some(message)
    }
}

impl Delivery {
    pub(super) fn message(&self) -> &Message {
        &self.message
    }

    pub(super) fn acknowledge(mut self) {
        self.is_decided = true;
        self.buffer.decide(|state| {
            state.in_progress -= 1;
            state.acknowledged += 1;
        });
    }

    /// Has the message delivered again at once.
    pub(super) fn give_back(mut self) {
        self.is_decided = true;
        self.buffer.decide(|state| {
            state.in_progress -= 1;
            state.waiting.push_front(self.message.clone());
        });
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_decided {
            let due = Instant::now() + self.buffer.settings.redelivery;
            self.buffer.decide(|state| {
                state.in_progress -= 1;
                state.late.insert((due, self.message.offset), self.message.clone());
            });
        }
    }
}
