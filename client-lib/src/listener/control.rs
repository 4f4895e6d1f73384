//! A connection from a sender: its slots, its control messages, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Acknowledge;
use super::ack::{AckScheduler, When};
use super::asks::Asks;
use super::ended::Ended;
use super::flusher::{Flush, Flusher};
use super::session::SessionState;
use super::slot::Slot;
use super::slots::{Slots, Usage};
use crate::channel::DataChannel;
use crate::handshake::{Delivery, Hello};
use crate::inbound::Arrival;
use crate::rdma::LocalSlots;
use crate::reference::OfferId;
use crate::stream::{Message, MessageSource};
use crate::wire::Data;

/// A connection from a sender.
///
/// Locks are taken in this order: the session's, `acks`, and that of the slots or the questions.
pub(super) struct Connection {
    pub(super) hello: Hello,
    pub(super) address: SocketAddr,
    /// Names that the sender's certificate is for; empty without TLS.
    pub(super) owner: Arc<[String]>,
    pub(super) acknowledge: Acknowledge,
    pub(super) channel: DataChannel<Ended>,
    // Dropped after `channel`: a sender by RDMA writes to them as long as that is there.
    pub(super) slots: Slots<Self>,
    acks: Mutex<AckScheduler>,
    pub(super) session: Arc<SessionState<Self>>,
    flusher: Arc<Flusher<Self>>,
    /// Cancelled to end the connection, so that others get its slots.
    pub(super) closing: CancellationToken,
    /// Reason why `closing` was cancelled, if it is another than that room was made.
    reason: Mutex<Option<Ended>>,
    /// Questions for payloads that wait to be sent, if this side has connected to fetch.
    asks: Asks,
    /// Whether the connection has ended; written under the lock of `acks`.
    has_ended: AtomicBool,
}

impl Connection {
    pub(super) fn new(
        (hello, address, owner): (Hello, SocketAddr, Arc<[String]>),
        acknowledge: Acknowledge,
        (slots, channel): (Slots<Self>, DataChannel<Ended>),
        session: Arc<SessionState<Self>>,
        flusher: Arc<Flusher<Self>>,
    ) -> Arc<Self> {
        let local_slots = match &channel {
            DataChannel::Rdma(pair, _) => Some(pair.local_slots()),
            DataChannel::Tcp(_) => None,
        };
        let acks = Mutex::new(AckScheduler::new(slots.count(), hello.window, local_slots));
        let (closing, has_ended) = (CancellationToken::new(), AtomicBool::new(false));
        let (lane, epoch) = (hello.lane, hello.epoch);
        let connection = Arc::new(Self {
            hello,
            address,
            owner,
            acknowledge,
            channel,
            slots,
            acks,
            session,
            flusher,
            closing,
            reason: Mutex::new(None),
            asks: Asks::default(),
            has_ended,
        });
        connection.slots.belong_to(Arc::downgrade(&connection));
        connection.session.set_latest(lane, epoch, Arc::downgrade(&connection));
        connection
    }

    /// Ends the connection for a reason.
    pub(super) fn close_with(&self, reason: Ended) {
        self.reason.lock().get_or_insert(reason);
        self.close();
    }

    pub(super) fn take_reason(&self) -> Option<Ended> {
        self.reason.lock().take()
    }

    /// Sends a question for a payload, after the acknowledgements of what the program has decided.
    /// The answer names its number.
    pub(super) fn ask(&self, number: u64, id: &OfferId) {
        if self.channel.is_rdma() && self.acks.lock().has_ids() {
            self.channel.try_flush(self);
        }
        self.asks.push(number, id);
        match &self.channel {
            DataChannel::Tcp(writer) => writer.try_flush(self),
            DataChannel::Rdma(_, writer) => writer.try_flush(&self.asks),
        }
    }

    /// Writes questions that could not be written at once, where frames go by RDMA. Returns the
    /// error of the connection.
    pub(super) async fn write_asks(&self) -> Ended {
        match &self.channel {
            DataChannel::Rdma(_, writer) => writer.run(&self.asks).await.into(),
            // They go with the other messages.
            DataChannel::Tcp(_) => std::future::pending().await,
        }
    }

