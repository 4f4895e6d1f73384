//! Simulated senders: the state machine under test, with separate bookkeeping of its inputs and
//! outputs.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::network::{Connection, Control, Message, Packet, Sent};
use super::{Checked, ensure};
use crate::choose::Choice;
use crate::handshake::{Delivery, SessionId};
use crate::outbound::link::{Lane, State};
use crate::outbound::{Action, DownReason, LinkId, Outbound, PeerId, PeerInfo, Refused, SendSettings};
use crate::wire::WINDOW;

/// Endpoint of a pod, as DNS names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) target: usize,
    pub(super) uid: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Sender {
    pub(super) session: SessionId,
    pub(super) outbound: Outbound<Packet>,
    pub(super) settings: SendSettings,
    /// Endpoint of each peer.
    pub(super) names: HashMap<PeerId, Address>,
    /// Frames by sequence, from 1.
    pub(super) records: Vec<Record>,
    /// Number of this sender's frames that receivers' applications have taken.
    pub(super) taken: u64,
    next_number: u64,
    /// Number of inputs since the actions were last carried out.
    news: usize,
    /// Highest floor sent so far. No frame below may be sent any more.
    floor: u64,
    /// Connections that are up.
    up: HashSet<LinkId>,
    lost: u64,
    handed: u64,
    repeats: u64,
    acknowledged: u64,
    undeliverable: u64,
    broken: u64,
    /// Peer of each key's latest frame, and the peers that were connected then.
    choices: HashMap<u64, (PeerId, Vec<PeerId>)>,
}

/// Bookkeeping of one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    packet: Packet,
    to: Option<PeerId>,
    handed: u32,
    /// Number of times that a receiver's application got the frame.
    pub(super) delivered: u32,
    /// Whether a receiver's application has acknowledged the frame.
    pub(super) is_acked: bool,
    is_over: bool,
}

impl Sender {
    pub(super) fn new(session: SessionId, settings: SendSettings) -> Self {
        Self {
            session,
            outbound: Outbound::new(settings, session.0 as u64),
            settings,
            names: HashMap::new(),
            records: Vec::new(),
            taken: 0,
            next_number: 0,
            news: 0,
            floor: 0,
            up: HashSet::new(),
            lost: 0,
            handed: 0,
            repeats: 0,
            acknowledged: 0,
            undeliverable: 0,
            broken: 0,
            choices: HashMap::new(),
        }
    }

    fn is_kept(&self) -> bool {
        self.settings.delivery == Delivery::AtLeastOnce
    }

    pub(super) fn record(&mut self, sequence: u64) -> &mut Record {
        &mut self.records[sequence as usize - 1]
    }

    pub(super) fn endpoints(&mut self, now: Instant, addresses: &[Address]) -> Checked {
        let info = |address: &Address| PeerInfo {
            target: format!("pod-{}", address.target),
            uid: address.uid.map(|uid| uid.to_string()),
            distance: (address.target % 3) as u8,
        };
        self.news += 1;
        let ids = self.outbound.set_endpoints(now, addresses.iter().map(info).collect());
        ensure!(ids.len() == addresses.len(), "{} peers of {} addresses", ids.len(), addresses.len());
        for (id, &address) in ids.into_iter().zip(addresses) {
            let before = self.names.insert(id, address);
            ensure!(before.is_none_or(|before| before == address), "{id:?} has become another");
        }
        self.over()
    }

    /// Carries out what is due. Returns the actions for the caller.
    pub(super) fn act(&mut self, now: Instant) -> Result<Vec<Action>, String> {
        self.outbound.tick(now);
        self.news += 1;
        let actions: Vec<Action> = std::iter::from_fn(|| self.outbound.next_action()).collect();
        let links = self.outbound.peers.len() * usize::from(self.settings.connections);
        let most = std::mem::take(&mut self.news) * (2 * links + self.settings.replay + 1);
        ensure!(actions.len() <= most, "{} actions, where {most} are enough", actions.len());
        self.over()?;
        let due = self.outbound.due();
        ensure!(due.is_none_or(|due| due > now), "due again at once: {:?}", self.outbound);
        Ok(actions)
    }

    pub(super) fn submit(
        &mut self,
        (key, length): (u64, usize),
        to: Option<PeerId>,
    ) -> Result<Result<LinkId, Refused>, String> {
        let packet = Packet { number: self.next_number, key, length, is_named: to.is_some() };
        let (sequence, link) = match self.outbound.submit(packet, length, key, to) {
            Ok(done) => done,
            Err((back, refused)) => {
                ensure!(back.number == packet.number, "another frame was given back");
                return Ok(Err(refused));
            }
        };
        self.next_number += 1;
        self.records.push(Record { packet, to, handed: 0, delivered: 0, is_acked: false, is_over: false });
        ensure!(sequence == self.records.len() as u64, "sequence {sequence} of {}", self.records.len());
        ensure!(self.up.contains(&link), "{link:?} is not up");
        ensure!(to.is_none_or(|to| to == link.peer), "{link:?} instead of {to:?}");
        if self.settings.choice == Choice::ByKey && to.is_none() {
            self.check_key_stays(key, link.peer)?;
        }
        Ok(Ok(link))
    }

