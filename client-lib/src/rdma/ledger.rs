//! Bookkeeping of one end of a connection: which slots, which memory and which requests are free.
//!
//! Nothing here touches a device. Each end writes to slots in the other side's memory, and gets a
//! completion for some of the requests that it has posted.
//!
//! - [`RemoteSlots`]: a slot is written to again only after the other side has released it.
//! - Receive requests: as many are posted as the other side may have immediates in flight, so a
//!   sender never finds its peer not ready (RNR).
//! - [`SendQueue`]: a completion is requested before the send queue is full, and for the last
//!   request of a batch. The memory of a frame is used again only after all its stripes have
//!   completed, on every queue pair that carries one.

use std::collections::VecDeque;

use thiserror::Error;

/// Requests between two completions. Each completion costs the device a write and the processor a
/// poll.
const MAX_UNSIGNALLED: u16 = 16;

/// Bytes between two completions. Until a completion comes, the staging memory of the requests
/// before it stays in use.
const MAX_UNSIGNALLED_BYTES: usize = 64 << 10;

/// A breach of the protocol by the other side, found in what it writes or acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    #[error("it names slot {slot}, which {why}")]
    Slot { slot: u32, why: &'static str },
    #[error("it acknowledges more ring entries than it was sent")]
    RingCredit,
    #[error("it sends the immediate {0:#010x}, which has no meaning")]
    Immediate(u32),
    #[error("it sends a message without an immediate")]
    NoImmediate,
    #[error("it sends a second ping")]
    Ping,
    #[error("it answers on queue pair {0}, which only carries stripes of frames")]
    QueuePair(u8),
    #[error("it sends the stripe of queue pair {pair} for slot {slot} twice")]
    Stripe { slot: u16, pair: u8 },
}

/// The requests of a send queue that have been posted and are not done.
///
/// Requests of one queue pair complete in the order in which they were posted. Each extra queue
/// pair may carry one stripe of a request, in the same order but at its own pace. A request is done
/// when it has completed on the first queue pair and all its stripes have completed.
#[derive(Debug)]
pub(crate) struct SendQueue<T> {
    depth: usize,
    posted: VecDeque<Request<T>>,
    /// The number that the next posted request gets.
    next: u64,
    /// The number before which all requests have completed on the first queue pair.
    done: u64,
    /// How many striped requests have been posted. Stripes are numbered by this count, from 1.
    striped: u64,
    /// For each extra queue pair, the number of the last stripe that has completed.
    stripes_done: Vec<u64>,
    unsignalled: u16,
    unsignalled_bytes: usize,
}

#[derive(Debug)]
struct Request<T> {
    content: T,
    /// The number of the last stripe that was posted up to this request.
    striped: u64,
}

/// The parameters of a send request that [`SendQueue`] has counted and the caller is to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkRequest {
    pub(crate) id: u64,
    pub(crate) is_signalled: bool,
    /// The number that its stripes on the extra queue pairs have; `None` if the message is not
    /// striped.
    pub(crate) stripe: Option<u64>,
}

impl<T> SendQueue<T> {
    /// Creates an empty queue for `depth` requests, beside `extra_pairs` queue pairs for stripes.
    pub(crate) fn new(depth: u16, extra_pairs: usize) -> Self {
        let depth = depth.into();
        Self {
            depth,
            posted: VecDeque::with_capacity(depth),
            next: 0,
            done: 0,
            striped: 0,
            stripes_done: vec![0; extra_pairs],
            unsignalled: 0,
            unsignalled_bytes: 0,
        }
    }

    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.posted.len() + count <= self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Adds a request of `bytes` bytes, if the queue has room. `is_last` tells that no other
    /// request is known to follow.
    pub(crate) fn post(&mut self, content: T, bytes: usize, is_last: bool) -> Option<WorkRequest> {
        self.post_striped(content, bytes, is_last, false)
    }

    /// Adds a request as [`post`](Self::post) does, with a stripe for each extra queue pair if
    /// `is_striped`.
    pub(crate) fn post_striped(
        &mut self,
        content: T,
        bytes: usize,
        is_last: bool,
        is_striped: bool,
    ) -> Option<WorkRequest> {
        if !self.has_room_for(1) {
            return None;
        }
        self.striped += u64::from(is_striped);
        let (striped, stripe) = (self.striped, is_striped.then_some(self.striped));
        self.posted.push_back(Request { content, striped });
        let id = self.next;
        self.next += 1;
        self.unsignalled += 1;
        self.unsignalled_bytes += bytes;
        // A request that fills the queue is always signalled. Otherwise the queue would wait for a
        // completion that never comes.
        let is_signalled = is_last
            || !self.has_room_for(1)
            || self.unsignalled >= MAX_UNSIGNALLED
            || self.unsignalled_bytes >= MAX_UNSIGNALLED_BYTES;
        if is_signalled {
            (self.unsignalled, self.unsignalled_bytes) = (0, 0);
        }
        Some(WorkRequest { id, is_signalled, stripe })
    }

