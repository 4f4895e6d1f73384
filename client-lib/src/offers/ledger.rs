//! Payloads on offer: their ids, the bytes that they hold, and the time for which they may be
//! fetched.
//!
//! It is pure: it has no sockets, and the caller passes the clock. [`Offers`](super::Offers) puts
//! payloads on offer here and waits for their end; its connections fetch them by tickets. After
//! each call, the caller wakes the tasks of [`next_wake`](OfferLedger::next_wake), and drops the
//! payloads in [`released`](OfferLedger::released).
//!
//! ```text
//!   offer ──> line of callers, while the budget is full ──> on offer ── fetch ──> Ticket
//!                                                               │                    │
//!            Taken, Deadline, Withdrawn or Closed <─────────────┴──── finished <─────┘
//! ```
//!
//! - A payload counts against the budget until its offer has ended and no ticket of it is out. It
//!   is released no earlier, so a live fetch outlives the end of its offer.
//! - The first ticket that is acknowledged takes the offer. A later acknowledgement changes
//!   nothing. Nor does one that comes after the deadline or a withdrawal: the holders of the offer
//!   have been told by then that it was not taken.
//! - Every call that has the time first ends the offers whose deadline has come. So in the instant
//!   of a deadline a fetch finds nothing, and an acknowledgement is too late.
//! - An id on offer has one offer, with the first payload and the first deadline, however often it
//!   is offered. Once that offer has ended, the id gets a new one, even if tickets of the old one
//!   are out. An id that was taken lately gets none: it was only delivered again.
//! - A fetch of an id that was taken, at any time that is still remembered, is told so.
//! - Callers that wait for room are served in the order in which they came, whatever the lengths of
//!   their payloads.

mod line;
mod remembered;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use line::Line;
pub(crate) use line::LinePlace;
use remembered::Remembered;

use crate::reference::OfferId;

/// Limits of a ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerLimits {
    /// The most bytes of all payloads together.
    pub(crate) budget: usize,
    /// The most offers and callers in line together. An offer that has ended counts while it has
    /// handles or tickets.
    pub(crate) max_offers: usize,
    /// Time for which the id of a taken offer gets no new one.
    pub(crate) remember: Duration,
    /// The most ids of taken offers that are remembered. The oldest is forgotten to make room.
    pub(crate) max_remembered: usize,
}

/// Identifies an offer for the lifetime of the ledger: a later offer of the same id has another
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OfferKey(u64);

/// Live fetch, which keeps its payload until [`OfferLedger::finished`] gets it back.
#[derive(Debug)]
#[must_use = "the payload stays in memory until the ticket is given back"]
pub(crate) struct Ticket(OfferKey);

/// Result of putting a payload on offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The payload is on offer. The caller has the offer's first handle.
    New(OfferKey),
    /// The id was on offer already, so this payload is released. The caller has one more handle.
    Same(OfferKey),
    /// An offer of the id was taken lately, so this payload is released. There is no handle.
    Taken,
}

/// Reason why a payload is not put on offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOffered {
    /// The budget is full, or other callers wait already. The caller offers the payload again at
    /// its [turn](Wake::Turn), or has to [`leave`](OfferLedger::leave).
    Full(LinePlace),
    /// The payload is larger than the whole budget.
    TooLarge,
    /// There are as many offers and callers in line as may be.
    TooMany,
    /// The ledger is closed.
    Closed,
}

/// Answer to a fetcher.
#[derive(Debug)]
pub(crate) enum Fetched<P> {
    Here(Ticket, P),
    /// An offer of the id was taken.
    Taken,
    /// The id is not on offer.
    Unknown,
}

/// Result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchEnd {
    /// The fetcher's application has acknowledged the payload.
    Acknowledged,
    /// The fetcher's application has dropped the payload, or the connection has broken.
    Returned,
}

/// State of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferState {
    /// The offer can be fetched.
    Open,
    /// A fetcher has acknowledged the payload.
    Taken,
    /// The deadline has come.
    Deadline,
    Withdrawn,
    /// The ledger was closed.
    Closed,
}

/// Task of the caller that has something to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wake {
    /// All that wait for the end of this offer.
    Ended(OfferKey),
    /// The caller with this place in line.
    Turn(LinePlace),
}

/// Counters of offers since the ledger was created, and of those that are there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Offers that are open.
    pub(crate) offers: usize,
    /// Bytes that count against the budget.
    pub(crate) bytes: usize,
    /// Callers in line.
    pub(crate) waiting: usize,
    /// Tickets that are out.
    pub(crate) fetches: usize,
    /// Offers ever made. An id that was on offer already does not count again.
    pub(crate) offered: u64,
    pub(crate) taken: u64,
    pub(crate) expired: u64,
    pub(crate) withdrawn: u64,
    /// Fetches of ids that were not on offer.
    pub(crate) unknown: u64,
}

