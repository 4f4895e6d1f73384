//! A sender's peers and frames: which peer gets a frame, what is kept until when, when a connection is made again.
//!
//! Pure: no sockets, and a clock that is passed. The shell ([`crate::peers`]) tells what has happened, and does what
//! [`next_action`](Outbound::next_action) says.
//!
//! ```text
//!   endpoints ─────> peers ── lanes ──> Link { state, books of credits }
//!   submit ── choose ──────────────────────┘ queue ── take ──> written ──> acknowledged
//!      │                                      │                   │ (at least once)
//!      └──> Ring of frames that are kept <────┴──── lost: given to another, as a repeat
//! ```
//!
//! - At most once: a frame is let go of when it is handed over to be written, and only its sequence is remembered until it is. If its
//!   connection breaks before it is handed over, another gets it; after that it is never sent again, and counts as lost unless the
//!   receiver has said that its code took it.
//! - At least once: a frame is kept until a receiver has acknowledged it. One that the receiver's code did not want is sent again after a
//!   pause, which grows.

mod drain;
mod given_up;
mod key_placement;
mod ledger;
mod link;
mod pause;
mod peer;
mod ring;
mod route;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use given_up::GivenUp;
use ledger::CreditLedger;
pub(crate) use ledger::InvalidReport;
pub(crate) use link::DownReason;
use link::{Link, State};
pub(crate) use peer::PeerInfo;
use peer::{Peer, PeerKey};
use ring::{Entry, Ring};
use route::Requirements;

use crate::choose::Choice;
use crate::handshake::Delivery;

/// How long a peer that DNS no longer names may take to finish what it has.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// So many frames under way are a stream.
const MIN_STREAM: u64 = 8;

/// So many frames that are to be written are worth a system call.
const MIN_BATCH: usize = 16;

/// What the caller has chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) delivery: Delivery,
    pub(crate) choice: Choice,
    /// How many frames may wait for their acknowledgement.
    pub(crate) replay: usize,
    /// How many connections each peer gets.
    pub(crate) connections: u16,
}

impl Settings {
    /// How many frames a connection gets at most, whatever room its receiver claims to have: no peer may hold all that may be held.
    pub(crate) fn max_per_connection(&self) -> u64 {
        (self.replay / 2 / usize::from(self.connections.max(1))).max(1) as u64
    }
}

/// A peer, as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerId(pub(crate) u64);

/// A connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId {
    pub(crate) peer: PeerId,
    pub(crate) index: u16,
    /// Tells it from those before it.
    pub(crate) epoch: u64,
}

/// What the shell has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make this connection; say whether it is [`up`](Outbound::up) or [`down`](Outbound::down).
    Connect(LinkId),
    /// End it; say that it is [`down`](Outbound::down).
    Close(LinkId),
    /// Ask DNS again: a peer has been lost, or cannot be reached.
    Resolve,
    /// Frames have been given to this connection that another had; write them.
    Write(LinkId),
}

/// A frame that cannot be given to anybody now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No peer is connected.
    NoPeer,
    /// Every peer that may have it has as many frames as it has slots, or as many frames wait for their acknowledgement as may.
    Full,
    /// The largest payload that any connected peer takes is less.
    TooLarge { most: usize },
    /// The one peer that may have it has gone for good, or is about to.
    Gone,
    /// No receiver has decided on this frame, and of so many that have been submitted since then receivers could not tell more from it.
    Undecided { sequence: u64 },
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) submitted: u64,
    pub(crate) bytes: u64,
    pub(crate) acknowledged: u64,
    pub(crate) repeats: u64,
    pub(crate) rejected: u64,
    pub(crate) lost: u64,
    pub(crate) reconnects: u64,
    /// Frames for one peer only that has gone.
    pub(crate) undeliverable: u64,
}

/// A frame that is to be written now.
#[derive(Debug)]
pub(crate) struct Outgoing<F> {
    pub(crate) sequence: u64,
    pub(crate) floor: u64,
    pub(crate) is_repeat: bool,
    pub(crate) frame: F,
}

