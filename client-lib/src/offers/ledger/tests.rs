//! Tests of the ledger: single rules, and simulated pipelines.

mod simulation;

use std::time::{Duration, Instant};

use super::{
    Added, FetchEnd, Fetched, LedgerLimits, LinePlace, NotOffered, OfferKey, OfferLedger, OfferState, Ticket,
    Wake,
};

const BUDGET: usize = 10;

const DEADLINE: Duration = Duration::from_secs(600);

const REMEMBERED: Duration = Duration::from_secs(60);

/// Ledger with a clock. Payloads are their own lengths.
struct Rig {
    ledger: OfferLedger<usize>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        let settings =
            LedgerLimits { budget: BUDGET, max_offers: 4, remember: REMEMBERED, max_remembered: 2 };
        Self { ledger: OfferLedger::new(settings), now: Instant::now() }
    }

    fn offer(&mut self, id: &str, length: usize) -> Result<Added, NotOffered> {
        self.offer_from(id, length, None)
    }

    fn offer_from(&mut self, id: &str, length: usize, place: Option<LinePlace>) -> Result<Added, NotOffered> {
        let deadline = self.now + DEADLINE;
        let id = id.parse().unwrap();
        self.ledger.offer(self.now, &id, (length, length), deadline, place).map_err(|(back, refused)| {
            assert_eq!(back, length, "the payload is given back");
            refused
        })
    }

    fn offered(&mut self, id: &str, length: usize) -> OfferKey {
        match self.offer(id, length) {
            Ok(Added::New(key)) => key,
            other => panic!("{other:?}"),
        }
    }

    fn in_line(&mut self, id: &str, length: usize) -> LinePlace {
        match self.offer(id, length) {
            Err(NotOffered::Full(place)) => place,
            other => panic!("{other:?}"),
        }
    }

    fn fetch(&mut self, id: &str) -> Option<Ticket> {
        match self.ledger.fetch(self.now, id) {
            Fetched::Here(ticket, _) => Some(ticket),
            Fetched::Taken | Fetched::Unknown => None,
        }
    }

    fn finish(&mut self, ticket: Ticket, outcome: FetchEnd) {
        self.ledger.finished(self.now, ticket, outcome);
    }

    fn take(&mut self, id: &str) {
        let ticket = self.fetch(id).unwrap();
        self.finish(ticket, FetchEnd::Acknowledged);
    }

    fn withdraw(&mut self, key: OfferKey) {
        self.ledger.withdraw(self.now, key);
    }

    fn wakes(&mut self) -> Vec<Wake> {
        std::iter::from_fn(|| self.ledger.next_wake()).collect()
    }

    fn released(&mut self) -> Vec<usize> {
        std::mem::take(self.ledger.released())
    }

    fn bytes(&self) -> usize {
        self.ledger.counts().bytes
    }
}

#[test]
fn a_payload_larger_than_the_budget_is_refused_even_while_others_wait() {
    let mut rig = Rig::new();
    assert_eq!(rig.offer("a", BUDGET + 1), Err(NotOffered::TooLarge));
    rig.offered("b", BUDGET);
    rig.in_line("c", 1);
    assert_eq!(rig.offer("a", BUDGET + 1), Err(NotOffered::TooLarge));
}