    /// Returns how many frames the sender may have sent since the connection began.
    pub(super) fn credit(&self) -> u64 {
        self.acks.lock().credit()
    }

    /// Returns whether the sender can have more or fewer slots than it began with.
    pub(super) fn is_limitable(&self) -> bool {
        self.hello.is_limitable && !self.channel.is_rdma()
    }

    /// Asks the sender to keep to a limit, unless it has still to answer another one.
    pub(super) fn limit(self: &Arc<Self>, to: u32) {
        self.update(|acks| acks.ask(to, self.hello.window, Instant::now()));
    }

    /// Tells the sender its new number of slots, if they are free, unless it has still to answer
    /// another limit.
    pub(super) fn set_limit(self: &Arc<Self>, to: u32) {
        let is_set = {
            let acks = self.acks.lock();
            let may_change = acks.asked().is_none() && !self.has_ended.load(Ordering::Acquire);
            // Under the lock, or the slots of a connection that has just ended would be raised.
            may_change && (to < self.slots.count() || self.slots.raise(to))
        };
        if is_set {
            self.limit(to);
        }
    }

    /// Lowers the slots to a limit, as the sender has answered that it keeps to that from now on.
    pub(super) fn limited(&self, to: u32) -> Result<(), Ended> {
        {
            let mut acks = self.acks.lock();
            if !acks.answered(to, self.hello.window) {
                return Err(Ended::Unlimited);
            }
            // Under the lock, so that the slots are not raised in between.
            if !self.slots.lower(to) {
                return Ok(());
            }
        }
        self.close();
        Ok(())
    }

    /// Returns the limit on slots that the sender has not confirmed, and when it was asked to.
    pub(super) fn asked(&self) -> Option<(u32, Instant)> {
        self.acks.lock().asked()
    }

    /// Returns how many slots frames are in, and how many the sender may use.
    pub(super) fn usage(&self) -> Usage {
        let usage = self.slots.usage();
        let peak = self.acks.lock().local_slots().map_or(usage.peak, LocalSlots::peak);
        Usage { peak, ..usage }
    }

    /// Returns how many slots stay promised while the program keeps its frames, if the connection
    /// ends now. By RDMA, one frame keeps all slots.
    pub(super) fn kept_slots(&self) -> u32 {
        let usage = self.slots.usage();
        match self.channel.is_rdma() {
            true if self.is_idle() => 0,
            true => usage.most,
            false => usage.in_use,
        }
    }

    /// Begins another tick: earlier peaks and frames count for less. A sender was limited to
    /// nothing so that the connection could be closed; if the program still has frames of it, it
    /// may go on.
    pub(super) fn tick(self: &Arc<Self>) {
        self.slots.forget_peak();
        let Usage { limit, most, .. } = self.slots.usage();
        let is_raised = {
            let mut acks = self.acks.lock();
            acks.mark();
            let may_go_on = limit == 0 && most > 0 && acks.asked().is_none();
            // Under the lock, or the slots of a connection that has just ended would be raised.
            may_go_on && !self.has_ended.load(Ordering::Acquire) && self.slots.raise(most)
        };
        if is_raised {
            self.limit(most);
        }
    }

    /// Returns whether the program has dropped all frames of this connection that have come.
    pub(super) fn is_idle(&self) -> bool {
        let by_rdma = self.acks.lock().local_slots().map(LocalSlots::is_idle);
        by_rdma.unwrap_or_else(|| self.slots.is_idle())
    }

    /// Returns whether the program has dropped no frame for a tick. A sender that is idle at this
    /// moment may be about to send the next of many frames.
    pub(super) fn is_quiet(&self) -> bool {
        self.acks.lock().is_quiet()
    }

    /// Asks the task that serves the connection to end it, so that others get its slots.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Returns whether the connection ends or has ended, so that its slots become free.
    pub(super) fn is_over(&self) -> bool {
        self.closing.is_cancelled()
            || self.has_ended.load(Ordering::Acquire)
            || self.session.is_superseded(self.hello.lane, self.hello.epoch)
    }

    /// Gives back the slots that hold no frame, at the end of the connection. By RDMA, none is
    /// given back before the program has dropped all frames.
    pub(super) fn end(&self) {
        // Under the lock, so that the slots are not raised again.
        let _acks = self.acks.lock();
        self.has_ended.store(true, Ordering::Release);
        if !self.channel.is_rdma() {
            self.slots.stop_reading();
            self.slots.lower(0);
        }
    }