/// The state machine. `F` is a frame, of which it only knows the length and the key.
#[derive(Debug)]
pub(crate) struct Outbound<F> {
    settings: Settings,
    /// In the order of their ids.
    peers: Vec<Peer>,
    ring: Ring<F>,
    /// Sequences that have been given to a peer and need another, now.
    requeued: BTreeSet<u64>,
    /// Those that are not to be sent before that, as a receiver's code did not want them.
    paused: BTreeSet<(Instant, u64)>,
    given_up: GivenUp,
    /// Some connection may have a limit to answer.
    owes_limit_answers: bool,
    /// What it has let go of.
    released: Vec<F>,
    actions: VecDeque<Action>,
    next_peer: u64,
    next_epoch: u64,
    round_robin: usize,
    rng: fastrand::Rng,
    counts: Counts,
}

impl<F: Clone> Outbound<F> {
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            peers: Vec::new(),
            ring: Ring::default(),
            requeued: BTreeSet::new(),
            paused: BTreeSet::new(),
            given_up: GivenUp::default(),
            owes_limit_answers: false,
            released: Vec::new(),
            actions: VecDeque::new(),
            next_peer: 0,
            next_epoch: 1,
            round_robin: 0,
            rng: fastrand::Rng::with_seed(seed),
            counts: Counts::default(),
        }
    }

    /// All endpoints that there are now. Gives each one's peer, in the same order.
    pub(crate) fn set_endpoints(&mut self, now: Instant, infos: Vec<PeerInfo>) -> Vec<PeerId> {
        let mut places = self.peers.iter().zip(0..).map(|(peer, place)| (peer.info.key(), place)).collect();
        let ids: Vec<PeerId> =
            infos.into_iter().map(|info| self.find_or_add_peer(now, info, &mut places)).collect();
        let there: HashSet<PeerId> = ids.iter().copied().collect();
        for peer in &mut self.peers {
            match (there.contains(&peer.id), peer.draining_until) {
                (true, _) => peer.stop_draining(now),
                (false, None) => peer.draining_until = Some(now + DRAIN_TIMEOUT),
                (false, Some(_)) => {}
            }
        }
        self.recall_moved();
        self.close_drained(now);
        self.reassign();
        ids
    }

    /// A connection has been made.
    pub(crate) fn on_up(&mut self, now: Instant, link: LinkId, slots: u32, frame_size: usize) {
        let slots = u64::from(slots).min(self.settings.max_per_connection());
        if let Some(at) = self.link_mut(link) {
            at.on_up(now, slots, frame_size);
            self.reclaim_keys(link);
            self.recall_moved();
            // What has been taken back is not waited for.
            self.reclaim_keys(link);
            self.return_keys(link.peer);
            self.reassign();
        }
    }

    /// A connection could not be made, or has ended. Its frames go to others, or are lost.
    pub(crate) fn on_down(&mut self, now: Instant, link: LinkId, reason: DownReason) {
        let jitter = self.rng.f64();
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let Some(at) = self.link_mut(link) else { return };
        let was_up = at.is_up();
        let CreditLedger { handed, taken, .. } = at.ledger;
        let unwritten = std::mem::take(&mut at.ledger.unwritten);
        at.on_down(now, reason, jitter);
        if !is_kept {
            self.counts.lost += handed - taken;
            unwritten.into_iter().flatten().for_each(|sequence| self.given_up.add(sequence));
        }
        self.counts.reconnects += u64::from(was_up);
        // The address may have a new owner, or none any more.
        self.actions.push_back(Action::Resolve);
        let orphans = self.ring.sequences(|entry| entry.link == Some(link));
        for &sequence in &orphans {
            if let Some(entry) = self.ring.get_mut(sequence) {
                entry.release();
            }
        }
        self.requeued.extend(orphans);
        self.return_keys(link.peer);
        self.recall_moved();
        self.close_drained(now);
        self.reassign();
    }

    /// A connection is about to end, though it may still tell what has become of its frames: it gets no new ones.
    pub(crate) fn on_ending(&mut self, link: LinkId) {
        if let Some(at) = self.link_mut(link) {
            at.ledger.is_ending = true;
        }
    }

    /// A receiver has said what has become of frames.
    pub(crate) fn on_control(
        &mut self,
        now: Instant,
        link: LinkId,
        (freed, taken): (u64, u64),
        acked: impl Iterator<Item = u64>,
        rejected: impl Iterator<Item = u64>,
    ) -> Result<(), InvalidReport> {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let Some(at) = self.link_mut(link) else { return Ok(()) };
        at.ledger.apply_report(freed, taken, is_kept)?;
        acked.for_each(|sequence| self.on_acknowledged(link, sequence));
        rejected.for_each(|sequence| self.on_rejected(now, link, sequence));
        self.return_keys(link.peer);
        self.close_drained(now);
        self.reassign();
        Ok(())
    }

    /// A receiver has room for so many frames on a connection from now on: what is too much goes to others, or waits.
    pub(crate) fn on_limit(&mut self, link: LinkId, limit: u32) {
        let slots = u64::from(limit).min(self.settings.max_per_connection());
        let Some(at) = self.link_mut(link).filter(|at| at.is_up()) else { return };
        at.ledger.limit_answer = Some(limit);
        let too_many = at.ledger.set_limit(slots);
        for sequence in too_many {
            self.withdraw(sequence, link);
            self.requeued.insert(sequence);
        }
        self.owes_limit_answers = true;
        self.reassign();
    }

    /// The limit that a connection keeps to from here on, if its receiver is to be told: before any further frame.
    pub(crate) fn take_limit_answer(&mut self, link: LinkId) -> Option<u32> {
        if !self.owes_limit_answers {
            return None;
        }
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let ledger = &mut self.link_mut(link).filter(|at| at.is_up())?.ledger;
        let answer = ledger.limit_answer.take();
        if answer.is_some() && !is_kept {
            ledger.unwritten.push_back(None);
        }
        let mut links = self.peers.iter().flat_map(|peer| &peer.links);
        self.owes_limit_answers = links.any(|link| link.ledger.limit_answer.is_some());
        answer
    }

    /// Lets go of a frame, also of one that waits for another peer by now.
    fn on_acknowledged(&mut self, link: LinkId, sequence: u64) {
        let Some(entry) = self.ring.get(sequence).filter(|entry| entry.is_known_to(link.peer)) else {
            return;
        };
        let (link, is_handed) = (entry.link, entry.is_handed);
        match link {
            Some(link) if is_handed => self.count_decided(link),
            Some(queued) => self.withdraw(sequence, queued),
            None => {}
        }
        self.remove_frame(sequence);
        self.counts.acknowledged += 1;
    }

    /// A receiver has acknowledged or rejected a frame that had been handed to this connection.
    fn count_decided(&mut self, link: LinkId) {
        if let Some(at) = self.link_mut(link) {
            at.ledger.decided += 1;
        }
    }

    /// Gives a frame to a peer, or back to the caller. The sequence and the connection that has it.
    pub(crate) fn submit(
        &mut self,
        frame: F,
        length: usize,
        key: u64,
        only: Option<PeerId>,
    ) -> Result<(u64, LinkId), (F, Refused)> {
        let wanted = Requirements { length, key, only, avoid: None };
        let link = match self.place_new(wanted) {
            Ok(link) => link,
            Err(refused) => return Err((frame, refused)),
        };
        let sequence = self.ring.push(Entry::new(frame, length, key, only));
        self.assign(sequence, link);
        self.counts.submitted += 1;
        self.counts.bytes += length as u64;
        Ok((sequence, link))
    }

    /// Whether a connection has frames to be written.
    pub(crate) fn has_work(&self, link: LinkId) -> bool {
        let has_some = |ledger: &CreditLedger| !ledger.queue.is_empty() || ledger.limit_answer.is_some();
        self.link(link).is_some_and(|at| at.is_up() && has_some(&at.ledger))
    }

    /// Whether a connection has many frames under way, and few that are to be written: who sends the next one is likely to send more.
    pub(crate) fn is_streaming(&self, link: LinkId) -> bool {
        self.link(link)
            .is_some_and(|at| at.ledger.outstanding() >= MIN_STREAM && at.ledger.queue.len() < MIN_BATCH)
    }

    /// The next frame to be written on a connection.
    pub(crate) fn take(&mut self, link: LinkId) -> Option<Outgoing<F>> {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        let ledger = &mut self.link_mut(link).filter(|at| at.is_up())?.ledger;
        let sequence = ledger.queue.pop_front()?;
        ledger.handed += 1;
        let (frame, is_repeat) = if is_kept {
            let entry = self.ring.get_mut(sequence)?;
            entry.is_handed = true;
            (entry.frame.clone(), entry.previous_peer.is_some())
        } else {
            let frame = self.ring.remove(sequence)?.frame;
            if let Some(at) = self.link_mut(link) {
                at.ledger.unwritten.push_back(Some(sequence));
            }
            (frame, false)
        };
        self.counts.repeats += u64::from(is_repeat);
        let floor = if is_kept { self.ring.floor() } else { sequence };
        Some(Outgoing { sequence, floor, is_repeat, frame })
    }

    /// Gives up a frame that a connection has been handed, and of which nothing has been written: it cannot be read.
    pub(crate) fn on_unreadable(&mut self, link: LinkId, sequence: u64) {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        // Acknowledged or rejected meanwhile, on an earlier connection of the same peer: it may be another's by now.
        let is_ours = |entry: &Entry<F>| entry.is_handed && entry.link == Some(link);
        let is_decided = is_kept && !self.ring.get(sequence).is_some_and(is_ours);
        // If the connection has broken, whoever gets the frame next gives it up.
        let Some(at) = self.link_mut(link) else { return };
        at.ledger.not_sent(sequence, is_decided);
        if !is_decided {
            self.give_up(sequence);
        }
        self.return_keys(link.peer);
        self.reassign();
    }

    /// Lets go of a frame that nobody will get.
    fn give_up(&mut self, sequence: u64) {
        self.remove_frame(sequence);
        self.given_up.add(sequence);
        self.counts.undeliverable += 1;
    }

    fn remove_frame(&mut self, sequence: u64) {
        self.requeued.remove(&sequence);
        if let Some(Entry { frame, not_before, .. }) = self.ring.remove(sequence) {
            not_before.map(|until| self.paused.remove(&(until, sequence)));
            self.released.push(frame);
        }
    }

    /// Frames that it has let go of, to be dropped by whoever has it: what belongs to them may run somebody's code.
    pub(crate) fn released(&mut self) -> &mut Vec<F> {
        &mut self.released
    }

    /// So many of the messages that a connection has been handed have been written, the first ones.
    pub(crate) fn on_written(&mut self, link: LinkId, count: usize) {
        if let Some(at) = self.link_mut(link) {
            let unwritten = &mut at.ledger.unwritten;
            unwritten.drain(..count.min(unwritten.len()));
        }
    }

    /// Does what it is time for.
    pub(crate) fn tick(&mut self, now: Instant) {
        for peer in self.peers.iter_mut().filter(|peer| peer.draining_until.is_none()) {
            for (index, link) in (0..).zip(&mut peer.links) {
                if matches!(link.state, State::Waiting { until } if until <= now) {
                    let epoch = self.next_epoch;
                    self.next_epoch += 1;
                    link.state = State::Connecting { epoch };
                    self.actions.push_back(Action::Connect(LinkId { peer: peer.id, index, epoch }));
                }
            }
        }
        self.resume(now);
        self.close_drained(now);
    }

    /// When the next [`tick`](Self::tick) is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let links =
            self.peers.iter().flat_map(|peer| peer.links.iter().map(|link| (link, peer.draining_until)));
        let paused = self.paused.first().map(|&(until, _)| until);
        links.filter_map(|(link, draining_until)| link.due(draining_until)).chain(paused).min()
    }

    /// Whether there is something to do.
    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn find_or_add_peer(
        &mut self,
        now: Instant,
        info: PeerInfo,
        places: &mut HashMap<PeerKey, usize>,
    ) -> PeerId {
        let place = *places.entry(info.key()).or_insert(self.peers.len());
        if let Some(peer) = self.peers.get_mut(place) {
            peer.info.distance = info.distance;
            return peer.id;
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let links = (0..self.settings.connections).map(|_| Link::new(now)).collect();
        self.peers.push(Peer::new(id, info, links));
        id
    }

    fn position(&self, peer: PeerId) -> Option<usize> {
        self.peers.binary_search_by_key(&peer, |peer| peer.id).ok()
    }

    fn peer_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        let at = self.position(id)?;
        self.peers.get_mut(at)
    }

    /// A connection has been made: its keys are to come back.
    fn reclaim_keys(&mut self, link: LinkId) {
        if let Some(peer) = self.peer_mut(link.peer) {
            peer.reclaim_keys(link.index.into());
        }
    }

    /// What a peer's connections had may have been taken, or taken back.
    fn return_keys(&mut self, id: PeerId) {
        if let Some(peer) = self.peer_mut(id) {
            peer.return_keys();
        }
    }

    /// A connection, unless another has taken its place.
    fn link(&self, id: LinkId) -> Option<&Link> {
        let peer = self.peers.get(self.position(id.peer)?)?;
        peer.links.get(usize::from(id.index)).filter(|link| link.is_in(id.epoch))
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let link = self.peer_mut(id.peer)?.links.get_mut(usize::from(id.index))?;
        link.is_in(id.epoch).then_some(link)
    }
}
