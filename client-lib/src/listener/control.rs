//! What a receiver tells its senders: slots that are free again, frames that our code has taken, acknowledged, or not wanted.
//!
//! Frames are dropped one at a time, but a message for each would cost as much as a small frame. So it is said when half of the slots
//! are free, when an acknowledgement is due and our code has nothing else to do, and after a millisecond in any case.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::Acknowledge;
use super::slots::Slots;
use crate::handshake::{Delivery, Hello};
use crate::inbound::{Arrival, Seen, Teller};
use crate::stream::{Body, Message, Outlet, SHORT, Source};
use crate::wire::{Control, Data, Header};

/// How long what is to be said may wait.
const PATIENCE: Duration = Duration::from_millis(1);

/// How many sequences go into one message.
const IDS: usize = SHORT / size_of::<u64>();

/// What a session's connections share.
#[derive(Default)]
pub(super) struct SessionState {
    seen: Mutex<Seen>,
    /// The latest connection of each lane, with its epoch: it says what is said of frames that came over earlier ones.
    latest: Mutex<HashMap<u16, (u64, Weak<Connection>)>>,
    /// Another connection has been let in.
    pub(super) admitted: Notify,
}

/// A connection from a sender.
pub(super) struct Connection {
    hello: Hello,
    address: SocketAddr,
    acknowledge: Acknowledge,
    slots: Slots,
    outlet: Outlet,
    to_say: Mutex<ToSay>,
    session: Arc<SessionState>,
    flusher: Arc<Flusher>,
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
}

/// Has everything said in time.
#[derive(Default)]
pub(super) struct Flusher {
    noted: Mutex<Vec<Arc<Connection>>>,
    wake: Notify,
}