    /// Removes all requests, as a closed connection completes none, and returns their contents.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        self.done = self.next;
        self.posted.drain(..).map(|request| request.content).collect()
    }

    /// Notes that the first queue pair has completed this request and all before it. Returns the
    /// contents of the requests that are done now.
    pub(crate) fn completed(&mut self, id: u64) -> impl Iterator<Item = T> {
        self.done = self.done.max(id.saturating_add(1).min(self.next));
        self.drain_done()
    }

    /// Notes that an extra queue pair, counted from 0, has completed the stripe with this number
    /// and all before it. Returns the contents of the requests that are done now.
    pub(crate) fn stripe_completed(&mut self, pair: usize, number: u64) -> impl Iterator<Item = T> {
        if let Some(done) = self.stripes_done.get_mut(pair) {
            *done = (*done).max(number);
        }
        self.drain_done()
    }

    fn drain_done(&mut self) -> impl Iterator<Item = T> {
        // A request leaves the queue only after it has completed on the first queue pair. So the
        // oldest one that is left is numbered `done` at most, and the subtraction cannot underflow.
        let oldest = self.next - self.posted.len() as u64;
        let stripes = self.stripes_done.iter().copied().min().unwrap_or(u64::MAX);
        let is_done = |request: &&Request<T>| request.striped <= stripes;
        let by_first = self.posted.iter().take((self.done - oldest) as usize);
        let count = by_first.take_while(is_done).count();
        self.posted.drain(..count).map(|request| request.content)
    }
}

/// The free space of the memory that messages are copied to and sent from. It is used as a ring.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    capacity: usize,
    /// Bytes taken since the beginning, with the gaps that were skipped at the end of each round.
    taken: u64,
    freed: u64,
}

/// A range of a [`StagingBuffer`]. Ranges are freed in the order in which they were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagedRange {
    pub(crate) offset: usize,
    until: u64,
}

impl StagingBuffer {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, taken: 0, freed: 0 }
    }

    /// Takes `length` contiguous bytes, if they are free. If nothing is in use, the whole capacity
    /// is.
    pub(crate) fn take(&mut self, length: usize) -> Option<StagedRange> {
        if self.taken == self.freed {
            // Nothing is in use. Start at offset 0, from which the whole capacity is contiguous.
            (self.taken, self.freed) = (0, 0);
        }
        let offset = (self.taken % self.capacity as u64) as usize;
        let gap = if length > self.capacity - offset { self.capacity - offset } else { 0 };
        let until = self.taken + (gap + length) as u64;
        if until - self.freed > self.capacity as u64 {
            return None;
        }
        self.taken = until;
        Some(StagedRange { offset: if gap > 0 { 0 } else { offset }, until })
    }

    pub(crate) fn free(&mut self, staged: StagedRange) {
        self.freed = staged.until;
    }
}

/// The slots or ring entries in the other side's memory, and which of them may be written to.
#[derive(Debug)]
pub(crate) enum RemoteSlots {
    /// The frame slots of a receiver, which the receiver releases in any order.
    Slots { free: Vec<u16>, is_free: Vec<bool> },
    /// The ring entries of a sender, which it acknowledges half a ring at a time.
    Ring { count: u16, written: u64, acknowledged: u64 },
}

impl RemoteSlots {
    pub(crate) fn slots(count: u16) -> Self {
        // A stack: the slot that was released last is the likeliest to be in the receiver's caches.
        Self::Slots { free: (0..count).rev().collect(), is_free: vec![true; count.into()] }
    }

    pub(crate) fn ring(count: u16) -> Self {
        Self::Ring { count, written: 0, acknowledged: 0 }
    }

    pub(crate) fn has_free(&self) -> bool {
        match self {
            Self::Slots { free, .. } => !free.is_empty(),
            Self::Ring { count, written, acknowledged } => written - acknowledged < u64::from(*count),
        }
    }

