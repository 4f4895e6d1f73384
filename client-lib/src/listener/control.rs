//! What a receiver tells its senders: slots that are free again, frames that our code has taken, acknowledged, or not wanted.
//!
//! Frames are dropped one at a time, but a message for each would cost as much as a small frame. So it is said when half of the slots
//! are free, when an acknowledgement is due and our code has nothing else to do, when nothing has happened for a millisecond, and after
//! some milliseconds in any case.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Acknowledge;
use super::receive::Ended;
use super::slots::{Slot, Slots, Usage};
use crate::channel::DataChannel;
use crate::handshake::{Delivery, Hello, SessionId};
use crate::inbound::{Arrival, Seen, Teller};
use crate::rdma::LocalSlots;
use crate::stream::{Body, Message, MessageSource, SHORT};
use crate::wire::{Control, Data, Header, WINDOW};

/// How long what is to be said waits for more.
const PATIENCE: Duration = Duration::from_millis(1);

/// How many times it waits, each time twice as long, if there is more each time.
const DELAYS: u32 = 3;

/// How many sequences go into one message.
const IDS: usize = SHORT / size_of::<u64>();

/// Under RDMA, where each slot that has become free is named, too: as many of both.
const IDS_WITH_SLOTS: usize = SHORT / (size_of::<u64>() + size_of::<u16>());

/// The most sequences that wait to be said: a window of them, and as many that have left it meanwhile or are said again.
const MOST_IDS: usize = 2 * WINDOW as usize;

/// A session, and the names of whom its sender's certificate is for, if there is one: whoever else knows its id, as other receivers do,
/// has another session by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) id: SessionId,
    pub(super) owner: Arc<[String]>,
}

/// What a session's connections share.
#[derive(Default)]
pub(super) struct SessionState {
    seen: Mutex<Seen>,
    /// The latest connection of each lane, with its epoch: it says what is said of frames that came over earlier ones.
    latest: Mutex<BTreeMap<u16, (u64, Weak<Connection>)>>,
    /// Another connection has been let in.
    pub(super) admitted: Notify,
}

impl SessionState {
    /// A lane's next connection has been let in: what the one before it still brings does not count. It may be refused for another reason
    /// after all, and then the sender gives what it had to other lanes.
    pub(super) fn supersede(&self, lane: u16, epoch: u64) {
        self.follow(lane, epoch, Weak::new());
    }

    /// No connection is there. How many bytes this keeps.
    pub(super) fn rest(&self) -> usize {
        lock(&self.latest).retain(|_, (_, latest)| latest.strong_count() > 0);
        lock(&self.seen).rest()
    }

    /// The handshakes of two may end in any order.
    fn follow(&self, lane: u16, epoch: u64, connection: Weak<Connection>) {
        let mut latest = lock(&self.latest);
        if latest.get(&lane).is_none_or(|&(latest, _)| latest <= epoch) {
            latest.insert(lane, (epoch, connection));
        }
    }
}

/// A connection from a sender.
pub(super) struct Connection {
    hello: Hello,
    address: SocketAddr,
    /// Whom the sender's certificate is for, if there is one.
    pub(super) owner: Arc<[String]>,
    acknowledge: Acknowledge,
    channel: DataChannel<Ended>,
    // Given back after what the sender may write to.
    slots: Slots,
    to_say: Mutex<ToSay>,
    session: Arc<SessionState>,
    flusher: Arc<Flusher>,
    /// It is to end, for others.
    closing: CancellationToken,
    /// Whether it has ended. Read and written under `to_say`.
    has_ended: AtomicBool,
}

#[derive(Default)]
struct ToSay {
    freed: u64,
    taken: u64,
    acked: Vec<u64>,
    rejected: Vec<u64>,
    said_freed: u64,
    said_taken: u64,
    /// The flusher knows.
    is_noted: bool,
    /// It knows that the sender waits.
    is_urgent: bool,
    /// What `freed` was when the flusher looked last, and how many times it has found more since then.
    looked_at: u64,
    delays: u32,
    /// Which slots are free, where the sender has to be told.
    slots: Option<LocalSlots>,
    /// So many frames the sender may have under way, as far as it knows: the most that it has been told, until it says that it keeps to less.
    room: u32,
    /// So many slots that are free again are worth a message.
    enough: u64,
    /// What `freed` was at the last two ticks, the older one first.
    freed_at_ticks: [u64; 2],
    /// The limit that the sender has not answered, and since when.
    asked: Option<(u32, Instant)>,
    /// It is still to be said.
    limit: Option<u32>,
}