impl Connection {
    pub(super) fn new(
        (hello, address): (Hello, SocketAddr),
        acknowledge: Acknowledge,
        (slots, outlet): (Slots, Outlet),
        session: Arc<SessionState>,
        flusher: Arc<Flusher>,
    ) -> Arc<Self> {
        let to_say = Mutex::default();
        let connection = Self { hello, address, acknowledge, slots, outlet, to_say, session, flusher };
        let connection = Arc::new(connection);
        let Hello { lane, epoch, .. } = connection.hello;
        let mut latest = lock(&connection.session.latest);
        // The handshakes of two may end in any order.
        if latest.get(&lane).is_none_or(|&(latest, _)| latest < epoch) {
            latest.insert(lane, (epoch, Arc::downgrade(&connection)));
        }
        drop(latest);
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

    pub(super) fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// How many frames the sender may have sent so far: it has been told of as many slots.
    pub(super) fn credit(&self) -> u64 {
        u64::from(self.slots.count()) + lock(&self.to_say).said_freed
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

    /// A slot is free again.
    pub(super) fn give_back(self: &Arc<Self>, slot: Vec<u8>) {
        self.slots.give_back(slot);
        self.say(|to_say| to_say.freed += 1);
    }

    /// A frame that our code has had before is passed over; its slot is free again.
    pub(super) fn pass_over(self: &Arc<Self>, sequence: u64, arrival: Arrival, slot: Vec<u8>) {
        self.slots.give_back(slot);
        self.say(|to_say| {
            to_say.freed += 1;
            to_say.taken += 1;
            if arrival == Arrival::Acknowledge {
                to_say.acked.push(sequence);
            }
        });
    }

    /// Our code has acknowledged a frame, or did not want it. The connections that brought it say so, or those that have taken their
    /// places.
    pub(super) fn settle(self: &Arc<Self>, sequence: u64, is_acknowledged: bool) {
        let Some(teller) = lock(&self.session.seen).decided(sequence, is_acknowledged) else { return };
        let tell = |to_say: &mut ToSay| {
            let ids = if is_acknowledged { &mut to_say.acked } else { &mut to_say.rejected };
            ids.push(sequence);
        };
        // If there is none, the sender will ask by sending it again.
        match teller {
            Teller::Lane(lane) => {
                let latest = lock(&self.session.latest).get(&lane).and_then(|(_, latest)| latest.upgrade());
                latest.iter().for_each(|latest| latest.say(tell));
            }
            Teller::All => {
                let latest = lock(&self.session.latest);
                let all: Vec<_> = latest.values().filter_map(|(_, latest)| latest.upgrade()).collect();
                drop(latest);
                all.iter().for_each(|latest| latest.say(tell));
            }
        }
    }

    fn say(self: &Arc<Self>, change: impl FnOnce(&mut ToSay)) {
        let (is_due, is_news) = {
            let mut to_say = lock(&self.to_say);
            change(&mut to_say);
            let is_due = to_say.is_due(self.slots.count());
            (is_due, !is_due && !std::mem::replace(&mut to_say.is_noted, true))
        };
        if is_due {
            self.outlet.kick(&**self);
        } else if is_news {
            self.flusher.note(Arc::clone(self));
        }
    }

    /// Whether the sender waits for what is to be said.
    fn is_urgent(&self) -> bool {
        let to_say = lock(&self.to_say);
        !to_say.acked.is_empty() || !to_say.rejected.is_empty()
    }

    fn flush(&self) {
        lock(&self.to_say).is_noted = false;
        self.outlet.kick(self);
    }
}

impl ToSay {
    /// Whether the sender may soon have no credit left, or a message is full.
    fn is_due(&self, slots: u32) -> bool {
        let half = u64::from(slots.div_ceil(2));
        self.freed - self.said_freed >= half || self.acked.len() + self.rejected.len() >= IDS
    }

    fn is_something(&self) -> bool {
        let has_ids = !self.acked.is_empty() || !self.rejected.is_empty();
        has_ids || self.freed != self.said_freed || self.taken != self.said_taken
    }

    fn message(&mut self) -> Message {
        let mut body = [0; SHORT];
        let acked = self.acked.len().min(IDS);
        let rejected = self.rejected.len().min(IDS - acked);
        let ids = self.acked.drain(..acked).chain(self.rejected.drain(..rejected));
        for (place, id) in body.as_chunks_mut().0.iter_mut().zip(ids) {
            *place = id.to_be_bytes();
        }
        // A slot is said to be free when what became of its frame is said, too: else a sender that hears nothing could make the
        // lists grow without end.
        let unsaid = (self.acked.len() + self.rejected.len()) as u64;
        self.said_freed = self.freed.saturating_sub(unsaid).max(self.said_freed);
        self.said_taken = self.taken;
        let control = Control {
            // IDS at most.
            acked: acked as u16,
            rejected: rejected as u16,
            freed: self.said_freed,
            taken: self.taken,
        };
        let body = Body::Short(body, control.body());
        Message { header: Header::Control(control).encode(), body }
    }
}

impl Source for Connection {
    fn next(&self) -> Option<Message> {
        let mut to_say = lock(&self.to_say);
        to_say.is_something().then(|| to_say.message())
    }

    fn has_work(&self) -> bool {
        lock(&self.to_say).is_something()
    }
}

impl Flusher {
    fn note(&self, connection: Arc<Connection>) {
        let mut noted = lock(&self.noted);
        noted.push(connection);
        if noted.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// Our code has nothing else to do: says what senders wait for.
    pub(super) fn flush_urgent(&self) {
        lock(&self.noted).retain(|connection| {
            let is_urgent = connection.is_urgent();
            if is_urgent {
                connection.flush();
            }
            !is_urgent
        });
    }

    /// Says everything in time, for ever.
    pub(super) async fn run(&self) {
        let mut due = Vec::new();
        loop {
            self.wake.notified().await;
            sleep(PATIENCE).await;
            std::mem::swap(&mut due, &mut *lock(&self.noted));
            for connection in due.drain(..) {
                connection.flush();
            }
        }
    }
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