    /// Checks that a key moves to another peer only if its own is gone, or the other is new.
    fn check_key_stays(&mut self, key: u64, peer: PeerId) -> Checked {
        let connected: Vec<PeerId> = self.outbound.connected().map(|(peer, _)| peer).collect();
        let is_there = |peer| connected.contains(peer);
        if let Some((before, others)) = self.choices.get(&key) {
            let moved = *before != peer && is_there(before) && others.contains(&peer);
            ensure!(!moved, "key {key} has moved from {before:?} to {peer:?} without need");
        }
        self.choices.insert(key, (peer, connected));
        Ok(())
    }

    pub(super) fn up(&mut self, now: Instant, connection: &mut Connection, frame_size: usize) {
        self.news += 1;
        self.outbound.on_up(now, connection.link, connection.slots as u32, frame_size);
        if !connection.is_closing {
            self.up.insert(connection.link);
        }
    }

    pub(super) fn ending(&mut self, link: LinkId) {
        self.outbound.on_ending(link);
    }

    pub(super) fn down(&mut self, now: Instant, connection: &Connection, reason: DownReason) -> Checked {
        // A connection that is closed on purpose does not count as broken.
        let is_up = self.outbound.link(connection.link).is_some_and(Lane::is_up);
        self.broken += u64::from(self.up.remove(&connection.link) && is_up);
        self.news += 1;
        self.outbound.on_down(now, connection.link, reason);
        if !self.is_kept() {
            self.lost += connection.handed - connection.known_taken;
        }
        self.over()
    }

    /// Writes a frame, if one is queued.
    pub(super) fn write(&mut self, connection: &mut Connection) -> Checked {
        if let Some(limit) = self.outbound.take_limit_answer(connection.link) {
            connection.send(Sent::Limited(limit));
            self.outbound.on_written(connection.link, 1);
            return Ok(());
        }
        let Some(outgoing) = self.outbound.take(connection.link) else {
            connection.may_write = false;
            let has_work = self.outbound.has_work(connection.link);
            ensure!(!has_work, "it has work, but no frame to take");
            return Ok(());
        };
        let (sequence, floor) = (outgoing.sequence, outgoing.floor);
        ensure!(floor <= sequence && sequence - floor < WINDOW, "{sequence} with floor {floor}");
        ensure!(sequence >= self.floor, "{sequence}, below {}", self.floor);
        if self.is_kept() {
            self.floor = self.floor.max(floor);
        }
        self.handed += 1;
        self.repeats += u64::from(outgoing.is_repeat);
        let record = self.record(sequence);
        ensure!(record.packet.number == outgoing.frame.number, "another frame as {sequence}");
        ensure!(
            (record.handed > 0) == outgoing.is_repeat,
            "{sequence} was handed over {} times",
            record.handed
        );
        ensure!(record.to.is_none_or(|to| to == connection.link.peer), "to another than was named");
        record.handed += 1;
        let message = Message { sequence, floor, is_repeat: outgoing.is_repeat, packet: outgoing.frame };
        connection.write(message);
        self.outbound.on_written(connection.link, 1);
        let under_way = connection.handed - connection.known_freed;
        ensure!(under_way <= connection.slots, "{under_way} frames for {} slots", connection.slots);
        Ok(())
    }

    pub(super) fn receive_control(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        said: Control,
    ) -> Checked {
        let Control { freed, taken, acked, rejected, limit } = said;
        let had: Vec<u64> = acked.iter().copied().filter(|&sequence| self.outbound.holds(sequence)).collect();
        self.news += 1;
        let control = self.outbound.on_control(
            now,
            connection.link,
            (freed, taken),
            acked.into_iter(),
            rejected.into_iter(),
        );
        ensure!(control.is_ok(), "{control:?}");
        (connection.known_freed, connection.known_taken) = (freed, taken);
        if let Some(limit) = limit {
            self.outbound.on_limit(connection.link, limit);
            (connection.slots, connection.may_write) = (limit.into(), true);
        }
        for sequence in had {
            // The receiver may report it twice.
            if !self.outbound.holds(sequence) && !std::mem::replace(&mut self.record(sequence).is_over, true)
            {
                self.acknowledged += 1;
            }
        }
        self.over()
    }

    /// Finds the frames that were given up, if their counter has grown.
    fn over(&mut self) -> Checked {
        let counted = self.outbound.statistics().undeliverable;
        if counted == self.undeliverable {
            return Ok(());
        }
        let is_kept = self.is_kept();
        for (sequence, record) in (1..).zip(&mut self.records) {
            let was_there = !record.is_over && (is_kept || record.handed == 0);
            if was_there && !self.outbound.holds(sequence) {
                let is_gone = record.to.is_some_and(|to| !self.outbound.knows(to));
                ensure!(is_gone, "{sequence} was given up: {record:?}");
                record.is_over = true;
                self.undeliverable += 1;
            }
        }
        ensure!(counted == self.undeliverable, "{counted} were given up, or {}", self.undeliverable);
        Ok(())
    }

