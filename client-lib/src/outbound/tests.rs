//! Tests of the sending state machine: single rules, and simulated worlds.

mod attempts;
mod choosing;
mod delivery;
mod draining;
mod hostile;
mod pauses;
mod simulation;

use std::time::{Duration, Instant};

use super::{Action, DownReason, LinkId, Outbound, Outgoing, PeerId, PeerInfo, Refused, SendSettings};
use crate::choose::Choice;
use crate::handshake::Delivery;

/// State machine with a clock, and a caller that collects its actions.
struct Rig {
    outbound: Outbound<u64>,
    now: Instant,
    actions: Vec<Action>,
}

impl Rig {
    fn new(delivery: Delivery, choice: Choice) -> Self {
        Self::with(SendSettings { delivery, choice, replay: 1000, connections: 1 })
    }

    fn at_least_once() -> Self {
        Self::new(Delivery::AtLeastOnce, Choice::RoundRobin)
    }

    fn with(settings: SendSettings) -> Self {
        Self { outbound: Outbound::new(settings, 1), now: Instant::now(), actions: Vec::new() }
    }

    /// Sets the endpoints: names, each with the uid after a `#` if it has one.
    fn endpoints(&mut self, names: &[&str]) -> Vec<PeerId> {
        let info = |name: &&str| {
            let (target, uid) =
                name.split_once('#').map_or((*name, None), |(target, uid)| (target, Some(uid)));
            PeerInfo { target: target.into(), uid: uid.map(Into::into), distance: 0 }
        };
        let ids = self.outbound.set_endpoints(self.now, names.iter().map(info).collect());
        self.act();
        ids
    }

    /// Collects all actions that are due.
    fn act(&mut self) {
        self.outbound.tick(self.now);
        self.actions.extend(std::iter::from_fn(|| self.outbound.next_action()));
        let due = self.outbound.due();
        assert!(due.is_none_or(|due| due > self.now), "still due: {:?}", self.outbound);
    }

    fn advance(&mut self, pause: Duration) {
        self.now += pause;
        self.act();
    }

    /// Takes the actions collected so far.
    fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Takes the connections to be made.
    fn connects(&mut self) -> Vec<LinkId> {
        let connect = |action| match action {
            Action::Connect(link) => Some(link),
            _ => None,
        };
        self.actions().into_iter().filter_map(connect).collect()
    }

    /// Takes the connections to be made again after a pause.
    fn retries(&mut self) -> Vec<LinkId> {
        self.actions();
        self.advance(Duration::from_secs(1));
        self.connects()
    }

    fn up(&mut self, link: LinkId, slots: u32) {
        self.outbound.on_up(self.now, link, slots, 100);
        self.act();
    }

    fn down(&mut self, link: LinkId) {
        self.outbound.on_down(self.now, link, DownReason::Broken);
        self.act();
    }

    fn refused(&mut self, link: LinkId) {
        self.outbound.on_down(self.now, link, DownReason::Refused);
        self.act();
    }

    /// Connects these peers, each with two slots.
    fn connected(&mut self, names: &[&str]) -> Vec<LinkId> {
        self.endpoints(names);
        let links = self.connects();
        links.iter().for_each(|&link| self.up(link, 2));
        links
    }

    fn send(&mut self) -> Result<LinkId, Refused> {
        self.send_as((1, 0), None)
    }

    fn send_some(&mut self, count: usize) {
        for _ in 0..count {
            self.send().unwrap();
        }
    }

    fn send_some_to(&mut self, count: usize, to: PeerId) {
        for _ in 0..count {
            self.send_as((1, 0), Some(to)).unwrap();
        }
    }

    fn send_as(&mut self, (length, key): (usize, u64), to: Option<PeerId>) -> Result<LinkId, Refused> {
        let next = self.outbound.ring.next();
        match self.outbound.submit(next, length, key, to) {
            Ok((sequence, link)) => {
                assert_eq!(sequence, next);
                Ok(link)
            }
            Err((back, refused)) => {
                assert_eq!(back, next, "the frame is given back");
                Err(refused)
            }
        }
    }

    /// Writes all frames of a connection. Returns their sequences, and whether each is a repeat.
    fn write(&mut self, link: LinkId) -> Vec<(u64, bool)> {
        let frames = std::iter::from_fn(|| self.outbound.take(link));
        let written = |frame: Outgoing<u64>| {
            assert_eq!(frame.frame, frame.sequence);
            (frame.sequence, frame.is_repeat)
        };
        let written: Vec<_> = frames.map(written).collect();
        self.outbound.on_written(link, written.len());
        written
    }

    /// Reports that the receiver has freed slots and acknowledges frames.
    fn ack(&mut self, link: LinkId, freed: u64, acked: &[u64]) {
        self.report(link, freed, acked, &[]);
    }

    fn report(&mut self, link: LinkId, freed: u64, acked: &[u64], rejected: &[u64]) {
        let (acked, rejected) = (acked.iter().copied(), rejected.iter().copied());
        self.outbound.on_control(self.now, link, (freed, freed), acked, rejected).unwrap();
        self.act();
    }

    /// Breaks a connection and makes it again.
    fn reconnect(&mut self, link: LinkId) -> LinkId {
        self.down(link);
        self.actions();
        self.advance(Duration::from_secs(10));
        let again =
            self.connects().into_iter().find(|again| again.peer == link.peer && again.index == link.index);
        let again = again.expect("it is made again");
        self.up(again, 2);
        again
    }
}
