//! Sending state machine: chooses a peer for each frame, keeps frames until they are done, and
//! decides when to connect again.
//!
//! It is pure: it has no sockets, and the caller passes the clock. [`crate::peers`] reports events
//! to it and carries out each [`next_action`](Outbound::next_action).
//!
//! ```text
//!   endpoints ─────> peers ──> Lane { state, CreditLedger }
//!   submit ── choose ──────────────────┘ queue ── take ──> written ──> acknowledged
//!      │                                   │                  │ (at least once)
//!      └──> Ring of frames that are kept <─┴──── lost: given to another, as a repeat
//! ```
//!
//! - At most once: [`take`](Outbound::take) removes the frame from the ring, and only its sequence
//!   is remembered until it is written. A frame whose connection breaks before it is taken goes to
//!   another connection. Afterwards it is never sent again, and counts as lost unless the receiver
//!   has reported that its application took it.
//! - At least once: a frame stays in the ring until a receiver acknowledges it. A frame that the
//!   receiver's application rejects is sent again after a pause, which grows.

mod drain;
mod given_up;
mod key_placement;
mod ledger;
mod limit;
mod link;
mod pause;
mod peer;
mod ring;
mod route;
mod statistics;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use given_up::GivenUp;
use ledger::CreditLedger;
pub(crate) use ledger::InvalidReport;
pub(crate) use link::DownReason;
use link::{Lane, State};
pub(crate) use peer::PeerInfo;
use peer::{PeerKey, PeerState};
use ring::{Entry, Ring};
use route::Requirements;
pub use statistics::Statistics;

use crate::choose::Choice;
use crate::handshake::Delivery;

/// Time that a peer gets to finish its frames once DNS no longer names it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of frames in flight from which a connection counts as streaming.
const MIN_STREAM: u64 = 8;

/// Number of queued frames that are worth a system call of their own.
const MIN_BATCH: usize = 16;

/// Settings of the sending state machine, chosen by the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendSettings {
    pub(crate) delivery: Delivery,
    pub(crate) choice: Choice,
    /// The most frames that may wait for acknowledgement, over all peers.
    pub(crate) replay: usize,
    /// Number of connections to each peer.
    pub(crate) connections: u16,
}

impl SendSettings {
    /// Returns the most frames that one connection may have, whatever its receiver grants. A single
    /// peer must not fill the whole replay buffer.
    pub(crate) fn max_per_connection(&self) -> u64 {
        (self.replay / 2 / usize::from(self.connections.max(1))).max(1) as u64
    }
}

/// Identifies a peer for the lifetime of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerId(pub(crate) u64);

/// Identifies one connection to a peer: a later connection of the same index has another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId {
    pub(crate) peer: PeerId,
    /// Position among the connections to the peer, from 0.
    pub(crate) index: u16,
    /// Tells apart the connections that have had this index, one after the other.
    pub(crate) epoch: u64,
}

/// Action that the state machine asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make this connection, then call [`on_up`](Outbound::on_up) or
    /// [`on_down`](Outbound::on_down).
    Connect(LinkId),
    /// End this connection, then call [`on_down`](Outbound::on_down).
    Close(LinkId),
    /// Ask DNS again: a peer has been lost, or cannot be reached.
    Resolve,
    /// Write the frames that this connection has taken over from another one.
    Write(LinkId),
}

/// Reason why the state machine accepts no frame now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No peer is connected.
    NoPeer,
    /// The replay buffer is full, or every peer that may have the frame has used all its slots.
    Full,
    /// The payload is larger than any connected peer accepts.
    TooLarge { most: usize },
    /// The one peer that may have the frame is gone, or is draining.
    Gone,
    /// No receiver has decided on this frame, and [`WINDOW`](crate::wire::WINDOW) frames have been
    /// submitted since. Receivers could not tell further ones from repeats.
    Undecided { sequence: u64 },
}

/// Frame to be written now, with the fields of its header that the state machine knows.
#[derive(Debug)]
pub(crate) struct Outgoing<F> {
    pub(crate) sequence: u64,
    pub(crate) floor: u64,
    pub(crate) is_repeat: bool,
    pub(crate) frame: F,
}