/// All payloads on offer. `P` is a payload, of which the ledger knows only the length.
#[derive(Debug)]
pub(crate) struct OfferLedger<P> {
    settings: LedgerLimits,
    /// Offers that are open, and those that have ended but still have handles or tickets.
    offers: HashMap<OfferKey, OfferEntry<P>>,
    /// Open offers.
    open: HashMap<OfferId, OfferKey>,
    /// Deadlines of the open offers.
    deadlines: BTreeSet<(Instant, OfferKey)>,
    /// Callers that wait for room.
    line: Line,
    remembered: Remembered,
    next_key: u64,
    is_closed: bool,
    /// Offers that have ended, for [`next_wake`](Self::next_wake) to report.
    ended: VecDeque<OfferKey>,
    /// Payloads that the ledger no longer needs, for the caller to drop.
    released: Vec<P>,
    counts: Counts,
}

#[derive(Debug)]
struct OfferEntry<P> {
    id: OfferId,
    /// Payload. `None` once the offer has ended and no ticket of it is out.
    payload: Option<P>,
    length: usize,
    deadline: Instant,
    state: OfferState,
    handles: usize,
    tickets: usize,
}

impl<P: Clone> OfferLedger<P> {
    pub(crate) fn new(settings: LedgerLimits) -> Self {
        Self {
            settings,
            offers: HashMap::new(),
            open: HashMap::new(),
            deadlines: BTreeSet::new(),
            line: Line::default(),
            remembered: Remembered::new(settings.remember, settings.max_remembered),
            next_key: 0,
            is_closed: false,
            ended: VecDeque::new(),
            released: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Puts a payload of some length on offer, or gives it back. `place` is the caller's place in
    /// line, if an earlier attempt has returned one.
    ///
    /// The caller keeps the place only if the result is [`NotOffered::Full`]. It has to
    /// [`forget`](Self::forget) the offer as often as it got [`Added::New`] or [`Added::Same`].
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        id: &OfferId,
        (payload, length): (P, usize),
        deadline: Instant,
        place: Option<LinePlace>,
    ) -> Result<Added, (P, NotOffered)> {
        self.tick(now);
        let place = place.filter(|&place| self.line.has(place));
        let known = self.find(now, id);
        let refused = if known.is_none() { self.admit(length, place).err() } else { None };
        if let Some(place) = place
            && !matches!(refused, Some(NotOffered::Full(_)))
        {
            self.line.leave(place);
        }
        match (known, refused) {
            (_, Some(refused)) => Err((payload, refused)),
            (Some(known), None) => {
                self.released.push(payload);
                Ok(known)
            }
            (None, None) => Ok(Added::New(self.insert(id, (payload, length), deadline))),
        }
    }

    /// Takes a caller that no longer waits out of the line.
    pub(crate) fn leave(&mut self, place: LinePlace) {
        self.line.leave(place);
    }

    /// Returns a ticket for the payload with this id, if it is on offer.
    pub(crate) fn fetch(&mut self, now: Instant, id: &str) -> Fetched<P> {
        self.tick(now);
        let open = self.open.get(id).and_then(|&key| Some((key, self.offers.get_mut(&key)?)));
        let Some((key, OfferEntry { payload: Some(payload), tickets, .. })) = open else {
            self.counts.unknown += 1;
            return if self.remembered.has(id) { Fetched::Taken } else { Fetched::Unknown };
        };
        *tickets += 1;
        self.counts.fetches += 1;
        Fetched::Here(Ticket(key), payload.clone())
    }

    /// Takes a ticket back. The first acknowledgement of an open offer takes the offer.
    pub(crate) fn finished(&mut self, now: Instant, ticket: Ticket, outcome: FetchEnd) {
        self.tick(now);
        let Ticket(key) = ticket;
        let Some(entry) = self.offers.get_mut(&key) else { return };
        entry.tickets -= 1;
        self.counts.fetches -= 1;
        if outcome == FetchEnd::Acknowledged && entry.state == OfferState::Open {
            self.remembered.add(now, entry.id.clone());
            self.end(key, OfferState::Taken);
        } else {
            self.tidy(key);
        }
    }

    /// Ends an offer, if it is open. Live fetches of it go on.
    pub(crate) fn withdraw(&mut self, now: Instant, key: OfferKey) {
        self.tick(now);
        self.end(key, OfferState::Withdrawn);
    }

    /// Ends all offers and refuses new ones. Live fetches go on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.remembered.clear();
        let open: Vec<OfferKey> = self.open.values().copied().collect();
        open.into_iter().for_each(|key| self.end(key, OfferState::Closed));
    }

