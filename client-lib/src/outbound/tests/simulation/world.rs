//! The simulated world: senders, receivers, connections, and the events that happen to them.

mod connections;
mod faults;
mod peace;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::network::{Connection, Sent, Side};
use super::plan::Plan;
use super::receiver::{Process, Verdict};
use super::sender::{Address, Sender};
use super::tally::Tally;
use super::{Checked, ensure};
use crate::handshake::{Delivery, RefusalCode, SessionId};
use crate::outbound::{Action, DownReason, LinkId, PeerId};

/// Number of events that are kept for a failure report.
const MAX_EVENTS: usize = 200;

/// The largest payload that is sent. Some receivers accept only half of it.
const LARGEST: usize = 8;

/// Number of attempts to find an event that can happen.
const TRIES: usize = 10;

/// Steps between two checks of the internals.
const INSIDE_EVERY: usize = 8;

#[derive(Debug)]
pub(super) struct World {
    plan: Plan,
    rng: fastrand::Rng,
    now: Instant,
    start: Instant,
    senders: Vec<Sender>,
    /// Processes, including those that have ended.
    processes: Vec<Process>,
    /// The running process of each target.
    running: Vec<Option<usize>>,
    connections: Vec<Connection>,
    next_connection: u64,
    next_session: u128,
    next_uid: u32,
    is_peace: bool,
    /// Number of events so far, to see whether anything still happens.
    moves: usize,
    step: usize,
    tally: Tally,
    logs: bool,
    events: VecDeque<String>,
}

macro_rules! log_event {
    ($world:expr, $($message:tt)+) => {
        if $world.logs {
            $world.log(format!($($message)+));
        }
    };
}
use log_event;

