//! Ids of offers that were taken, up to a number.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::OfferId;

#[derive(Debug)]
pub(super) struct Remembered {
    /// Time for which an id was taken lately.
    lately: Duration,
    /// The most ids that are remembered.
    most: usize,
    /// Ids of the offers whose payloads have been taken, with the time when each was taken last.
    ids: HashMap<OfferId, Instant>,
    /// Ids with the times when each was taken, oldest first.
    order: VecDeque<(Instant, OfferId)>,
}

impl Remembered {
    pub(super) fn new(lately: Duration, most: usize) -> Self {
        Self { lately, most, ids: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns how many ids are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.ids.len() <= self.order.len());
        self.order.len()
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.ids.contains_key(id)
    }

    pub(super) fn has_lately(&self, now: Instant, id: &OfferId) -> bool {
        self.ids.get(id).is_some_and(|&taken| now.saturating_duration_since(taken) < self.lately)
    }

    /// Adds an id, for which the oldest one has to go if there are too many.
    pub(super) fn add(&mut self, now: Instant, id: OfferId) {
        self.ids.insert(id.clone(), now);
        self.order.push_back((now, id));
        if self.order.len() > self.most
            && let Some((taken, oldest)) = self.order.pop_front()
            && self.ids.get(&oldest) == Some(&taken)
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.order.clear();
    }
}
