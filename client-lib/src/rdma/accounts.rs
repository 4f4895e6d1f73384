//! What one end of a connection keeps account of, so that no queue overflows, no place is written to that the other side still reads, and
//! nobody has to ask.
//!
//! Pure: no device. Each end writes to places of the other side's memory, and gets a completion for some of what it has posted.
//!
//! - A place is used again only after the other side has said that it has done with it ([`Places`]).
//! - So many immediates can be under way, and so many receive requests are posted for them: nobody is ever found not ready.
//! - A completion is asked for before the send queue is full, and for the last of a batch ([`SendQueue`]).
//! - What a frame is sent from is used again only after all its parts have been done, by whichever pair ([`SendQueue`]).

use std::collections::VecDeque;

use thiserror::Error;

/// After so many requests without one, a completion is asked for: each costs the device a write, and the processor a look.
const UNSIGNALLED: u16 = 16;

/// After so many bytes without one, a completion is asked for, or the memory that they are sent from would be missed.
const UNSIGNALLED_BYTES: usize = 64 << 10;

/// What the other side has done that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    #[error("it tells of place {place}, which {why}")]
    Place { place: u32, why: &'static str },
    #[error("it says that it has heard more than it was told")]
    Heard,
    #[error("an immediate of {0:#010x}, which means nothing")]
    Immediate(u32),
    #[error("a message without an immediate")]
    NoImmediate,
    #[error("it tries the way again")]
    Ping,
    #[error("it answers by queue pair {0}, which carries parts of frames")]
    Pair(u8),
    #[error("a part of the frame in slot {slot} comes twice by queue pair {pair}")]
    Part { slot: u16, pair: u8 },
}

/// What has been posted to a send queue and not completed. Requests complete in their order.
///
/// Further pairs may each carry a part of a request, in the same order, but at their own pace: a request is done when all its parts are.
#[derive(Debug)]
pub(crate) struct SendQueue<T> {
    depth: usize,
    posted: VecDeque<Request<T>>,
    /// The number of the next request.
    next: u64,
    /// All before this one are done, but perhaps for their parts.
    done: u64,
    /// The number of the last request that has had parts, counted by themselves from 1.
    divided: u64,
    /// How far each further pair is with them.
    parts_done: Vec<u64>,
    unsignalled: u16,
    unsignalled_bytes: usize,
}

#[derive(Debug)]
struct Request<T> {
    what: T,
    /// Every further pair has to be so far.
    divided: u64,
}

/// A request that is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub(crate) id: u64,
    pub(crate) is_signalled: bool,
    /// The number of its parts, if it has any.
    pub(crate) parts: Option<u64>,
}

impl<T> SendQueue<T> {
    /// Of so many requests, and beside so many further pairs.
    pub(crate) fn new(depth: u16, further: usize) -> Self {
        let depth = depth.into();
        Self {
            depth,
            posted: VecDeque::with_capacity(depth),
            next: 0,
            done: 0,
            divided: 0,
            parts_done: vec![0; further],
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

    /// Takes a request of so many bytes in, if there is room. `is_last`: as far as is known, no other follows.
    pub(crate) fn post(&mut self, what: T, bytes: usize, is_last: bool) -> Option<Posting> {
        self.post_divided(what, bytes, is_last, false)
    }

    /// As [`post`](Self::post), perhaps with a part for each further pair.
    pub(crate) fn post_divided(
        &mut self,
        what: T,
        bytes: usize,
        is_last: bool,
        is_divided: bool,
    ) -> Option<Posting> {
        if !self.has_room_for(1) {
            return None;
        }
        self.divided += u64::from(is_divided);
        let (divided, parts) = (self.divided, is_divided.then_some(self.divided));
        self.posted.push_back(Request { what, divided });
        let id = self.next;
        self.next += 1;
        self.unsignalled += 1;
        self.unsignalled_bytes += bytes;
        let is_signalled = is_last
            || !self.has_room_for(1)
            || self.unsignalled >= UNSIGNALLED
            || self.unsignalled_bytes >= UNSIGNALLED_BYTES;
        if is_signalled {
            (self.unsignalled, self.unsignalled_bytes) = (0, 0);
        }
        Some(Posting { id, is_signalled, parts })
    }

    /// Nothing of it will be done any more: what it was.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        self.done = self.next;
        self.posted.drain(..).map(|request| request.what).collect()
    }

    /// The request with this number, and so all before it, have been done, but perhaps for their parts: what was, and is no more, under way.
    pub(crate) fn completed(&mut self, id: u64) -> impl Iterator<Item = T> {
        self.done = self.done.max(id.saturating_add(1).min(self.next));
        self.leave()
    }

    /// A further pair, from 0, has done its part with this number, and so all before it.
    pub(crate) fn part_completed(&mut self, pair: usize, number: u64) -> impl Iterator<Item = T> {
        if let Some(done) = self.parts_done.get_mut(pair) {
            *done = (*done).max(number);
        }
        self.leave()
    }

    fn leave(&mut self) -> impl Iterator<Item = T> {
        // None of those that are done is left, but for the parts of some: this is no later than what is done.
        let first = self.next - self.posted.len() as u64;
        let parts = self.parts_done.iter().copied().min().unwrap_or(u64::MAX);
        let is_done = |request: &&Request<T>| request.divided <= parts;
        let by_first = self.posted.iter().take((self.done - first) as usize);
        let count = by_first.take_while(is_done).count();
        self.posted.drain(..count).map(|request| request.what)
    }
}

/// A piece of memory that requests are sent from, used round and round.
#[derive(Debug)]
pub(crate) struct Staging {
    capacity: usize,
    /// What has been taken since the beginning, gaps at the end of a round included.
    taken: u64,
    freed: u64,
}

/// A part of it. Parts are freed in the order in which they were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) offset: usize,
    until: u64,
}

