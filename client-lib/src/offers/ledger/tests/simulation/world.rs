//! The simulated pipeline: a pod that offers payloads, its fetchers, and the events that happen to
//! them.

mod checks;
mod faults;

use std::collections::{HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::super::{Added, FetchEnd, Fetched, LinePlace, NotOffered, OfferKey, OfferLedger, OfferState};
use super::fetcher::{Held, Payload, Stage, Work};
use super::model::Model;
use super::queue::{Delivery, Queue};
use super::{Checked, Plan, Tally, ensure};
use crate::reference::OfferId;

/// Events that have to happen often enough.
pub(super) const SEEN: [&str; 19] = [
    "offered",
    "offered again",
    "offered after it was taken",
    "full",
    "turns",
    "too many",
    "taken",
    "acknowledged late",
    "deadline",
    "withdrawn",
    "fetched by two",
    "unknown",
    "references given up",
    "duplicates dropped",
    "crashes",
    "deaths",
    "breaks",
    "acknowledged upstream",
    "processed again",
];

/// Phases with faults, each of which ends in peace.
const ROUNDS: usize = 4;

/// Steps until all is done once there are no more faults.
const PEACE: usize = 20_000;

/// Number of events that are kept for a failure report.
const MAX_EVENTS: usize = 200;

/// The largest payload.
const LARGEST: usize = 12;

#[derive(Debug)]
pub(super) struct World {
    plan: Plan,
    rng: fastrand::Rng,
    now: Instant,
    start: Instant,
    /// Messages that lead to payloads.
    upstream: Queue,
    /// References to payloads.
    references: Queue,
    next_message: u64,
    ledger: OfferLedger<Rc<Payload>>,
    model: Model,
    /// Tasks of the offering pod, each with a message.
    handlers: Vec<Handler>,
    fetchers: Vec<Option<Work>>,
    /// Payloads that the ledger has had and may still keep.
    payloads: Vec<Weak<Payload>>,
    processed: HashSet<OfferId>,
    is_peace: bool,
    step: usize,
    tally: Tally,
    events: VecDeque<String>,
}

/// Task that offers the payload of a message, sends its reference, and waits until it is taken.
#[derive(Debug)]
struct Handler {
    delivery: Delivery,
    stage: Offering,
    /// Whether the ledger has named the task as one to be woken.
    is_woken: bool,
}

#[derive(Debug)]
enum Offering {
    InLine(LinePlace, Rc<Payload>),
    OnOffer(OfferKey),
}

impl World {
    pub(super) fn new(plan: Plan, tally: Tally) -> Self {
        let now = Instant::now();
        Self {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed),
            now,
            start: now,
            upstream: Queue::new(plan.redelivery, Duration::ZERO),
            references: Queue::new(plan.redelivery, plan.window),
            next_message: 0,
            ledger: OfferLedger::new(plan.settings),
            model: Model::new(plan.settings),
            handlers: Vec::new(),
            fetchers: (0..plan.fetchers).map(|_| None).collect(),
            payloads: Vec::new(),
            processed: HashSet::new(),
            is_peace: false,
            step: 0,
            tally,
            events: VecDeque::new(),
        }
    }

    pub(super) fn end(self) -> Tally {
        self.tally
    }

    /// Returns the last events, one a line.
    pub(super) fn events(&self) -> String {
        self.events.iter().map(|event| format!("{event}\n")).collect()
    }

    fn log(&mut self, event: String) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(format!("{} {:?}: {event}", self.step, self.now - self.start));
    }

    pub(super) fn run(&mut self, steps: usize) -> Checked {
        for _ in 0..ROUNDS {
            self.is_peace = false;
            for _ in 0..steps {
                self.step += 1;
                self.supply();
                if self.rng.u32(..1000) < self.plan.pace { self.fault()? } else { self.event()? }
            }
            self.is_peace = true;
            self.finish()?;
        }
        Ok(())
    }

    /// Lets all messages be processed, without further faults.
    fn finish(&mut self) -> Checked {
        for _ in 0..PEACE {
            let is_idle = self.handlers.is_empty() && self.fetchers.iter().all(Option::is_none);
            // An offer without a task is left to its deadline.
            let left = self.upstream.len() + self.references.len() + self.ledger.counts().offers;
            if is_idle && left == 0 {
                return self.check_is_empty();
            }
            self.step += 1;
            self.event()?;
        }
        Err(format!("not done: {} upstream, {:?}, {:?}", self.upstream.len(), self.handlers, self.fetchers))
    }

    /// Sends new messages.
    fn supply(&mut self) {
        while self.upstream.len() < self.plan.messages {
            let length = self.rng.usize(0..=self.plan.settings.budget.min(LARGEST));
            let id = format!("{}/{length}", self.next_message).parse().unwrap();
            self.next_message += 1;
            self.upstream.publish(self.now, id);
        }
    }

    /// Lets a random event happen, if it can.
    fn event(&mut self) -> Checked {
        match self.rng.u32(..100) {
            0..15 => self.receive(),
            15..30 => self.go_on(|handler| handler.is_woken),
            // A task may be woken for another reason.
            30..32 => self.go_on(|handler| matches!(handler.stage, Offering::InLine(..))),
            32..45 => self.start_work(),
            45..92 => self.work(),
            _ => self.wait(),
        }
    }

    /// Lets the offering pod receive a message.
    fn receive(&mut self) -> Checked {
        let Some(delivery) = self.upstream.deliver(self.now, &mut self.rng) else { return Ok(()) };
        // Without faults, tasks tell the queue in time that they are still at work.
        if self.is_peace && self.handlers.iter().any(|handler| handler.delivery.id == delivery.id) {
            return Ok(());
        }
        let length = length_of(&delivery.id);
        let payload = Rc::new(Payload { id: delivery.id.clone(), length });
        self.offer(delivery, payload, None)
    }

    /// Lets a task of the offering pod go on.
    fn go_on(&mut self, fits: impl Fn(&Handler) -> bool) -> Checked {
        let fitting: Vec<usize> = (0..self.handlers.len()).filter(|&at| fits(&self.handlers[at])).collect();
        let Some(at) = self.rng.choice(fitting) else { return Ok(()) };
        let Handler { delivery, stage, .. } = self.handlers.swap_remove(at);
        match stage {
            Offering::InLine(place, payload) => self.offer(delivery, payload, Some(place)),
            Offering::OnOffer(key) => self.ended(&delivery, key),
        }
    }

    fn offer(&mut self, delivery: Delivery, payload: Rc<Payload>, place: Option<LinePlace>) -> Checked {
        self.model.advance(self.now);
        let (id, length, kept) = (delivery.id.clone(), payload.length, Rc::downgrade(&payload));
        let known = self.model.open.get(&id).map(|&(key, _)| key);
        let is_remembered = self.model.is_remembered(&id);
        let deadline = self.now + self.plan.deadline;
        let offered = self.ledger.offer(self.now, &id, (payload, length), deadline, place);
        self.log(format!("{id} from {place:?}: {offered:?}"));
        if offered.is_ok() {
            self.payloads.push(kept);
        }
        let in_line = match offered {
            Ok(Added::New(key)) => {
                ensure!(known.is_none() && !is_remembered, "{id} is no new one");
                let first = self.model.line.front().map(|&(first, _)| first);
                ensure!(first == place, "{place:?} comes before {first:?}");
                self.model.open.insert(id, (key, deadline));
                self.tally.count("offered");
                self.refer(delivery, key);
                None
            }
            Ok(Added::Same(key)) => {
                ensure!(known == Some(key), "{id} is on offer as {known:?}, not {key:?}");
                self.tally.count("offered again");
                self.refer(delivery, key);
                None
            }
            Ok(Added::Taken) => {
                ensure!(is_remembered, "{id} was not taken lately");
                self.tally.count("offered after it was taken");
                self.acknowledge(&delivery)?;
                None
            }
            Err((payload, NotOffered::Full(own))) => {
                ensure!(known.is_none() && !is_remembered, "{id} needs no room");
                ensure!(place.is_none_or(|place| place == own), "{place:?} becomes {own:?}");
                if place.is_none() {
                    self.model.line.push_back((own, length));
                }
                let is_first = self.model.line.front().is_some_and(|&(first, _)| first == own);
                ensure!(!is_first || length > self.room(), "{own:?} has room");
                self.tally.count("full");
                let stage = Offering::InLine(own, payload);
                self.handlers.push(Handler { delivery, stage, is_woken: false });
                Some(own)
            }
            // The queue delivers the message again.
            Err((_, NotOffered::TooMany)) => {
                let all = self.ledger.offers.len() + self.model.line.len();
                ensure!(place.is_none() && all >= self.plan.settings.max_offers, "{all} are too many");
                self.tally.count("too many");
                None
            }
            Err((_, refused)) => return Err(format!("{refused:?}")),
        };
        if let Some(place) = place.filter(|_| in_line.is_none()) {
            self.model.leave(place);
        }
        self.settle()
    }

    /// Sends the reference to a payload on offer, and begins to wait for its end.
    fn refer(&mut self, delivery: Delivery, key: OfferKey) {
        if !self.references.publish(self.now, delivery.id.clone()) {
            self.tally.count("duplicates dropped");
        }
        self.handlers.push(Handler { delivery, stage: Offering::OnOffer(key), is_woken: false });
    }

    /// Lets a task of the offering pod act on the end of its offer.
    fn ended(&mut self, delivery: &Delivery, key: OfferKey) -> Checked {
        let state = self.ledger.state(key);
        ensure!(state == Some(self.model.state(key)), "{key:?} is {state:?}");
        match self.model.state(key) {
            OfferState::Taken => self.acknowledge(delivery)?,
            OfferState::Deadline | OfferState::Withdrawn => self.upstream.give_back(self.now, delivery),
            state => return Err(format!("{key:?} has not ended: {state:?}")),
        }
        self.log(format!("{} as {key:?} has ended: {state:?}", delivery.id));
        self.ledger.forget(key);
        self.settle()
    }

    /// Acknowledges a message whose payload was taken.
    fn acknowledge(&mut self, delivery: &Delivery) -> Checked {
        ensure!(self.processed.contains(&delivery.id), "{} is lost", delivery.id);
        if self.upstream.acknowledge(delivery) {
            self.tally.count("acknowledged upstream");
        }
        Ok(())
    }

    /// Lets an idle fetcher receive a reference.
    fn start_work(&mut self) -> Checked {
        let Some(idle) = self.fetchers.iter().position(Option::is_none) else { return Ok(()) };
        let Some(delivery) = self.references.deliver(self.now, &mut self.rng) else { return Ok(()) };
        let is_known = self.fetchers.iter().flatten().any(|work| work.delivery.id == delivery.id);
        if !self.is_peace || !is_known {
            self.fetchers[idle] = Some(Work::new(self.now, delivery));
        }
        Ok(())
    }

    /// Lets a fetcher go on with its work; without faults, as far as it can.
    fn work(&mut self) -> Checked {
        let at = self.rng.usize(..self.fetchers.len());
        self.work_on(at)?;
        while self.is_peace && self.fetchers[at].as_ref().is_some_and(|work| work.stage != Stage::Asking) {
            self.work_on(at)?;
        }
        Ok(())
    }

    fn work_on(&mut self, at: usize) -> Checked {
        let Some(mut work) = self.fetchers[at].take() else { return Ok(()) };
        if work.stage != Stage::Asking {
            self.log(format!("fetcher {at}: {work:?}"));
        }
        match work.stage {
            Stage::Asking => return self.ask(at, work),
            Stage::Reading => work.stage = Stage::Ready,
            Stage::Ready => {
                if !self.processed.insert(work.delivery.id.clone()) {
                    self.tally.count("processed again");
                }
                work.stage = Stage::Processed;
            }
            Stage::Processed => {
                self.references.acknowledge(&work.delivery);
                return self.finish_fetch(work.held, FetchEnd::Acknowledged);
            }
        }
        self.fetchers[at] = Some(work);
        Ok(())
    }

    fn ask(&mut self, at: usize, mut work: Work) -> Checked {
        self.model.advance(self.now);
        let id = &work.delivery.id;
        let known = self.model.open.get(id).map(|&(key, _)| key);
        match (self.ledger.fetch(self.now, id.as_str()), known) {
            (Fetched::Here(ticket, payload), Some(key)) => {
                ensure!(payload.id == *id, "{} instead of {id}", payload.id);
                if self.held().any(|held| held.key == key) {
                    self.tally.count("fetched by two");
                }
                self.log(format!("fetcher {at} fetches {} as {key:?}", work.delivery.id));
                work.held = Some(Held { ticket, key, payload: Rc::downgrade(&payload) });
                work.stage = Stage::Reading;
            }
            (Fetched::Taken | Fetched::Unknown, None) => {
                self.tally.count("unknown");
                if self.now - work.since >= self.plan.patience() {
                    self.tally.count("references given up");
                    self.log(format!("fetcher {at} gives up {}", work.delivery.id));
                    self.references.acknowledge(&work.delivery);
                    return self.settle();
                }
            }
            (found, known) => return Err(format!("{id} is on offer as {known:?}, found: {found:?}")),
        }
        self.fetchers[at] = Some(work);
        self.settle()
    }

    /// Gives back the ticket of a fetch, if its connection still exists.
    fn finish_fetch(&mut self, held: Option<Held>, outcome: FetchEnd) -> Checked {
        let Some(Held { ticket, key, payload }) = held else { return Ok(()) };
        self.model.advance(self.now);
        let payload = payload.upgrade().ok_or_else(|| format!("{key:?} was freed while it was fetched"))?;
        if outcome == FetchEnd::Acknowledged {
            let is_taken = self.model.acknowledge(self.now, &payload.id, key);
            self.tally.count(if is_taken { "taken" } else { "acknowledged late" });
        }
        drop(payload);
        self.ledger.finished(self.now, ticket, outcome);
        self.settle()
    }

    /// Lets time pass, often until something is due.
    fn wait(&mut self) -> Checked {
        let queues = self.upstream.due().into_iter().chain(self.references.due());
        let given_up = self.fetchers.iter().flatten().map(|work| work.since + self.plan.patience());
        let due = queues.chain(self.ledger.due()).chain(given_up).filter(|&due| due > self.now).min();
        self.now = match (self.rng.u32(..100), due) {
            (0..60, Some(due)) => due,
            (60..70, _) => self.now + Duration::from_secs(self.rng.u64(..100)),
            _ => self.now + Duration::from_millis(self.rng.u64(..1000)),
        };
        // The caller may be late.
        if self.is_peace || self.rng.u8(..4) > 0 { self.tick() } else { Ok(()) }
    }

    fn tick(&mut self) -> Checked {
        let before = self.model.ended.len();
        self.model.advance(self.now);
        (before..self.model.ended.len()).for_each(|_| self.tally.count("deadline"));
        self.ledger.tick(self.now);
        let due = self.ledger.due();
        ensure!(due.is_none_or(|due| due > self.now), "still due: {:?}", self.ledger);
        self.settle()
    }
}

/// Returns the length of the payload with this id.
fn length_of(id: &OfferId) -> usize {
    id.as_str().split_once('/').and_then(|(_, length)| length.parse().ok()).unwrap_or_default()
}