#[test]
fn callers_get_room_in_the_order_in_which_they_came() {
    let mut rig = Rig::new();
    let (large, small) = (rig.offered("a", 8), rig.offered("b", 2));
    let (first, second) = (rig.in_line("c", 8), rig.in_line("d", 0));
    rig.withdraw(small);
    rig.ledger.forget(small);
    // The second would fit, but the first would then wait for ever behind small ones.
    assert_eq!(rig.wakes(), [Wake::Ended(small)]);
    assert_eq!(rig.offer_from("d", 0, Some(second)), Err(NotOffered::Full(second)));
    rig.withdraw(large);
    rig.ledger.forget(large);
    assert_eq!(rig.wakes(), [Wake::Ended(large), Wake::Turn(first)]);
    let third = rig.in_line("e", 1);
    assert_eq!(rig.wakes(), [], "each turn is reported once");
    assert!(matches!(rig.offer_from("c", 8, Some(first)), Ok(Added::New(_))));
    assert_eq!(rig.wakes(), [Wake::Turn(second)]);
    rig.ledger.leave(second);
    assert_eq!(rig.wakes(), [Wake::Turn(third)]);
    assert!(matches!(rig.offer_from("e", 1, Some(third)), Ok(Added::New(_))));
    assert!(matches!(rig.offer("f", 1), Ok(Added::New(_))));
}

#[test]
fn offers_and_callers_in_line_are_limited_together() {
    let mut rig = Rig::new();
    let key = rig.offered("a", BUDGET);
    let places = ["b", "c", "d"].map(|id| rig.in_line(id, 5));
    assert_eq!(rig.offer("e", 5), Err(NotOffered::TooMany));
    assert_eq!(rig.offer("a", BUDGET), Ok(Added::Same(key)));
    rig.ledger.leave(places[2]);
    let last = rig.in_line("e", 5);
    rig.withdraw(key);
    assert!(matches!(rig.offer_from("b", 5, Some(places[0])), Ok(Added::New(_))));
    // The offer that has ended counts until both of its handles are gone.
    rig.ledger.forget(key);
    assert_eq!(rig.offer("f", 5), Err(NotOffered::TooMany));
    rig.ledger.forget(key);
    assert_eq!(rig.ledger.state(key), None);
    assert!(rig.in_line("f", 5) > last);
}

#[test]
fn in_the_instant_of_the_deadline_a_fetch_finds_nothing_and_an_acknowledgement_is_too_late() {
    let mut rig = Rig::new();
    let key = rig.offered("a", 1);
    assert_eq!(rig.ledger.due(), Some(rig.now + DEADLINE));
    rig.now += DEADLINE - Duration::from_nanos(1);
    let ticket = rig.fetch("a").unwrap();
    rig.now += Duration::from_nanos(1);
    assert!(rig.fetch("a").is_none());
    rig.finish(ticket, FetchEnd::Acknowledged);
    assert_eq!(rig.ledger.state(key), Some(OfferState::Deadline));
    let counts = rig.ledger.counts();
    assert_eq!((counts.expired, counts.taken, counts.unknown, counts.bytes), (1, 0, 1, 0));
    assert_eq!(rig.ledger.due(), None);
}

#[test]
fn an_offer_that_has_ended_keeps_its_payload_until_its_last_ticket_is_back() {
    let mut rig = Rig::new();
    let key = rig.offered("a", 7);
    let tickets = [rig.fetch("a").unwrap(), rig.fetch("a").unwrap()];
    rig.withdraw(key);
    rig.ledger.forget(key);
    assert_eq!(rig.wakes(), [Wake::Ended(key)]);
    for ticket in tickets {
        assert_eq!((rig.released(), rig.bytes()), (vec![], 7));
        rig.finish(ticket, FetchEnd::Returned);
    }
    assert_eq!((rig.released(), rig.bytes(), rig.ledger.state(key)), (vec![7], 0, None));
}

#[test]
fn the_first_acknowledgement_takes_an_offer_and_others_change_nothing() {
    let mut rig = Rig::new();
    let key = rig.offered("a", 1);
    let tickets = [rig.fetch("a").unwrap(), rig.fetch("a").unwrap(), rig.fetch("a").unwrap()];
    let [returned, first, second] = tickets;
    rig.finish(returned, FetchEnd::Returned);
    assert_eq!(rig.ledger.state(key), Some(OfferState::Open));
    rig.finish(first, FetchEnd::Acknowledged);
    assert_eq!(rig.ledger.state(key), Some(OfferState::Taken));
    assert!(rig.fetch("a").is_none());
    rig.finish(second, FetchEnd::Acknowledged);
    assert_eq!((rig.wakes(), rig.ledger.counts().taken), (vec![Wake::Ended(key)], 1));
}