    /// Checks all counters.
    pub(super) fn check(&self) -> Checked {
        let counts = self.outbound.statistics();
        let held = self.outbound.held() as u64;
        let submitted = self.records.len() as u64;
        ensure!(counts.frames == submitted, "{counts:?}, and {submitted} were");
        ensure!(counts.repeats == self.repeats, "{counts:?}, and {} were repeated", self.repeats);
        ensure!(counts.lost == self.lost, "{counts:?}, and {} were lost", self.lost);
        ensure!(counts.acknowledged == self.acknowledged, "{counts:?}, and {} were", self.acknowledged);
        ensure!(counts.disconnects == self.broken, "{counts:?}, and {} broke", self.broken);
        let done = if self.is_kept() { self.acknowledged } else { self.handed };
        let sum = done + held + self.undeliverable;
        ensure!(submitted == sum, "{submitted} were submitted, and {sum} accounted for");
        ensure!(held <= self.settings.replay as u64, "{held} frames are held");
        Ok(())
    }

    /// Checks the state machine's internals. Slow.
    pub(super) fn check_inside(&self) -> Checked {
        let Outbound { peers, ring, requeued, paused, .. } = &self.outbound;
        let mut given: HashMap<LinkId, u64> = HashMap::new();
        for link in peers.iter().flat_map(|peer| &peer.links) {
            let ledger = &link.ledger;
            // Frames that were taken before the limit sank are still in flight.
            let is_within = |count: u64| count <= ledger.slots || ledger.queue.is_empty();
            ensure!(is_within(ledger.outstanding()), "more than there are slots: {ledger:?}");
            ensure!(ledger.assigned == ledger.handed + ledger.queue.len() as u64, "{ledger:?}");
            ensure!(is_within(ledger.assigned - ledger.decided), "more than may wait: {ledger:?}");
            let is_empty = ledger.slots == 0 && ledger.assigned == 0 && ledger.frame_size == 0;
            let is_there = matches!(link.state, State::Up { .. } | State::Closing { .. });
            ensure!(is_there || is_empty, "{link:?} has something");
        }
        for sequence in ring.sequences(|_| true) {
            let Some(entry) = ring.get(sequence) else { return Err("a hole in the ring".into()) };
            let is_paused = entry.not_before.is_some_and(|until| paused.contains(&(until, sequence)));
            ensure!(is_paused == entry.not_before.is_some(), "{sequence} pauses, or not: {entry:?}");
            let waits = is_paused || requeued.contains(&sequence);
            ensure!(entry.link.is_none() == waits, "{sequence} waits, or not: {entry:?}");
            ensure!(!(is_paused && requeued.contains(&sequence)), "{sequence} pauses and goes on: {entry:?}");
            if let Some(on) = entry.link {
                *given.entry(on).or_default() += 1;
            }
        }
        for (on, count) in given {
            let Some(link) = self.outbound.link(on) else { return Err(format!("{on:?} is gone")) };
            let ledger = &link.ledger;
            let expected =
                if self.is_kept() { ledger.assigned - ledger.decided } else { ledger.queue.len() as u64 };
            ensure!(count == expected, "{count} frames are on {on:?}: {ledger:?}");
        }
        let mut waiting = requeued.iter().chain(paused.iter().map(|(_, sequence)| sequence));
        ensure!(waiting.all(|&sequence| ring.get(sequence).is_some()), "what has gone waits");
        ensure!(ring.next() - ring.floor() <= WINDOW, "the ring is long");
        Ok(())
    }

    /// Checks that each frame has arrived, and that none is left.
    pub(super) fn check_end(&self) -> Checked {
        ensure!(self.outbound.is_idle(), "{} frames are left", self.outbound.held());
        let end = self.records.len() as u64 + 1;
        let ring = &self.outbound.ring;
        ensure!((ring.floor(), ring.next()) == (end, end), "ring from {} to {}", ring.floor(), ring.next());
        let outstanding: u64 = self.outbound.connected().map(|(_, frames)| frames).sum();
        ensure!(outstanding == 0, "{outstanding} frames are under way");
        if self.is_kept() {
            let missing = (1..).zip(&self.records).find(|(_, record)| !record.is_over);
            ensure!(missing.is_none(), "{missing:?} never came");
            let missing =
                (1..).zip(&self.records).find(|(_, record)| record.to.is_none() && !record.is_acked);
            ensure!(missing.is_none(), "no receiver acknowledged {missing:?}");
        } else {
            ensure!(self.handed - self.lost <= self.taken, "{} taken of {}", self.taken, self.handed);
        }
        Ok(())
    }
}
