//! The rules of a ledger in their simplest form.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::super::{LedgerLimits, LinePlace, OfferKey, OfferState};
use crate::reference::OfferId;

#[derive(Debug)]
pub(super) struct Model {
    settings: LedgerLimits,
    /// Open offers, each with its deadline.
    pub(super) open: HashMap<OfferId, (OfferKey, Instant)>,
    /// State of each offer that has ended.
    pub(super) ended: HashMap<OfferKey, OfferState>,
    /// Ids of taken offers, each with the time until which it is remembered.
    remembered: VecDeque<(OfferId, Instant)>,
    /// Places in line, and the lengths of their payloads.
    pub(super) line: VecDeque<(LinePlace, usize)>,
}

impl Model {
    pub(super) fn new(settings: LedgerLimits) -> Self {
        let (open, ended) = (HashMap::new(), HashMap::new());
        Self { settings, open, ended, remembered: VecDeque::new(), line: VecDeque::new() }
    }

    pub(super) fn advance(&mut self, now: Instant) {
        let ended = self.open.extract_if(|_, (_, deadline)| *deadline <= now);
        self.ended.extend(ended.map(|(_, (key, _))| (key, OfferState::Deadline)));
        self.remembered.retain(|(_, until)| *until > now);
    }

    pub(super) fn is_remembered(&self, id: &OfferId) -> bool {
        self.remembered.iter().any(|(remembered, _)| remembered == id)
    }

    /// Ends an offer, if it is open.
    pub(super) fn end(&mut self, id: &OfferId, key: OfferKey, state: OfferState) -> bool {
        let is_open = self.open.get(id).is_some_and(|&(open, _)| open == key);
        if is_open {
            self.open.remove(id);
            self.ended.insert(key, state);
        }
        is_open
    }

    pub(super) fn acknowledge(&mut self, now: Instant, id: &OfferId, key: OfferKey) -> bool {
        let is_taken = self.end(id, key, OfferState::Taken);
        if is_taken {
            self.remembered.push_back((id.clone(), now + self.settings.remember));
            if self.remembered.len() > self.settings.max_remembered {
                self.remembered.pop_front();
            }
        }
        is_taken
    }

    pub(super) fn leave(&mut self, place: LinePlace) {
        self.line.retain(|&(other, _)| other != place);
    }

    pub(super) fn state(&self, key: OfferKey) -> OfferState {
        self.ended.get(&key).copied().unwrap_or(OfferState::Open)
    }
}
