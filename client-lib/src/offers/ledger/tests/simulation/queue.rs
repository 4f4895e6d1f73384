//! A queue that delivers at least once, and drops messages whose id it has had lately.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::reference::OfferId;

#[derive(Debug)]
pub(super) struct Queue {
    redelivery: Duration,
    window: Duration,
    messages: Vec<Message>,
    next: u64,
    /// Time until which further messages of an id are dropped.
    known: HashMap<OfferId, Instant>,
}

#[derive(Debug)]
struct Message {
    number: u64,
    id: OfferId,
    /// Time from which the message may be delivered.
    from: Instant,
}

/// A message that the queue has delivered. It delivers it again after a while, unless it is
/// acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    number: u64,
    pub(super) id: OfferId,
}

impl Queue {
    pub(super) fn new(redelivery: Duration, window: Duration) -> Self {
        Self { redelivery, window, messages: Vec::new(), next: 0, known: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Adds a message. Returns false if it was dropped.
    pub(super) fn publish(&mut self, now: Instant, id: OfferId) -> bool {
        self.known.retain(|_, until| *until > now);
        if self.known.contains_key(&id) {
            return false;
        }
        self.known.insert(id.clone(), now + self.window);
        self.messages.push(Message { number: self.next, id, from: now });
        self.next += 1;
        true
    }

    /// Delivers one of the messages that are due, if there are any.
    pub(super) fn deliver(&mut self, now: Instant, rng: &mut fastrand::Rng) -> Option<Delivery> {
        let due = self.messages.iter_mut().filter(|message| message.from <= now);
        let message = rng.choice(due.collect::<Vec<_>>())?;
        message.from = now + self.redelivery;
        Some(Delivery { number: message.number, id: message.id.clone() })
    }

    /// Removes a message. Returns whether it was still there.
    pub(super) fn acknowledge(&mut self, delivery: &Delivery) -> bool {
        let before = self.messages.len();
        self.messages.retain(|message| message.number != delivery.number);
        self.messages.len() < before
    }

    /// Makes a message due at once.
    pub(super) fn give_back(&mut self, now: Instant, delivery: &Delivery) {
        if let Some(message) = self.messages.iter_mut().find(|message| message.number == delivery.number) {
            message.from = now;
        }
    }

    /// Returns when the next message is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.messages.iter().map(|message| message.from).min()
    }
}