    /// Ends the offers whose deadline has come.
    pub(crate) fn tick(&mut self, now: Instant) {
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.end(key, OfferState::Deadline);
        }
    }

    /// Returns when the next [`tick`](Self::tick) is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Returns the state of an offer. `None` if all its handles have been forgotten.
    pub(crate) fn state(&self, key: OfferKey) -> Option<OfferState> {
        self.offers.get(&key).map(|entry| entry.state)
    }

    /// Gives back one handle of an offer, and returns whether it was the last. The offer itself
    /// stays as it is.
    pub(crate) fn forget(&mut self, key: OfferKey) -> bool {
        let Some(entry) = self.offers.get_mut(&key) else { return true };
        entry.handles = entry.handles.saturating_sub(1);
        let is_last = entry.handles == 0;
        self.tidy(key);
        is_last
    }

    /// Returns the deadline of the offer that a ticket is for.
    pub(crate) fn deadline(&self, ticket: &Ticket) -> Option<Instant> {
        self.offers.get(&ticket.0).map(|entry| entry.deadline)
    }

    /// Returns whether tickets for the payload with this id are out.
    pub(crate) fn is_being_fetched(&self, id: &str) -> bool {
        self.open.get(id).and_then(|key| self.offers.get(key)).is_some_and(|entry| entry.tickets > 0)
    }

    /// Returns the next task to be woken. Each offer's end and each turn is returned once.
    ///
    /// The first caller in line has its turn when its payload fits. The next one's comes after that
    /// caller has offered its payload again, or has left.
    pub(crate) fn next_wake(&mut self) -> Option<Wake> {
        if let Some(key) = self.ended.pop_front() {
            return Some(Wake::Ended(key));
        }
        let turn = if self.is_closed { self.line.next_of_all() } else { self.line.next_turn(self.room()) };
        turn.map(Wake::Turn)
    }

    /// Returns the payloads that are no longer needed. The caller drops them after it has unlocked
    /// the ledger, because dropping a payload may run the application's code.
    pub(crate) fn released(&mut self) -> &mut Vec<P> {
        &mut self.released
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { offers: self.open.len(), waiting: self.line.len(), ..self.counts }
    }

    /// Returns how many bytes the budget has left.
    fn room(&self) -> usize {
        self.settings.budget.saturating_sub(self.counts.bytes)
    }

    /// Returns what is known of an id without its payload: that it is on offer, or was taken
    /// lately.
    fn find(&mut self, now: Instant, id: &OfferId) -> Option<Added> {
        let Some(&key) = self.open.get(id) else {
            return self.remembered.has_lately(now, id).then_some(Added::Taken);
        };
        self.offers.get_mut(&key)?.handles += 1;
        Some(Added::Same(key))
    }

    /// Decides whether there is room for a payload of this length now.
    fn admit(&mut self, length: usize, place: Option<LinePlace>) -> Result<(), NotOffered> {
        if self.is_closed {
            return Err(NotOffered::Closed);
        }
        if length > self.settings.budget {
            return Err(NotOffered::TooLarge);
        }
        // A caller in line has been counted already.
        if place.is_none() && self.offers.len() + self.line.len() >= self.settings.max_offers {
            return Err(NotOffered::TooMany);
        }
        if self.line.first() == place && length <= self.room() {
            return Ok(());
        }
        Err(NotOffered::Full(place.unwrap_or_else(|| self.line.join(length))))
    }

    fn insert(&mut self, id: &OfferId, (payload, length): (P, usize), deadline: Instant) -> OfferKey {
        let key = OfferKey(self.next_key);
        self.next_key += 1;
        self.open.insert(id.clone(), key);
        self.deadlines.insert((deadline, key));
        let (id, payload, state) = (id.clone(), Some(payload), OfferState::Open);
        self.offers.insert(key, OfferEntry { id, payload, length, deadline, state, handles: 1, tickets: 0 });
        self.counts.bytes += length;
        self.counts.offered += 1;
        key
    }

    /// Ends an offer, if it is open.
    fn end(&mut self, key: OfferKey, state: OfferState) {
        let Some(entry) = self.offers.get_mut(&key).filter(|entry| entry.state == OfferState::Open) else {
            return;
        };
        entry.state = state;
        self.open.remove(&entry.id);
        self.deadlines.remove(&(entry.deadline, key));
        if entry.handles > 0 {
            self.ended.push_back(key);
        }
        match state {
            OfferState::Taken => self.counts.taken += 1,
            OfferState::Deadline => self.counts.expired += 1,
            OfferState::Withdrawn => self.counts.withdrawn += 1,
            OfferState::Open | OfferState::Closed => {}
        }
        self.tidy(key);
    }

    /// Releases the payload of an offer that has ended once no ticket of it is out, and removes the
    /// offer once it has no handle either.
    fn tidy(&mut self, key: OfferKey) {
        let Some(entry) = self.offers.get_mut(&key) else { return };
        if entry.state == OfferState::Open || entry.tickets > 0 {
            return;
        }
        if let Some(payload) = entry.payload.take() {
            self.counts.bytes -= entry.length;
            self.released.push(payload);
        }
        if entry.handles == 0 {
            self.offers.remove(&key);
        }
    }
}