impl Staging {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, taken: 0, freed: 0 }
    }

    /// Room for so many bytes in a row, if there is. With nothing under way there is for all that it can hold.
    pub(crate) fn take(&mut self, length: usize) -> Option<Staged> {
        if self.taken == self.freed {
            // Nothing is under way: begin at the beginning, where all of it is in a row.
            (self.taken, self.freed) = (0, 0);
        }
        let offset = (self.taken % self.capacity as u64) as usize;
        let gap = if length > self.capacity - offset { self.capacity - offset } else { 0 };
        let until = self.taken + (gap + length) as u64;
        if until - self.freed > self.capacity as u64 {
            return None;
        }
        self.taken = until;
        Some(Staged { offset: if gap > 0 { 0 } else { offset }, until })
    }

    pub(crate) fn free(&mut self, staged: Staged) {
        self.freed = staged.until;
    }
}

/// Places of the other side that may be written to.
#[derive(Debug)]
pub(crate) enum Places {
    /// A receiver's slots, which it gives back in any order.
    Slots { free: Vec<u16>, is_free: Vec<bool> },
    /// A ring, of which the other side says after every half how far it has read.
    Ring { count: u16, written: u64, heard: u64 },
}

impl Places {
    pub(crate) fn slots(count: u16) -> Self {
        // The first ones first: what was written to last is in the caches still.
        Self::Slots { free: (0..count).rev().collect(), is_free: vec![true; count.into()] }
    }

    pub(crate) fn ring(count: u16) -> Self {
        Self::Ring { count, written: 0, heard: 0 }
    }

    pub(crate) fn has_one(&self) -> bool {
        match self {
            Self::Slots { free, .. } => !free.is_empty(),
            Self::Ring { count, written, heard } => written - heard < u64::from(*count),
        }
    }

    /// One that may be written to.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if !self.has_one() {
            return None;
        }
        match self {
            Self::Slots { free, is_free } => {
                let slot = free.pop()?;
                is_free[usize::from(slot)] = false;
                Some(slot)
            }
            Self::Ring { count, written, .. } => {
                let place = (*written % u64::from(*count)) as u16;
                *written += 1;
                Some(place)
            }
        }
    }

    /// The receiver has done with a slot.
    pub(crate) fn freed(&mut self, slot: u16) -> Result<(), Violation> {
        let place = u32::from(slot);
        let Self::Slots { free, is_free } = self else {
            return Err(Violation::Place { place, why: "is of no slot" });
        };
        match is_free.get_mut(usize::from(slot)) {
            None => Err(Violation::Place { place, why: "there is not" }),
            Some(true) => Err(Violation::Place { place, why: "is free already" }),
            Some(is_free) => {
                *is_free = true;
                free.push(slot);
                Ok(())
            }
        }
    }

    /// The other side has read another half of the ring.
    pub(crate) fn heard(&mut self) -> Result<(), Violation> {
        match self {
            Self::Ring { count, written, heard } if *heard + half(*count) <= *written => {
                *heard += half(*count);
                Ok(())
            }
            _ => Err(Violation::Heard),
        }
    }
}

/// How far we have read a ring that the other side writes to.
#[derive(Debug)]
pub(crate) struct Reading {
    count: u16,
    read: u64,
}

impl Reading {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, read: 0 }
    }

    /// Something has come to a place, and has been read: whether the other side is to be told, as another half has.
    pub(crate) fn arrived(&mut self, place: u32) -> Result<bool, Violation> {
        if u64::from(place) != self.read % u64::from(self.count) {
            return Err(Violation::Place { place, why: "is not the next one" });
        }
        self.read += 1;
        Ok(self.read.is_multiple_of(half(self.count)))
    }
}

fn half(count: u16) -> u64 {
    u64::from(count / 2).max(1)
}

/// Our own slots: those that their sender may write to, and those that it has yet to hear are free.
#[derive(Debug)]
pub(crate) struct OwnSlots {
    is_theirs: Vec<bool>,
    freed: VecDeque<u16>,
    in_use: u32,
    /// The most at a time, lately.
    peak: u32,
}

impl OwnSlots {
    pub(crate) fn new(count: u16) -> Self {
        let (is_theirs, freed) = (vec![true; count.into()], VecDeque::with_capacity(count.into()));
        Self { is_theirs, freed, in_use: 0, peak: 0 }
    }

    /// Whether our code has let go of all that has come.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_use == 0
    }

    /// The most that were in use at a time, lately.
    pub(crate) fn peak(&self) -> u32 {
        self.peak
    }

    /// Some time has passed.
    pub(crate) fn forget_peak(&mut self) {
        self.peak = self.in_use.max(self.peak / 2);
    }

    /// A frame has come to a slot.
    pub(crate) fn landed(&mut self, slot: u16) -> Result<(), Violation> {
        let place = slot.into();
        match self.is_theirs.get_mut(usize::from(slot)) {
            None => Err(Violation::Place { place, why: "there is not" }),
            Some(false) => Err(Violation::Place { place, why: "it has not been told is free" }),
            Some(is_theirs) => {
                *is_theirs = false;
                self.in_use += 1;
                self.peak = self.peak.max(self.in_use);
                Ok(())
            }
        }
    }

    /// Our code has let go of what is in a slot.
    pub(crate) fn free(&mut self, slot: u16) {
        self.in_use = self.in_use.saturating_sub(1);
        self.freed.push_back(slot);
    }

    /// A slot that the sender is told of now.
    pub(crate) fn say(&mut self) -> Option<u16> {
        let slot = self.freed.pop_front()?;
        self.is_theirs[usize::from(slot)] = true;
        Some(slot)
    }
}

#[cfg(test)]
mod tests;