/// The sending state machine. `F` is a frame, of which it knows only the length and the hash of the
/// key.
#[derive(Debug)]
pub(crate) struct Outbound<F> {
    settings: SendSettings,
    /// Peers, sorted by id: ids only grow.
    peers: Vec<PeerState>,
    ring: Ring<F>,
    /// Sequences of frames that have lost their connection and need another one now.
    requeued: BTreeSet<u64>,
    /// Sequences of frames that a receiver's application has rejected, with the time until which
    /// they pause.
    paused: BTreeSet<(Instant, u64)>,
    given_up: GivenUp,
    /// Whether a frame that its receiver rejects is given up, instead of being sent again.
    gives_up_rejected: bool,
    /// Whether some connection may owe its receiver the answer to a limit. Spares the search on
    /// every write.
    owes_limit_answers: bool,
    /// Frames that the state machine no longer needs, for the caller to drop.
    released: Vec<F>,
    actions: VecDeque<Action>,
    next_peer: u64,
    next_epoch: u64,
    round_robin: usize,
    rng: fastrand::Rng,
    /// Counts since the state machine was created; those of its present state are 0.
    counts: Statistics,
}

impl<F: Clone> Outbound<F> {
    pub(crate) fn new(settings: SendSettings, seed: u64) -> Self {
        Self {
            settings,
            peers: Vec::new(),
            ring: Ring::default(),
            requeued: BTreeSet::new(),
            paused: BTreeSet::new(),
            given_up: GivenUp::default(),
            gives_up_rejected: false,
            owes_limit_answers: false,
            released: Vec::new(),
            actions: VecDeque::new(),
            next_peer: 0,
            next_epoch: 1,
            round_robin: 0,
            rng: fastrand::Rng::with_seed(seed),
            counts: Statistics::default(),
        }
    }

    /// Gives up frames that their receiver rejects, instead of sending them again.
    pub(crate) fn give_up_rejected(mut self) -> Self {
        self.gives_up_rejected = true;
        self
    }

    /// Replaces the set of endpoints. Returns the peer of each, in the same order.
    ///
    /// Peers that are no longer in the set drain.
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

    /// Records that a connection is up.
    pub(crate) fn on_up(&mut self, now: Instant, link: LinkId, slots: u32, frame_size: usize) {
        let slots = u64::from(slots).min(self.settings.max_per_connection());
        if let Some(at) = self.link_mut(link) {
            at.on_up(now, slots, frame_size);
            self.reclaim_keys(link);
            self.recall_moved();
            // Take the watermarks again: frames that were just recalled are not waited for.
            self.reclaim_keys(link);
            self.return_keys(link.peer);
            self.reassign();
        }
    }

    /// Records that a connection has ended or could not be made. Its frames go to other
    /// connections, or are lost.
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
        self.counts.disconnects += u64::from(was_up);
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

    /// Stops new frames for a connection that is about to end. Its receiver may still report on
    /// earlier ones.
    pub(crate) fn on_ending(&mut self, link: LinkId) {
        if let Some(at) = self.link_mut(link) {
            at.ledger.is_ending = true;
        }
    }

    /// Applies a receiver's control message: freed slots, taken, acknowledged and rejected frames.
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