impl World {
    pub(super) fn new(plan: Plan, logs: bool) -> Self {
        let start = Instant::now();
        let mut world = Self {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed ^ 0x5eed),
            now: start,
            start,
            senders: Vec::new(),
            processes: Vec::new(),
            running: vec![None; plan.targets],
            connections: Vec::new(),
            next_connection: 0,
            next_session: 0,
            next_uid: 0,
            is_peace: false,
            moves: 0,
            step: 0,
            tally: Tally::default(),
            logs,
            events: VecDeque::new(),
        };
        for target in 0..plan.targets {
            world.next_uid += 1;
            // Every third pod has no known uid.
            let uid = (target % 3 != 2).then_some(world.next_uid);
            world.spawn(target, uid);
        }
        world.senders = (0..plan.senders).map(|_| world.sender()).collect();
        world
    }

    fn sender(&mut self) -> Sender {
        self.next_session += 1;
        Sender::new(SessionId(self.next_session), self.plan.settings)
    }

    /// Returns the number of steps, the counters, and the last events.
    pub(super) fn end(mut self) -> (usize, Tally, Vec<String>) {
        self.tally.add("steps", self.moves as u64);
        for counts in self.senders.iter().map(|sender| sender.outbound.statistics()) {
            self.tally.add("repeats", counts.repeats);
            self.tally.add("rejected", counts.rejected);
            self.tally.add("lost", counts.lost);
            self.tally.add("undeliverable", counts.undeliverable);
        }
        (self.step, self.tally, self.events.into())
    }

    fn log(&mut self, event: String) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(format!("{} {:?}: {event}", self.step, self.now - self.start));
    }

    pub(super) fn run(&mut self) -> Checked {
        for sender in 0..self.senders.len() {
            self.resolve(sender)?;
        }
        for _ in 0..self.plan.rounds {
            self.is_peace = false;
            for _ in 0..self.plan.steps {
                self.step += 1;
                self.step()?;
                if self.step.is_multiple_of(INSIDE_EVERY) {
                    self.senders.iter().try_for_each(Sender::check_inside)?;
                }
            }
            self.is_peace = true;
            self.heal()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Checked {
        if self.rng.u32(..1000) < self.plan.pace {
            return self.fault();
        }
        let before = self.moves;
        for _ in 0..TRIES {
            self.event()?;
            if self.moves > before {
                break;
            }
        }
        Ok(())
    }

    /// Lets a random event happen, if it can.
    fn event(&mut self) -> Checked {
        match self.rng.u32(..1000) {
            0..90 => self.a_few_times(Self::submit),
            90..270 => self.a_few_times(|world| world.on_any(Connection::is_writable, Self::write)),
            270..410 => self.a_few_times(|world| world.on_any(Connection::has_data_to_deliver, Self::arrive)),
            410..500 => self.a_few_times(Self::take),
            500..610 => self.a_few_times(Self::decide),
            610..710 => {
                self.a_few_times(|world| world.on_any(Connection::may_send_control, Self::send_control))
            }
            710..800 => self
                .a_few_times(|world| world.on_any(Connection::has_control_to_deliver, Self::receive_control)),
            800..860 => self.on_any(|it| it.at_sender == Side::Pending, Self::dial),
            860..890 => self.on_any(Connection::has_ended_for_sender, Self::down),
            890..900 => self.on_any(Connection::has_ended_for_receiver, Self::end_at_receiver),
            900..935 => self.wait(),
            935..965 => self.on_any(|it| it.is_data_stuck || it.is_control_stuck, Self::go_on),
            965..985 => self.recover(),
            _ => {
                let sender = self.rng.usize(..self.senders.len());
                self.act(sender)
            }
        }
    }

    /// Does something once or a few times.
    fn a_few_times(&mut self, what: impl Fn(&mut Self) -> Checked) -> Checked {
        for _ in 0..self.rng.u8(1..=6) {
            let before = self.moves;
            what(self)?;
            if self.moves == before {
                break;
            }
        }
        Ok(())
    }

    /// Does something to one of the connections that fit.
    fn on_any(
        &mut self,
        fits: impl Fn(&Connection) -> bool,
        what: impl Fn(&mut Self, usize) -> Checked,
    ) -> Checked {
        let count = self.connections.len();
        if count == 0 {
            return Ok(());
        }
        let first = self.rng.usize(..count);
        match (first..first + count).map(|at| at % count).find(|&at| fits(&self.connections[at])) {
            Some(at) => what(self, at),
            None => Ok(()),
        }
    }

    /// Lets time pass, mostly until something is due.
    fn wait(&mut self) -> Checked {
        let due = self.senders.iter().filter_map(|sender| sender.outbound.due()).min();
        let pause = match self.rng.u32(..100) {
            0..20 => Duration::from_millis(self.rng.u64(..20)),
            20..90 => due.map_or(Duration::ZERO, |due| due.saturating_duration_since(self.now)),
            90..99 => Duration::from_millis(self.rng.u64(..2_000)),
            _ => Duration::from_millis(self.rng.u64(..40_000)),
        };
        self.advance(pause)
    }

    fn advance(&mut self, pause: Duration) -> Checked {
        self.moves += 1;
        self.now += pause;
        log_event!(self, "{pause:?} pass");
        for sender in 0..self.senders.len() {
            if self.senders[sender].outbound.due().is_some_and(|due| due <= self.now) {
                self.act(sender)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> Checked {
        let at = self.rng.usize(..self.senders.len());
        let key = self.rng.u64(..self.plan.keys);
        let length = self.rng.usize(1..=LARGEST);
        let is_named = self.plan.faults.named && self.rng.u8(..5) == 0;
        let mut known: Vec<PeerId> = Vec::new();
        if is_named {
            known.extend(self.senders[at].names.keys());
            known.sort();
        }
        let to = self.rng.choice(known);
        self.submit_one(at, (key, length), to)
    }

    fn submit_one(&mut self, at: usize, (key, length): (u64, usize), to: Option<PeerId>) -> Checked {
        let outcome = self.senders[at].submit((key, length), to)?;
        log_event!(self, "sender {at} submits key {key} to {to:?}: {outcome:?}");
        self.tally.count(if outcome.is_ok() { "submitted" } else { "refused" });
        if let Ok(link) = outcome {
            self.moves += 1;
            self.let_write(at, link);
            self.check_and_act(at)?;
        }
        Ok(())
    }

    fn let_write(&mut self, sender: usize, link: LinkId) {
        let session = self.senders[sender].session;
        let mut all = self.connections.iter_mut();
        if let Some(connection) = all.find(|it| it.session == session && it.link == link) {
            connection.may_write = true;
        }
    }

    fn write(&mut self, at: usize) -> Checked {
        self.moves += 1;
        let is_slow = self.plan.faults.delays && !self.is_peace && self.rng.u8(..8) == 0;
        let Self { senders, connections, .. } = self;
        let connection = &mut connections[at];
        senders[connection.sender].write(connection)?;
        connection.is_data_stuck |= is_slow;
        log_event!(self, "written {:?}", self.connections[at]);
        self.senders[self.connections[at].sender].check()
    }

    fn arrive(&mut self, at: usize) -> Checked {
        self.moves += 1;
        let Self { processes, connections, plan, .. } = self;
        let connection = &mut connections[at];
        let process = &mut processes[connection.process];
        if !process.sessions.is_latest(&connection.session, connection.lane, connection.link.epoch) {
            self.tally.count("stale data");
            return self.end_at_receiver(at);
        }
        let (Some(sent), Some(memory)) = (connection.data.pop_front(), connection.memory.clone()) else {
            return Err("no message has arrived".into());
        };
        let message = match sent {
            Sent::Frame(message) => message,
            Sent::Limited(limit) => {
                ensure!(connection.limit == Some((limit, true)), "{limit} is no limit of {connection:?}");
                (connection.room, connection.limit) = (limit, None);
                self.tally.count("limited");
                return Ok(());
            }
        };
        let is_new = process.arrived(plan, connection, &memory, message)?;
        self.tally.count(if is_new { "delivered" } else { "dropped" });
        let (sender, session) = (connection.sender, connection.session);
        log_event!(self, "arrived (delivered: {is_new}) {message:?} at {:?}", self.connections[at]);
        if is_new && self.senders[sender].session == session {
            let delivery = self.plan.settings.delivery;
            let record = self.senders[sender].record(message.sequence);
            record.delivered += 1;
            let is_once = delivery == Delivery::AtLeastOnce || record.delivered == 1;
            ensure!(is_once, "{} is delivered again: {record:?}", message.sequence);
        }
        Ok(())
    }

    /// Returns a running process that fits.
    fn process(&mut self, fits: impl Fn(&Process) -> bool) -> Option<usize> {
        let first = self.rng.usize(..self.running.len());
        let (before, after) = self.running.split_at(first);
        let mut all = after.iter().chain(before).filter_map(|&process| process);
        all.find(|&process| fits(&self.processes[process]))
    }

    fn take(&mut self) -> Checked {
        let process = self.process(|it| !it.is_stalled && !it.inbox.is_empty());
        process.map_or(Ok(()), |process| self.take_from(process))
    }

    fn take_from(&mut self, process: usize) -> Checked {
        self.moves += 1;
        let Some(held) = self.processes[process].take() else { return Ok(()) };
        let (connection, sender, session) = (held.connection, held.sender, held.session);
        log_event!(self, "taken from {process}: {held:?}");
        if self.senders[sender].session == session {
            self.senders[sender].taken += 1;
        }
        if let Some(connection) = self.connections.iter_mut().find(|it| it.id == connection) {
            connection.taken += 1;
            connection.has_control_to_send = true;
        }
        Ok(())
    }

    fn decide(&mut self) -> Checked {
        let Some(process) = self.process(|it| !it.is_stalled && !it.held.is_empty()) else { return Ok(()) };
        let verdict = match self.rng.u8(..10) {
            0 | 1 if self.plan.faults.rejects => Verdict::Reject,
            2 => Verdict::Acknowledge,
            _ => Verdict::Done,
        };
        let held = self.rng.usize(..self.processes[process].held.len());
        self.decide_on(process, held, verdict)
    }

    fn decide_on(&mut self, process: usize, held: usize, verdict: Verdict) -> Checked {
        self.moves += 1;
        let Self { processes, connections, .. } = self;
        let is_kept = self.plan.settings.delivery == Delivery::AtLeastOnce;
        let (held, is_acked) = processes[process].decide(held, verdict, is_kept, connections);
        log_event!(self, "{verdict:?} at {process}: {held:?}");
        let sender = &mut self.senders[held.sender];
        if is_acked && sender.session == held.session {
            sender.record(held.sequence).is_acked = true;
        }
        Ok(())
    }

    fn send_control(&mut self, at: usize) -> Checked {
        self.moves += 1;
        self.connections[at].send_control();
        log_event!(self, "said {:?}", self.connections[at]);
        Ok(())
    }

    fn receive_control(&mut self, at: usize) -> Checked {
        self.moves += 1;
        let Self { senders, connections, now, .. } = self;
        let connection = &mut connections[at];
        let sender = connection.sender;
        if let Some(said) = connection.control.pop_front() {
            senders[sender].receive_control(*now, connection, said)?;
        }
        log_event!(self, "heard {:?}", self.connections[at]);
        self.check_and_act(sender)
    }

    /// Checks a sender, and carries out its actions now or later, as the real caller does.
    fn check_and_act(&mut self, sender: usize) -> Checked {
        self.senders[sender].check()?;
        if self.is_peace || self.rng.u8(..4) > 0 { self.act(sender) } else { Ok(()) }
    }

    fn act(&mut self, sender: usize) -> Checked {
        let session = self.senders[sender].session;
        for action in self.senders[sender].act(self.now)? {
            log_event!(self, "sender {sender}: {action:?}");
            let mut open =
                self.connections.iter_mut().filter(|it| it.session == session && it.at_sender != Side::Gone);
            match action {
                Action::Connect(link) => {
                    let is_there = open.any(|it| (it.link.peer, it.link.index) == (link.peer, link.index));
                    ensure!(!is_there, "{link:?} is there already");
                    self.connections.push(Connection::new(self.next_connection, sender, session, link));
                    self.next_connection += 1;
                }
                Action::Close(link) => {
                    if let Some(connection) = open.find(|it| it.link == link) {
                        ensure!(!connection.is_closing, "{link:?} is to be closed twice");
                        connection.is_closing = true;
                    }
                }
                Action::Write(link) => self.let_write(sender, link),
                Action::Resolve => {}
            }
        }
        self.senders[sender].check()
    }
}
