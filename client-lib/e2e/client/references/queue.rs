//! A queue that delivers what is not acknowledged in time again, and drops what it had lately.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Queue of messages. Two messages with the same text are one.
pub(super) struct Queue {
    redelivery: Duration,
    window: Duration,
    waiting: VecDeque<String>,
    /// Messages that were delivered, and the times at which they are delivered again.
    delivered: HashMap<String, Instant>,
    due: BTreeSet<(Instant, String)>,
    /// Ids of the window, in the order in which they came.
    recent: VecDeque<(Instant, String)>,
    ids: HashSet<String>,
}

impl Queue {
    pub(super) fn new(redelivery: Duration, window: Duration) -> Self {
        Self {
            redelivery,
            window,
            waiting: VecDeque::new(),
            delivered: HashMap::new(),
            due: BTreeSet::new(),
            recent: VecDeque::new(),
            ids: HashSet::new(),
        }
    }

    /// Takes a message, unless one with the same id came within the window.
    pub(super) fn publish(&mut self, now: Instant, id: &str, message: &str) {
        while let Some((_, old)) = self.recent.pop_front_if(|(came, _)| now - *came >= self.window) {
            self.ids.remove(&old);
        }
        if self.ids.insert(id.to_owned()) {
            self.recent.push_back((now, id.to_owned()));
            if !self.delivered.contains_key(message) {
                self.waiting.push_back(message.to_owned());
            }
        }
    }

    /// Returns the next message to deliver, if fewer than `most` are delivered.
    pub(super) fn next(&mut self, now: Instant, most: usize) -> Option<String> {
        let late = self.due.first().is_some_and(|(due, _)| *due <= now);
        let message = if late {
            self.due.pop_first().map(|(_, message)| message)
        } else if self.delivered.len() < most {
            self.waiting.pop_front()
        } else {
            None
        }?;
        let due = now + self.redelivery;
        self.delivered.insert(message.clone(), due);
        self.due.insert((due, message.clone()));
        Some(message)
    }

    pub(super) fn acknowledge(&mut self, message: &str) {
        if let Some(due) = self.delivered.remove(message) {
            self.due.remove(&(due, message.to_owned()));
        }
        self.waiting.retain(|waiting| waiting != message);
    }

    /// Has a message delivered again at once.
    pub(super) fn give_back(&mut self, message: &str) {
        if let Some(due) = self.delivered.remove(message) {
            self.due.remove(&(due, message.to_owned()));
            self.waiting.push_back(message.to_owned());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.delivered.is_empty()
    }
}