    /// Releases a frame that a receiver has acknowledged, even if it waits for another peer by now.
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
        self.given_up.acknowledge(sequence);
        self.counts.acknowledged += 1;
    }

    /// Notes that a receiver has acknowledged or rejected a frame of this connection.
    fn count_decided(&mut self, link: LinkId) {
        if let Some(at) = self.link_mut(link) {
            at.ledger.decided += 1;
        }
    }

    /// Assigns a frame to a connection and returns its sequence, or gives the frame back.
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
        self.counts.frames += 1;
        self.counts.bytes += length as u64;
        Ok((sequence, link))
    }

    /// Returns whether a connection has a frame or an answer to a limit to write.
    pub(crate) fn has_work(&self, link: LinkId) -> bool {
        let has_some = |ledger: &CreditLedger| !ledger.queue.is_empty() || ledger.limit_answer.is_some();
        self.link(link).is_some_and(|at| at.is_up() && has_some(&at.ledger))
    }

    /// Returns whether a connection has many frames in flight but few to write. Then the caller is
    /// likely to send more soon.
    pub(crate) fn is_streaming(&self, link: LinkId) -> bool {
        self.link(link)
            .is_some_and(|at| at.ledger.outstanding() >= MIN_STREAM && at.ledger.queue.len() < MIN_BATCH)
    }

    /// Takes the next frame to write on a connection. `None` if none is queued, or it is not up.
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

    /// Gives up a frame that was taken for a connection, but cannot be read, so that none of it was
    /// written.
    pub(crate) fn on_unreadable(&mut self, link: LinkId, sequence: u64) {
        let is_kept = self.settings.delivery == Delivery::AtLeastOnce;
        // The receiver may have acknowledged or rejected it meanwhile, after an earlier connection.
        // Then it may have gone to another connection.
        let is_ours = |entry: &Entry<F>| entry.is_handed && entry.link == Some(link);
        let is_decided = is_kept && !self.ring.get(sequence).is_some_and(is_ours);
        // After a break, the frame is another connection's, which gives it up when it finds the
        // same.
        let Some(at) = self.link_mut(link) else { return };
        at.ledger.not_sent(sequence, is_decided);
        if !is_decided {
            self.give_up(sequence);
        }
        self.return_keys(link.peer);
        self.reassign();
    }

    /// Drops a frame that no receiver will get, and counts it as given up.
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

    /// Returns the frames that are done with. The caller drops them after it has unlocked this
    /// state machine, because dropping a frame may run the application's code.
    pub(crate) fn released(&mut self) -> &mut Vec<F> {
        &mut self.released
    }

    /// Records that the first `count` messages that were taken for a connection have been written.
    pub(crate) fn on_written(&mut self, link: LinkId, count: usize) {
        if let Some(at) = self.link_mut(link) {
            let unwritten = &mut at.ledger.unwritten;
            unwritten.drain(..count.min(unwritten.len()));
        }
    }

    /// Starts connections, resumes paused frames and closes drained peers whose time has come.
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

    /// Returns when the next [`tick`](Self::tick) is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let links =
            self.peers.iter().flat_map(|peer| peer.links.iter().map(|link| (link, peer.draining_until)));
        let paused = self.paused.first().map(|&(until, _)| until);
        links.filter_map(|(link, draining_until)| link.due(draining_until)).chain(paused).min()
    }

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
        let links = (0..self.settings.connections).map(|_| Lane::new(now)).collect();
        self.peers.push(PeerState::new(id, info, links));
        id
    }

    fn position(&self, peer: PeerId) -> Option<usize> {
        self.peers.binary_search_by_key(&peer, |peer| peer.id).ok()
    }

    fn peer_mut(&mut self, id: PeerId) -> Option<&mut PeerState> {
        let at = self.position(id)?;
        self.peers.get_mut(at)
    }

    /// Starts to move the keys of a connection that is up again back to it.
    fn reclaim_keys(&mut self, link: LinkId) {
        if let Some(peer) = self.peer_mut(link.peer) {
            peer.reclaim_keys(link.index.into());
        }
    }

    /// Completes the return of keys to those of a peer's connections that need not wait any longer.
    fn return_keys(&mut self, id: PeerId) {
        if let Some(peer) = self.peer_mut(id) {
            peer.return_keys();
        }
    }

    /// Returns a connection's state, unless a later connection has taken its place.
    fn link(&self, id: LinkId) -> Option<&Lane> {
        let peer = self.peers.get(self.position(id.peer)?)?;
        peer.links.get(usize::from(id.index)).filter(|link| link.is_in(id.epoch))
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Lane> {
        let link = self.peer_mut(id.peer)?.links.get_mut(usize::from(id.index))?;
        link.is_in(id.epoch).then_some(link)
    }
}