#[test]
fn an_id_offered_again_after_its_offer_has_ended_is_a_new_offer_that_old_tickets_do_not_take() {
    let mut rig = Rig::new();
    let old = rig.offered("a", 3);
    let ticket = rig.fetch("a").unwrap();
    rig.withdraw(old);
    let new = rig.offered("a", 4);
    assert_eq!(rig.bytes(), 7, "both payloads are in memory");
    rig.finish(ticket, FetchEnd::Acknowledged);
    assert_eq!(
        (rig.ledger.state(old), rig.ledger.state(new)),
        (Some(OfferState::Withdrawn), Some(OfferState::Open))
    );
    assert_eq!((rig.released(), rig.bytes()), (vec![3], 4));
}

#[test]
fn an_id_on_offer_keeps_its_first_payload_and_deadline_when_it_is_offered_again() {
    let mut rig = Rig::new();
    let key = rig.offered("a", 3);
    let due = rig.ledger.due();
    rig.now += Duration::from_secs(1);
    // A caller in line learns it, too, and leaves the line.
    rig.offered("b", 7);
    let place = rig.in_line("c", 5);
    assert_eq!(rig.offer_from("a", 5, Some(place)), Ok(Added::Same(key)));
    assert_eq!((rig.released(), rig.ledger.counts().waiting, rig.ledger.due()), (vec![5], 0, due));
    rig.ledger.forget(key);
    rig.take("a");
    assert_eq!((rig.wakes(), rig.ledger.state(key)), (vec![Wake::Ended(key)], Some(OfferState::Taken)));
}

#[test]
fn ids_that_were_taken_are_remembered_for_a_time_and_up_to_a_number() {
    let mut rig = Rig::new();
    let take = |rig: &mut Rig, id| {
        let key = rig.offered(id, 1);
        rig.take(id);
        rig.ledger.forget(key);
    };
    take(&mut rig, "a");
    assert_eq!(rig.offer("a", 1), Ok(Added::Taken));
    rig.now += REMEMBERED;
    assert!(matches!(rig.ledger.fetch(rig.now, "a"), Fetched::Taken), "fetchers are told for longer");
    take(&mut rig, "a");
    take(&mut rig, "b");
    take(&mut rig, "c");
    assert_eq!(rig.offer("b", 1), Ok(Added::Taken));
    assert!(matches!(rig.ledger.fetch(rig.now, "b"), Fetched::Taken));
    assert!(matches!(rig.ledger.fetch(rig.now, "a"), Fetched::Unknown));
    assert!(matches!(rig.offer("a", 1), Ok(Added::New(_))));
}

#[test]
fn a_ledger_that_closes_ends_all_offers_and_wakes_all_callers() {
    let mut rig = Rig::new();
    let key = rig.offered("a", 8);
    let ticket = rig.fetch("a").unwrap();
    let places = [rig.in_line("b", 5), rig.in_line("c", 5)];
    rig.ledger.close();
    assert_eq!(rig.wakes(), [Wake::Ended(key), Wake::Turn(places[0]), Wake::Turn(places[1])]);
    for place in places {
        assert_eq!(rig.offer_from("b", 5, Some(place)), Err(NotOffered::Closed));
    }
    assert_eq!(rig.ledger.state(key), Some(OfferState::Closed));
    assert!(rig.fetch("a").is_none());
    assert_eq!((rig.released(), rig.bytes()), (vec![], 8));
    rig.finish(ticket, FetchEnd::Acknowledged);
    assert_eq!((rig.released(), rig.bytes()), (vec![8], 0));
    assert_eq!(rig.ledger.counts().waiting, 0);
}
