//! A connection over RDMA: writes messages to the other side's slots, and handles what arrives in
//! ours.
//!
//! ```text
//!   try_flush ── MessageSource::next ──> reserve slot, memory, request ── copy or register ── post
//!   poll ── completions ──┬─> of sent messages: free what they took, MessageSource::written
//!                         └─> of received immediates: on_immediate, then post a receive request
//! ```
//!
//! As with TCP, the caller that has a message posts it at once. The connection's task posts what
//! had to wait for slots or memory, when a completion has made room.
//!
//! # Locks
//!
//! - `polling`: one thread polls at a time.
//! - `batch`: one thread posts at a time. [`try_flush`](QueuePair::try_flush) never waits for it:
//!   the thread that has it also posts the messages of others ([`HandoffLock`]).
//! - `ledger` and `failure`: held for a few instructions.
//!
//! They are taken in this order. `polling` comes first: a handler of an immediate may flush, and
//! add credits to the ledger. The locks of a [`MessageSource`] come last: its methods are called
//! with any of these locks held, and it must not call into the queue pair while it holds one of its
//! own.
//!
//! # Wake-ups
//!
//! The ledger notes that messages wait for room (`is_blocked`). What makes room takes that note
//! under the same lock and wakes the task, so that no wake-up is lost. `wake` keeps one
//! notification for the task until it waits. `progress` reaches only those that wait already, who
//! therefore register before they look.

mod ping;
mod polling;
mod receiving;
mod sending;

use std::ops::ControlFlow;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use multinet_verbs::{
    self as verbs, Capacities, CompletionQueue, MemoryRegion, RemoteAddress, SourceGid, Write,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use self::polling::Polling;
use self::sending::{SendBatch, ZeroCopyPayload};
use super::device::CompletionHandler;
use super::layout::{Immediate, Layout};
use super::ledger::{RemoteSlots, RingReader, SendQueue, StagedRange, StagingBuffer, Violation, WorkRequest};
use super::receive_memory::ReceiveMemory;
use super::stripes::WorkRequestId;
use super::unusable::QueuePairError;
use crate::blocking::drop_blocking;
use crate::stream::{HandoffLock, MessageSource};

/// Batches that one caller posts before it leaves the rest to the task. A caller that sends one
/// frame must not post those of all others without end.
const MAX_BATCHES: usize = 4;

/// A connection over one queue pair, and extra ones for stripes. It fails with an `E`.
pub(crate) struct QueuePair<E> {
    /// The first queue pair, and those that only carry stripes; empty once they are destroyed.
    pairs: RwLock<Vec<verbs::QueuePair>>,
    /// Number of queue pairs beside the first, which carry stripes.
    pub(crate) extra_pairs: usize,
    local: Local,
    peer: RemoteMemory,
    ledger: Mutex<QueuePairLedger>,
    batch: HandoffLock<SendBatch>,
    polling: Mutex<Polling>,
    failure: Mutex<Option<E>>,
    /// Memory of the program could not be registered, so all payloads are copied. Only a hint: a
    /// thread that reads an old value registers, or fails to, once more.
    copies_only: AtomicBool,
    /// The connection has failed or was closed: nothing more is posted. Only a hint: what is posted
    /// nevertheless fails, or finds the queue pairs gone.
    is_closed: AtomicBool,
    /// Wakes the task of [`run`](Self::run): messages can be posted, or the connection has failed.
    wake: Notify,
    /// Wakes [`flush`](Self::flush): a request has completed, or the connection has failed.
    progress: Notify,
    /// The two ends, in words, for error messages.
    names: String,
}

/// Our end of a connection: its completion queue, its capacities and its memory.
pub(super) struct Local {
    pub(super) completions: CompletionQueue,
    /// The number under which the completion queue reports to the device's thread.
    pub(super) queue_number: u64,
    /// The most requests in flight on the first queue pair.
    pub(super) capacities: Capacities,
    /// The most completions that all queue pairs can have at a time.
    pub(super) max_completions: usize,
    /// The slots or the ring that the peer writes to.
    pub(super) memory: ReceiveMemory,
    /// The registered memory that messages are copied to and sent from.
    pub(super) staging: MemoryRegion,
    pub(super) staging_size: usize,
    pub(super) source: SourceGid,
}

/// The memory of the peer that we write to: its slots or its ring.
pub(super) struct RemoteMemory {
    pub(super) address: RemoteAddress,
    pub(super) layout: Layout,
    /// Separate memory for payloads, if the peer receives them in a GPU.
    pub(super) payloads: Option<RemotePayloads>,
}

/// Memory in the peer's GPU for payloads alone, one place for each slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePayloads {
    pub(super) address: RemoteAddress,
    pub(super) stride: usize,
}

