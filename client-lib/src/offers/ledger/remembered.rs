//! Ids of offers that were taken, for a while.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::OfferId;

#[derive(Debug)]
pub(super) struct Remembered {
    /// Time for which an id is remembered.
    time: Duration,
    /// The most ids that are remembered.
    most: usize,
    ids: HashSet<OfferId>,
    /// Ids with the time when each was added, oldest first.
    order: VecDeque<(Instant, OfferId)>,
}

impl Remembered {
    pub(super) fn new(time: Duration, most: usize) -> Self {
        Self { time, most, ids: HashSet::new(), order: VecDeque::new() }
    }

    /// Returns how many ids are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.ids.len(), self.order.len());
        self.order.len()
    }

    pub(super) fn has(&self, id: &OfferId) -> bool {
        self.ids.contains(id)
    }

    /// Adds an id, for which the oldest one has to go if there are too many.
    pub(super) fn add(&mut self, now: Instant, id: OfferId) {
        if self.ids.insert(id.clone()) {
            self.order.push_back((now, id));
        }
        if self.order.len() > self.most {
            self.remove_oldest();
        }
    }

    /// Forgets the ids whose time is over.
    pub(super) fn tick(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.remove_oldest();
        }
    }

    /// Returns when the oldest id's time is over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.order.front().and_then(|&(added, _)| added.checked_add(self.time))
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.order.clear();
    }

    fn remove_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.ids.remove(&id);
        }
    }
}