    /// Takes a free slot or ring entry of the other side to write to, or returns `None`.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if !self.has_free() {
            return None;
        }
        match self {
            Self::Slots { free, is_free } => {
                let slot = free.pop()?;
                is_free[usize::from(slot)] = false;
                Some(slot)
            }
            Self::Ring { count, written, .. } => {
                let entry = (*written % u64::from(*count)) as u16;
                *written += 1;
                Some(entry)
            }
        }
    }

    /// Notes that the receiver has released one of its frame slots, which we may write to again.
    pub(crate) fn release(&mut self, slot: u16) -> Result<(), Violation> {
        let violation = |why| Err(Violation::Slot { slot: slot.into(), why });
        let Self::Slots { free, is_free } = self else { return violation("is no frame slot") };
        match is_free.get_mut(usize::from(slot)) {
            None => violation("does not exist"),
            Some(true) => violation("is free already"),
            Some(is_free) => {
                *is_free = true;
                free.push(slot);
                Ok(())
            }
        }
    }

    /// Notes that the sender has read another half of its ring, which we may write to again.
    pub(crate) fn add_ring_credit(&mut self) -> Result<(), Violation> {
        match self {
            Self::Ring { count, written, acknowledged } if *acknowledged + half(*count) <= *written => {
                *acknowledged += half(*count);
                Ok(())
            }
            _ => Err(Violation::RingCredit),
        }
    }
}

/// The read position in our own ring, which the other side writes to.
#[derive(Debug)]
pub(crate) struct RingReader {
    count: u16,
    read: u64,
}

impl RingReader {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, read: 0 }
    }

    /// Advances past an entry. Returns whether another half of the ring has been read, which the
    /// other side then has to be told.
    pub(crate) fn advance(&mut self, entry: u32) -> Result<bool, Violation> {
        if u64::from(entry) != self.read % u64::from(self.count) {
            return Err(Violation::Slot { slot: entry, why: "is not the next ring entry" });
        }
        self.read += 1;
        Ok(self.read.is_multiple_of(half(self.count)))
    }
}

fn half(count: u16) -> u64 {
    u64::from(count / 2).max(1)
}

/// The state of our own frame slots: writable by the sender, in use by the program, or free without
/// the sender's knowing it yet.
#[derive(Debug)]
pub(crate) struct LocalSlots {
    /// Whether the sender may write to each slot, by the number of the slot.
    is_writable: Vec<bool>,
    /// Free slots that the sender has not been told of, the oldest first.
    freed: VecDeque<u16>,
    in_use: u32,
    /// The most slots with frames in them at a time, lately: halved by
    /// [`forget_peak`](Self::forget_peak).
    peak: u32,
}

impl LocalSlots {
    pub(crate) fn new(count: u16) -> Self {
        let (is_writable, freed) = (vec![true; count.into()], VecDeque::with_capacity(count.into()));
        Self { is_writable, freed, in_use: 0, peak: 0 }
    }

    /// Returns whether the program has dropped every frame that arrived in these slots.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_use == 0
    }

    /// Returns the most slots that had frames in them at a time, lately.
    pub(crate) fn peak(&self) -> u32 {
        self.peak
    }

    /// Lets earlier use count for less: the peak falls towards the number of slots in use now.
    pub(crate) fn forget_peak(&mut self) {
        self.peak = self.in_use.max(self.peak / 2);
    }

    /// Notes that a frame has arrived in a slot, which the sender must have been free to write to.
    pub(crate) fn occupy(&mut self, slot: u16) -> Result<(), Violation> {
        let violation = |why| Err(Violation::Slot { slot: slot.into(), why });
        match self.is_writable.get_mut(usize::from(slot)) {
            None => violation("does not exist"),
            Some(false) => violation("is not the sender's to write to"),
            Some(is_writable) => {
                *is_writable = false;
                self.in_use += 1;
                self.peak = self.peak.max(self.in_use);
                Ok(())
            }
        }
    }

    /// Notes that the program has dropped the frame in a slot, of which the sender is to be told.
    pub(crate) fn free(&mut self, slot: u16) {
        self.in_use = self.in_use.saturating_sub(1);
        self.freed.push_back(slot);
    }

    /// Takes a free slot for the next message to the sender, which may write to it from then on.
    pub(crate) fn take_freed(&mut self) -> Option<u16> {
        let slot = self.freed.pop_front()?;
        self.is_writable[usize::from(slot)] = true;
        Some(slot)
    }
}

#[cfg(test)]
mod tests;