/// The credits and the free memory of a connection, all under one lock.
struct QueuePairLedger {
    queue: SendQueue<PostedMessage>,
    staging: StagingBuffer,
    remote_slots: RemoteSlots,
    /// The read position in our ring, which only a sender's end has.
    ring_reader: RingReader,
    /// Halves of our ring that have been read and not acknowledged to the other side.
    owed_ring_credits: u32,
    /// Whether messages were taken from the source that there was no room to post.
    is_waiting: bool,
    /// Messages wait for room, or for more messages, and nothing has completed or become free
    /// since.
    is_blocked: bool,
}

/// The memory of a posted message, in use until its request completes; `None` for an immediate
/// alone.
type PostedMessage = Option<SentMemory>;

/// The memory from which the device reads a posted message.
struct SentMemory {
    staged: StagedRange,
    // Held, since the device reads from it.
    _zero_copy: Option<ZeroCopyPayload>,
}

impl RemotePayloads {
    /// Returns the remote address of the place for the payload of a slot.
    fn slot(&self, slot: u16) -> RemoteAddress {
        sending::offset_by(self.address, usize::from(slot) * self.stride)
    }
}

impl<E> QueuePair<E> {
    pub(super) fn new(
        pairs: Vec<verbs::QueuePair>,
        local: Local,
        peer: RemoteMemory,
        remote_slots: RemoteSlots,
        names: String,
    ) -> Self {
        // With separate payloads, a message takes two writes.
        let writes = local.capacities.send;
        let messages = if peer.payloads.is_some() { writes / 2 } else { writes };
        let extra_pairs = pairs.len().saturating_sub(1);
        let ledger = QueuePairLedger {
            queue: SendQueue::new(messages, extra_pairs),
            staging: StagingBuffer::new(local.staging_size),
            remote_slots,
            ring_reader: RingReader::new(local.memory.layout.count),
            owed_ring_credits: 0,
            is_waiting: false,
            is_blocked: false,
        };
        Self {
            pairs: RwLock::new(pairs),
            extra_pairs,
            local,
            peer,
            ledger: Mutex::new(ledger),
            batch: HandoffLock::new(SendBatch::default()),
            polling: Mutex::default(),
            failure: Mutex::new(None),
            copies_only: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            wake: Notify::new(),
            progress: Notify::new(),
            names,
        }
    }

    /// Registers the handler that the device's thread calls for completions, until
    /// [`hang_up`](Self::hang_up).
    pub(crate) fn watch(&self, handler: Weak<dyn CompletionHandler>) {
        self.local.memory.device.register_handler(self.local.queue_number, handler.clone());
        self.arm();
        // Completions from before the queue was armed are not reported.
        if let Some(handler) = handler.upgrade() {
            self.poll_all(|| handler.poll());
        }
    }

    pub(crate) fn arm(&self) {
        // It fails only where polling fails too, which reports the reason.
        let _ = self.local.completions.arm();
    }

    /// Closes the connection and frees what it holds: the peer's device gets no answer from then
    /// on.
    pub(crate) async fn hang_up(&self) {
        self.stop();
        self.local.memory.device.remove_handler(self.local.queue_number);
        let pairs = std::mem::take(&mut *self.pairs.write());
        drop_blocking(pairs).await;
        let domain = self.local.memory.domain.clone();
        // If the runtime ends first, dropping the last handle of the memory ends its registration.
        let _ = tokio::task::spawn_blocking(move || domain.release()).await;
        // The queue pairs are gone, so the device reads from none of this any more.
        let unposted = std::mem::take(&mut self.batch.lock().messages);
        let uncompleted = self.ledger.lock().queue.clear();
        // Memory may be given back here, so no lock is held.
        drop((unposted, uncompleted));
    }

    /// Stops posting messages and polling completions, for good.
    pub(crate) fn stop(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.polling.lock().is_stopped = true;
    }