    /// Calls `deliver` for a frame that has come, unless a later connection of the lane has been
    /// let in.
    pub(super) fn while_latest<T>(&self, deliver: impl FnOnce() -> T) -> Option<T> {
        self.session.while_latest((self.hello.lane, self.hello.epoch), deliver)
    }

    /// Returns whether a frame that has come goes to the program, or has come before.
    pub(super) fn arrived(&self, data: &Data) -> Arrival {
        match self.hello.delivery {
            Delivery::AtMostOnce => Arrival::Deliver,
            Delivery::AtLeastOnce => self.session.arrived(self.hello.lane, data),
        }
    }

    /// Records that the program has taken a frame, of which the sender is told.
    pub(super) fn take(self: &Arc<Self>) {
        self.update(AckScheduler::take);
    }

    /// Records that the sender has written a frame to a slot, by RDMA.
    #[cfg(feature = "rdma")]
    pub(super) fn landed(&self, slot: u16) -> Result<(), crate::rdma::Violation> {
        self.acks.lock().landed(slot)
    }

    /// Frees the slot of a frame that was sent at most once, and the program has dropped.
    pub(super) fn give_back(self: &Arc<Self>, slot: Slot) {
        let slot = self.free(slot);
        self.update(|acks| acks.free(slot));
    }

    /// Takes back the memory of a slot. Returns its number if the sender has to know which is free.
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

    /// Frees the slot of a frame that the program has acknowledged or rejected. The connections
    /// that brought the frame, or those that have taken their places, report it to the sender.
    pub(super) fn decide(self: &Arc<Self>, slot: Slot, sequence: u64, is_acknowledged: bool) {
        let (reporters, floor) = self.session.decided(sequence, is_acknowledged);
        let slot = self.free(slot);
        let mut is_freed = false;
        for reporter in reporters {
            let is_own = Arc::ptr_eq(&reporter, self);
            reporter.update(|acks| {
                if is_own {
                    acks.free(slot);
                }
                acks.decide(sequence, is_acknowledged, floor);
            });
            is_freed |= is_own;
        }
        if !is_freed {
            self.update(|acks| acks.free(slot));
        }
    }

    /// Frees the slot of a frame that the program has had before. Acknowledges it again if need be.
    pub(super) fn drop_repeat(self: &Arc<Self>, sequence: u64, arrival: Arrival, slot: Slot) {
        let slot = self.free(slot);
        self.update(|acks| {
            acks.free(slot);
            acks.take();
            if arrival == Arrival::Acknowledge {
                acks.acknowledge_again(sequence);
            }
        });
    }

    /// Makes a change to the control messages, and sends the next one now or leaves it to the
    /// flusher.
    fn update(self: &Arc<Self>, change: impl FnOnce(&mut AckScheduler)) {
        let when = {
            let mut acks = self.acks.lock();
            change(&mut acks);
            acks.schedule()
        };
        // Not under the lock: `channel` takes it again to get the message.
        match when {
            When::Now => self.channel.try_flush(&**self),
            When::Later { at_flush, when_idle } => {
                if at_flush {
                    self.flusher.flush_later(Arc::downgrade(self));
                }
                if when_idle {
                    self.flusher.flush_when_idle(Arc::downgrade(self));
                }
            }
        }
    }
}

impl Flush for Connection {
    fn flush(&self) -> Option<Duration> {
        let pause = self.acks.lock().flush();
        match pause {
            Some(_) => self.channel.use_delayed_acks(),
            None => self.channel.try_flush(self),
        }
        pause
    }

    fn flush_idle(&self) {
        self.acks.lock().idle();
        self.channel.try_flush(self);
    }
}

impl MessageSource for Connection {
    fn next(&self) -> Option<Message> {
        // Under one lock: a question must not overtake an acknowledgement that was made before it.
        let mut acks = self.acks.lock();
        acks.message().or_else(|| if self.channel.is_rdma() { None } else { self.asks.next() })
    }

    fn has_work(&self) -> bool {
        self.acks.lock().has_message() || (!self.channel.is_rdma() && self.asks.has_work())
    }
}