/// Has everything said in time.
#[derive(Default)]
pub(super) struct Flusher {
    /// Connections do not live by being noted: whoever has something of them does.
    noted: Mutex<Vec<Weak<Connection>>>,
    /// Those that have something to say that their senders wait for.
    urgent: Mutex<Vec<Weak<Connection>>>,
    wake: Notify,
}

impl Connection {
    pub(super) fn new(
        (hello, address, owner): (Hello, SocketAddr, Arc<[String]>),
        acknowledge: Acknowledge,
        (slots, channel): (Slots, DataChannel<Ended>),
        session: Arc<SessionState>,
        flusher: Arc<Flusher>,
    ) -> Arc<Self> {
        let own_slots = match &channel {
            DataChannel::Rdma(pair, _) => Some(pair.local_slots()),
            DataChannel::Tcp(_) => None,
        };
        let mut to_say = ToSay { slots: own_slots, ..ToSay::default() };
        to_say.has_room(slots.count(), hello.window);
        let (to_say, closing) = (Mutex::new(to_say), CancellationToken::new());
        let has_ended = AtomicBool::new(false);
        let this = Self {
            hello,
            address,
            owner,
            acknowledge,
            channel,
            slots,
            to_say,
            session,
            flusher,
            closing,
            has_ended,
        };
        let connection = Arc::new(this);
        connection.slots.belong_to(Arc::downgrade(&connection));
        let Hello { lane, epoch, .. } = connection.hello;
        connection.session.follow(lane, epoch, Arc::downgrade(&connection));
        connection
    }