    fn immediate(&self, request: WorkRequest, immediate: Immediate) -> Write<'static> {
        Write {
            id: WorkRequestId::Message(request.id).encode(),
            sge: None,
            zero_copy: None,
            remote: self.peer.address,
            immediate: Some(immediate.encode()),
            is_signalled: request.is_signalled,
        }
    }

    /// Posts writes to the queue pair with this number, counted from 0. Does nothing once they are
    /// destroyed: the peer will notice that the connection has ended.
    fn post(&self, pair: usize, writes: &[Write<'_>]) -> Result<(), QueuePairError> {
        let pairs = self.pairs.read();
        let posted = pairs.get(pair).map_or(Ok(()), |pair| pair.post_writes(writes));
        posted.map_err(|error| self.failure_of(&error, error.hint()))
    }

    /// Wakes the task if messages wait for what the caller has made free.
    fn unblock(&self, ledger: &mut QueuePairLedger) {
        if std::mem::take(&mut ledger.is_blocked) {
            self.wake.notify_one();
        }
    }

    /// Describes a failure of this connection by its two ends, what failed, and a hint at what to
    /// do.
    fn failure_of(&self, what: &dyn std::fmt::Display, hint: Option<&str>) -> QueuePairError {
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        QueuePairError(format!("{}: {what}{hint}", self.names))
    }
}

impl<E: From<QueuePairError> + From<Violation>> QueuePair<E> {
    /// Posts the messages of the source, as far as there is room. It never waits.
    pub(crate) fn try_flush(&self, source: &impl MessageSource) {
        let mut batches = 0;
        let post = |batch: &mut SendBatch| {
            batches += 1;
            if batches > MAX_BATCHES || self.is_closed.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            match self.post_batch(batch, source) {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    self.fail(failure.into());
                    ControlFlow::Break(())
                }
            }
        };
        // Without room there is nothing to do here: the completion that makes room wakes the task.
        let has_more = || {
            let QueuePairLedger { owed_ring_credits, is_waiting, is_blocked, .. } = *self.ledger.lock();
            !is_blocked && (is_waiting || owed_ring_credits > 0 || source.has_work())
        };
        if self.batch.run(post, has_more).is_break() {
            self.wake.notify_one();
        }
    }

    /// Posts the messages of the source as [`try_flush`](Self::try_flush) does, if nothing is in
    /// flight. Otherwise the next completion wakes the task, which then posts what has come
    /// together with fewer calls and completions.
    pub(crate) fn try_flush_later(&self, source: &impl MessageSource) {
        {
            let mut ledger = self.ledger.lock();
            // The last request in flight is always signalled, and its completion is handled under
            // this lock as well. So it either has emptied the queue, or will see `is_blocked`.
            if !ledger.queue.is_empty() {
                ledger.is_blocked = true;
                return;
            }
        }
        self.try_flush(source);
    }

    /// Posts all messages of the source, and waits until they have arrived or the connection ends.
    pub(crate) async fn flush(&self, source: &impl MessageSource) {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            self.try_flush(source);
            if self.is_closed.load(Ordering::Relaxed) || self.is_idle(source) {
                return;
            }
            // A message that came while `is_idle` held the batch has not been posted by its caller.
            self.try_flush(source);
            progress.await;
        }
    }

    fn is_idle(&self, source: &impl MessageSource) -> bool {
        // Waits for a thread that is posting, which has messages that are in no queue yet.
        let _batch = self.batch.lock();
        let ledger = self.ledger.lock();
        let is_posted = ledger.queue.is_empty() && !ledger.is_waiting && ledger.owed_ring_credits == 0;
        is_posted && !source.has_work()
    }

    /// Posts what could not be posted at once. Returns when the connection has failed.
    pub(crate) async fn run(&self, source: &impl MessageSource) -> E {
        loop {
            self.wake.notified().await;
            // Wake-ups may follow each other without a pause; let other tasks run in between.
            tokio::task::consume_budget().await;
            if let Some(failure) = self.failure.lock().take() {
                return failure;
            }
            if !self.is_closed.load(Ordering::Relaxed) {
                self.try_flush(source);
            }
        }
    }

    /// Fails the connection for a reason from outside, such as the end of the polling thread.
    pub(crate) fn fail_with_reason(&self, reason: &str) {
        self.fail(self.failure_of(&reason, None).into());
    }

    /// Fails the connection, which [`run`](Self::run) returns. Of several failures, the first is
    /// kept.
    fn fail(&self, failure: E) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.failure.lock().get_or_insert(failure);
        self.wake.notify_one();
        self.progress.notify_waiters();
    }
}

impl<E> Drop for QueuePair<E> {
    fn drop(&mut self) {
        self.local.memory.device.remove_handler(self.local.queue_number);
        self.local.memory.domain.retire();
    }
}