    pub(super) fn name(&self) -> &str {
        &self.hello.from
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.hello.from_uid.as_deref()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn session(&self) -> u128 {
        self.hello.session.0
    }

    pub(super) fn delivery(&self) -> Delivery {
        self.hello.delivery
    }

    pub(super) fn acknowledge_mode(&self) -> Acknowledge {
        self.acknowledge
    }

    pub(super) fn session_state(&self) -> &SessionState {
        &self.session
    }

    pub(super) fn channel(&self) -> &DataChannel<Ended> {
        &self.channel
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// How many frames the sender may have sent so far: it has been told of as many slots.
    pub(super) fn credit(&self) -> u64 {
        let to_say = lock(&self.to_say);
        u64::from(to_say.room) + to_say.said_freed
    }

    /// Whether it can have more or fewer slots than it began with.
    pub(super) fn is_limitable(&self) -> bool {
        self.hello.is_limitable && !self.channel.is_rdma()
    }

    /// Has the sender keep to a limit, unless it has still to answer another one.
    pub(super) fn limit(self: &Arc<Self>, to: u32) {
        self.say(|to_say| to_say.limit(to, self.hello.window));
    }

    /// The sender keeps to a limit from here on.
    pub(super) fn limited(&self, to: u32) -> Result<(), Ended> {
        {
            let mut to_say = lock(&self.to_say);
            if to_say.asked.take().is_none_or(|(asked, _)| asked != to) {
                return Err(Ended::Unlimited);
            }
            to_say.has_room(to, self.hello.window);
            // Under the lock, so that the slots are not raised in between.
            if !self.slots.lower(to) {
                return Ok(());
            }
        }
        self.close();
        Ok(())
    }

    /// The limit that the sender has not answered, and since when.
    pub(super) fn asked(&self) -> Option<(u32, Instant)> {
        lock(&self.to_say).asked
    }

    /// How many slots are used, and may be.
    pub(super) fn usage(&self) -> Usage {
        let usage = self.slots.usage();
        match &lock(&self.to_say).slots {
            Some(own) => Usage { peak: own.peak(), ..usage },
            None => usage,
        }
    }

    /// Some time has passed: what was used before counts for less. A sender that was to have nothing, so that it could be closed, and of which our code has
    /// something all the time, may go on.
    pub(super) fn go_on(self: &Arc<Self>) {
        self.slots.forget_peak();
        {
            let mut to_say = lock(&self.to_say);
            to_say.freed_at_ticks = [to_say.freed_at_ticks[1], to_say.freed];
            if let Some(own) = &mut to_say.slots {
                own.forget_peak();
            }
        }
        let Usage { limit, most, .. } = self.slots.usage();
        let is_raised = {
            let to_say = lock(&self.to_say);
            let may_go_on = limit == 0 && most > 0 && to_say.asked.is_none();
            may_go_on && !self.has_ended.load(Ordering::Acquire) && self.slots.raise(most)
        };
        if is_raised {
            self.limit(most);
        }
    }

    /// Whether our code has let go of everything that has come.
    pub(super) fn is_idle(&self) -> bool {
        let by_rdma = lock(&self.to_say).slots.as_ref().map(LocalSlots::is_idle);
        by_rdma.unwrap_or_else(|| self.slots.is_idle())
    }

    /// Returns whether our code has let go of no frame since the tick before the last one. A sender
    /// that is idle at this moment may be about to send the next of many frames.
    pub(super) fn is_quiet(&self) -> bool {
        let to_say = lock(&self.to_say);
        to_say.freed == to_say.freed_at_ticks[0]
    }

    /// Ends it for others.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Returns whether it is to end, or has: its slots come back by themselves.
    pub(super) fn is_over(&self) -> bool {
        let is_superseded = || {
            let latest = lock(&self.session.latest);
            latest.get(&self.hello.lane).is_some_and(|&(epoch, _)| epoch > self.hello.epoch)
        };
        self.closing.is_cancelled() || self.has_ended.load(Ordering::Acquire) || is_superseded()
    }

    pub(super) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// It has ended: what our code does not have is free. By RDMA that is not before all of it is gone.
    pub(super) fn has_ended(&self) {
        // Under the lock, so that the slots are not raised again.
        let _to_say = lock(&self.to_say);
        self.has_ended.store(true, Ordering::Release);
        if !self.channel.is_rdma() {
            self.slots.lower(0);
        }
    }

    /// Does something with a frame that has come, unless a later connection of the lane is there: what that brings must not come before
    /// what this has brought. So neither can get in between.
    pub(super) fn while_latest<T>(&self, deliver: impl FnOnce() -> T) -> Option<T> {
        let latest = lock(&self.session.latest);
        let &(epoch, _) = latest.get(&self.hello.lane)?;
        (epoch == self.hello.epoch).then(deliver)
    }

    /// What to do with a frame that has come.
    pub(super) fn arrived(&self, data: &Data) -> Arrival {
        match self.hello.delivery {
            Delivery::AtMostOnce => Arrival::Deliver,
            Delivery::AtLeastOnce => {
                lock(&self.session.seen).arrived_by(self.hello.lane, data.sequence, data.floor)
            }
        }
    }

    /// Our code has taken a frame.
    pub(super) fn taken(self: &Arc<Self>) {
        self.say(|to_say| to_say.taken += 1);
    }

    /// A frame has come to a slot of ours.
    #[cfg(feature = "rdma")]
    pub(super) fn landed(&self, slot: u16) -> Result<(), crate::rdma::Violation> {
        lock(&self.to_say).slots.as_mut().map_or(Ok(()), |slots| slots.occupy(slot))
    }

    /// Our code has let go of a frame: its slot is free again.
    pub(super) fn give_back(self: &Arc<Self>, slot: Slot) {
        let slot = self.free(slot);
        self.say(|to_say| to_say.free(slot));
    }

    /// Takes memory of our own back. The number of a slot whose sender has to be told.
    fn free(&self, slot: Slot) -> Option<u16> {
        match slot {
            Slot::Own(slot) => {
                if self.slots.give_back(slot) {
                    self.close();
                }
                None
            }
            Slot::Landed(landed) => Some(landed.slot()),
        }
    }

    /// Our code has let go of a frame, which it has acknowledged or did not want. The connections that brought it say so, or those
    /// that have taken their places.
    pub(super) fn settle(self: &Arc<Self>, slot: Slot, sequence: u64, is_acknowledged: bool) {
        let (teller, floor) = {
            let mut seen = lock(&self.session.seen);
            (seen.decided(sequence, is_acknowledged), seen.floor())
        };
        // If there is none, the sender will ask by sending it again.
        let (is_ours, others) = match teller {
            None => (false, Vec::new()),
            Some(Teller::Lane(lane)) => {
                let latest = lock(&self.session.latest).get(&lane).and_then(|(_, latest)| latest.upgrade());
                match latest {
                    Some(latest) if Arc::ptr_eq(&latest, self) => (true, Vec::new()),
                    latest => (false, latest.into_iter().collect()),
                }
            }
            Some(Teller::All) => {
                let latest = lock(&self.session.latest);
                (false, latest.values().filter_map(|(_, latest)| latest.upgrade()).collect())
            }
        };
        let tell = |to_say: &mut ToSay| to_say.tell(sequence, is_acknowledged, floor);
        let slot = self.free(slot);
        self.say(|to_say| {
            to_say.free(slot);
            if is_ours {
                tell(to_say);
            }
        });
        others.iter().for_each(|other| other.say(tell));
    }

    /// A frame that our code has had before is passed over; its slot is free again.
    pub(super) fn pass_over(self: &Arc<Self>, sequence: u64, arrival: Arrival, slot: Slot) {
        let slot = self.free(slot);
        self.say(|to_say| {
            to_say.free(slot);
            to_say.taken += 1;
            if arrival == Arrival::Acknowledge {
                to_say.acked.push(sequence);
            }
        });
    }

    fn say(self: &Arc<Self>, change: impl FnOnce(&mut ToSay)) {
        let (is_due, is_news, is_urgent) = {
            let mut to_say = lock(&self.to_say);
            change(&mut to_say);
            let is_due = to_say.is_due();
            (is_due, !is_due && to_say.note(), !is_due && to_say.hurry())
        };
        if is_due {
            return self.channel.try_flush(&**self);
        }
        if is_news {
            self.flusher.note(Arc::downgrade(self));
        }
        if is_urgent {
            lock(&self.flusher.urgent).push(Arc::downgrade(self));
        }
    }

    /// The time has come to say what there is, unless it is worth waiting for more: then, how many times it has been so already.
    fn flush(&self) -> Option<u32> {
        let delays = {
            let mut to_say = lock(&self.to_say);
            let delays = to_say.may_wait();
            to_say.is_noted = delays.is_some();
            delays
        };
        match delays {
            Some(_) => self.channel.use_delayed_acks(),
            None => self.channel.try_flush(self),
        }
        delays
    }

    fn flush_urgent(&self) {
        lock(&self.to_say).is_urgent = false;
        self.channel.try_flush(self);
    }
}

impl ToSay {
    /// The sender may have so many frames under way, and uses so many slots at most.
    fn has_room(&mut self, room: u32, window: Option<u32>) {
        self.room = room;
        self.enough = u64::from(window.unwrap_or(u32::MAX).min(room).div_ceil(2)).max(1);
    }

    fn limit(&mut self, to: u32, window: Option<u32>) {
        if self.asked.is_none() {
            let before = self.room;
            self.has_room(to, window);
            // Until it answers, what it was told before counts, too.
            self.room = before.max(to);
            (self.asked, self.limit) = (Some((to, Instant::now())), Some(to));
        }
    }

    /// A slot is free, which has this number if its sender has to be told.
    fn free(&mut self, slot: Option<u16>) {
        self.freed += 1;
        if let (Some(slots), Some(slot)) = (&mut self.slots, slot) {
            slots.free(slot);
        }
    }

    /// What our code has decided on a frame.
    fn tell(&mut self, sequence: u64, is_acknowledged: bool, floor: u64) {
        let ids = if is_acknowledged { &mut self.acked } else { &mut self.rejected };
        ids.push(sequence);
        // A lane that does not read hears of what other lanes brought, again and again if it is not wanted. Nobody waits for what is below the
        // floor; what is left is a window at most, half of what there was.
        if ids.len() > MOST_IDS {
            ids.retain(|&id| id >= floor);
            ids.sort_unstable();
            ids.dedup();
        }
    }

    /// Whether the sender may soon have no credit left, as so many slots are free, or a message is full.
    fn is_due(&self) -> bool {
        let is_full = self.acked.len() + self.rejected.len() >= self.most_ids();
        is_full || self.limit.is_some() || self.freed - self.said_freed >= self.enough
    }

    /// How many sequences go into one message.
    fn most_ids(&self) -> usize {
        if self.slots.is_some() { IDS_WITH_SLOTS } else { IDS }
    }

    /// Whether the flusher has to be told.
    fn note(&mut self) -> bool {
        if self.is_noted {
            return false;
        }
        (self.is_noted, self.looked_at, self.delays) = (true, self.freed, 0);
        true
    }

    /// Whether the flusher has to be told that the sender waits.
    fn hurry(&mut self) -> bool {
        self.has_ids() && !std::mem::replace(&mut self.is_urgent, true)
    }

    /// A sender that gets an answer to each frame would else be told of each slot. How many times this has waited already.
    fn may_wait(&mut self) -> Option<u32> {
        let has_more = std::mem::replace(&mut self.looked_at, self.freed) != self.freed;
        self.delays += 1;
        (has_more && self.delays < DELAYS && !self.has_ids()).then_some(self.delays)
    }

    fn has_ids(&self) -> bool {
        !self.acked.is_empty() || !self.rejected.is_empty()
    }

    fn is_something(&self) -> bool {
        let is_more = self.freed != self.said_freed || self.taken != self.said_taken;
        self.has_ids() || is_more || self.limit.is_some()
    }

    fn message(&mut self) -> Message {
        let mut body = [0; SHORT];
        let most = self.most_ids();
        let acked = self.acked.len().min(most);
        let rejected = self.rejected.len().min(most - acked);
        let ids = self.acked.drain(..acked).chain(self.rejected.drain(..rejected));
        let (places, _) = body.as_chunks_mut();
        places.iter_mut().zip(ids).for_each(|(place, id)| *place = id.to_be_bytes());
        // A slot is said to be free when what became of its frame is said, too: else a sender that hears nothing could make the
        // lists grow without end.
        let unsaid = (self.acked.len() + self.rejected.len()) as u64;
        let before = self.said_freed;
        self.said_freed = self.freed.saturating_sub(unsaid).max(before);
        let mut slots = 0;
        if let Some(own) = &mut self.slots {
            let (places, _) = body[(acked + rejected) * size_of::<u64>()..].as_chunks_mut();
            let now_free = (self.said_freed - before).min(places.len() as u64);
            self.said_freed = before + now_free;
            let now_free = std::iter::from_fn(|| own.take_freed()).take(now_free as usize);
            for (place, slot) in places.iter_mut().zip(now_free) {
                *place = slot.to_be_bytes();
                slots += 1;
            }
        }
        self.said_taken = self.taken;
        let control = Control {
            // IDS at most.
            acked: acked as u16,
            rejected: rejected as u16,
            slots,
            freed: self.said_freed,
            taken: self.taken,
            limit: self.limit.take(),
        };
        let body = Body::Short(body, control.body());
        Message { header: Header::Control(control).encode(), body }
    }
}

impl MessageSource for Connection {
    fn next(&self) -> Option<Message> {
        let mut to_say = lock(&self.to_say);
        to_say.is_something().then(|| to_say.message())
    }

    fn has_work(&self) -> bool {
        lock(&self.to_say).is_something()
    }
}

impl Flusher {
    fn note(&self, connection: Weak<Connection>) {
        lock(&self.noted).push(connection);
        self.wake.notify_one();
    }

    /// Our code has nothing else to do: says what senders wait for. Nothing is said under the lock, for which others would wait.
    pub(super) fn flush_urgent(&self) {
        let next = || lock(&self.urgent).pop();
        while let Some(connection) = next() {
            if let Some(connection) = connection.upgrade() {
                connection.flush_urgent();
            }
        }
    }

    /// Says everything in time, for ever.
    pub(super) async fn run(&self) {
        let mut looked_at = Vec::new();
        loop {
            self.wake.notified().await;
            let mut due = Instant::now() + PATIENCE;
            while !lock(&self.noted).is_empty() {
                tokio::select! {
                    () = sleep_until(due) => {}
                    // Somebody new does not wait for longer because others do.
                    () = self.wake.notified() => {
                        due = due.min(Instant::now() + PATIENCE);
                        continue;
                    }
                }
                std::mem::swap(&mut looked_at, &mut *lock(&self.noted));
                let mut patience = PATIENCE * (1 << DELAYS);
                looked_at.retain(|connection: &Weak<Connection>| {
                    let delays = connection.upgrade().and_then(|connection| connection.flush());
                    patience = patience.min(delays.map_or(patience, |delays| PATIENCE * (1 << delays)));
                    delays.is_some()
                });
                lock(&self.noted).append(&mut looked_at);
                due = Instant::now() + patience;
            }
        }
    }
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_costs_a_window() {
        let mut to_say = ToSay::default();
        let mut longest = 0;
        // The window moves on, and each frame of it comes again and again.
        for number in 0..10 * WINDOW {
            let floor = number / 8;
            to_say.tell(floor + number % 32, false, floor);
            longest = longest.max(to_say.rejected.len());
        }
        assert_eq!(longest, MOST_IDS);
        // Whatever is left is there once, so that it is not looked through again at once.
        let window = WINDOW as usize;
        (0..MOST_IDS as u64).for_each(|number| to_say.tell(number % WINDOW, true, 0));
        to_say.tell(0, true, 0);
        assert_eq!((to_say.acked.len(), to_say.rejected.len() <= MOST_IDS), (window, true));
    }
}
