//! What one end of a connection keeps account of, so that no queue overflows, no place is written to that the other side still reads, and
//! nobody has to ask.
//!
//! Pure: no device. Each end writes to places of the other side's memory, and gets a completion for some of what it has posted.
//!
//! - A place is used again only after the other side has said that it has done with it ([`Places`]).
//! - So many immediates can be under way, and so many receive requests are posted for them: nobody is ever found not ready.
//! - A completion is asked for before the send queue is full, and for the last of a batch ([`SendQueue`]).

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
}

/// What has been posted to a send queue and not completed. Requests complete in their order.
#[derive(Debug)]
pub(crate) struct SendQueue<T> {
    depth: usize,
    posted: VecDeque<T>,
    /// The number of the next request.
    next: u64,
    unsignalled: u16,
    unsignalled_bytes: usize,
}

/// A request that is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub(crate) id: u64,
    pub(crate) is_signalled: bool,
}

impl<T> SendQueue<T> {
    pub(crate) fn new(depth: u16) -> Self {
        let (depth, next) = (depth.into(), 0);
        Self { depth, posted: VecDeque::with_capacity(depth), next, unsignalled: 0, unsignalled_bytes: 0 }
    }

    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.posted.len() + count <= self.depth
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Takes a request of so many bytes in, if there is room. `is_last`: as far as is known, no other follows.
    pub(crate) fn post(&mut self, what: T, bytes: usize, is_last: bool) -> Option<Posting> {
        if !self.has_room_for(1) {
            return None;
        }
        self.posted.push_back(what);
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
        Some(Posting { id, is_signalled })
    }

    /// Nothing of it will be done any more: what it was.
    pub(crate) fn clear(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.posted)
    }

    /// The request with this number, and so all before it, have been done: what they were.
    pub(crate) fn completed(&mut self, id: u64) -> impl Iterator<Item = T> {
        let first = self.next - self.posted.len() as u64;
        let count = id.saturating_add(1).saturating_sub(first).min(self.posted.len() as u64);
        // Not more than there are.
        self.posted.drain(..count as usize)
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
}

impl OwnSlots {
    pub(crate) fn new(count: u16) -> Self {
        Self { is_theirs: vec![true; count.into()], freed: VecDeque::with_capacity(count.into()) }
    }

    /// A frame has come to a slot.
    pub(crate) fn landed(&mut self, slot: u16) -> Result<(), Violation> {
        let place = slot.into();
        match self.is_theirs.get_mut(usize::from(slot)) {
            None => Err(Violation::Place { place, why: "there is not" }),
            Some(false) => Err(Violation::Place { place, why: "it has not been told is free" }),
            Some(is_theirs) => {
                *is_theirs = false;
                Ok(())
            }
        }
    }

    /// Our code has let go of what is in a slot.
    pub(crate) fn free(&mut self, slot: u16) {
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_other_side_must_not_is_noticed() {
        let mut places = Places::slots(2);
        assert!(places.freed(0).is_err() && places.freed(2).is_err() && places.heard().is_err());
        assert_eq!((places.take(), places.take(), places.take()), (Some(0), Some(1), None));
        assert_eq!((places.freed(1), places.take()), (Ok(()), Some(1)));
        let mut ring = Places::ring(4);
        assert!(ring.heard().is_err() && ring.freed(0).is_err());
        ring.take();
        assert_eq!(ring.heard(), Err(Violation::Heard));
        let mut own = OwnSlots::new(2);
        assert_eq!(own.landed(1), Ok(()));
        assert!(own.landed(1).is_err() && own.landed(2).is_err());
        own.free(1);
        assert!(own.landed(1).is_err(), "its sender has not heard of it");
        assert_eq!((own.say(), own.landed(1), own.say()), (Some(1), Ok(()), None));
        assert!(Reading::new(4).arrived(1).is_err());
    }

    /// One thing that happens.
    #[derive(Clone, Debug)]
    enum Step {
        /// The sender sends a batch of frames of so many bytes, as many of them as it may.
        Send(Vec<usize>),
        /// The next request reaches the receiver.
        Land,
        /// The sender looks at its completions.
        Poll,
        /// The receiver's code lets go of one of its frames.
        Drop(usize),
        /// The receiver says what is free.
        Say,
        /// What it said reaches the sender.
        Hear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => prop::collection::vec(1..100_usize, 1..5).prop_map(Step::Send),
            4 => Just(Step::Land),
            2 => Just(Step::Poll),
            3 => any::<usize>().prop_map(Step::Drop),
            3 => Just(Step::Say),
            2 => Just(Step::Hear),
        ];
        prop::collection::vec(step, 0..600)
    }

    const SLOTS: u16 = 5;
    const RING: u16 = 4;
    const CAPACITY: usize = 256;
    const DEPTH: u16 = 4;

    /// Two ends and what is under way between them. Everything that a device would refuse, or overwrite, fails the test.
    struct World {
        places: Places,
        queue: SendQueue<Staged>,
        staging: Staging,
        /// Bytes that the device may still read.
        in_use: VecDeque<(usize, usize)>,
        /// Requests under way: number, slot, whether it is signalled.
        sent: VecDeque<(Posting, u16)>,
        completions: VecDeque<u64>,
        own: OwnSlots,
        held: Vec<u16>,
        ring: Places,
        reading: Reading,
        said: VecDeque<(u16, u16)>,
        heard_under_way: u32,
    }

    impl World {
        fn new() -> Self {
            Self {
                places: Places::slots(SLOTS),
                queue: SendQueue::new(DEPTH),
                staging: Staging::new(CAPACITY),
                in_use: VecDeque::new(),
                sent: VecDeque::new(),
                completions: VecDeque::new(),
                own: OwnSlots::new(SLOTS),
                held: Vec::new(),
                ring: Places::ring(RING),
                reading: Reading::new(RING),
                said: VecDeque::new(),
                heard_under_way: 0,
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Send(frames) => self.send(&frames),
                Step::Land => {
                    if let Some((posting, slot)) = self.sent.pop_front() {
                        self.own.landed(slot).expect("a slot that is free");
                        self.held.push(slot);
                        if posting.is_signalled {
                            self.completions.push_back(posting.id);
                        }
                    }
                }
                Step::Poll => {
                    if let Some(id) = self.completions.pop_front() {
                        let done: Vec<_> = self.queue.completed(id).collect();
                        assert!(!done.is_empty());
                        for staged in done {
                            self.staging.free(staged);
                            self.in_use.pop_front();
                        }
                    }
                }
                Step::Drop(which) => {
                    if !self.held.is_empty() {
                        let slot = self.held.swap_remove(which % self.held.len());
                        self.own.free(slot);
                    }
                }
                Step::Say => {
                    if self.ring.has_one()
                        && let Some(slot) = self.own.say()
                    {
                        self.said.push_back((self.ring.take().expect("there is one"), slot));
                        assert!(self.said.len() <= RING.into());
                    }
                }
                Step::Hear => {
                    if let Some((place, slot)) = self.said.pop_front() {
                        self.places.freed(slot).expect("it was in use");
                        if self.reading.arrived(place.into()).expect("in order") {
                            self.heard_under_way += 1;
                            assert!(self.heard_under_way <= 2, "receive requests for two are there");
                        }
                    } else if self.heard_under_way > 0 {
                        self.heard_under_way -= 1;
                        self.ring.heard().expect("it was told that much");
                    }
                }
            }
        }

        fn send(&mut self, frames: &[usize]) {
            let mut batch = Vec::new();
            for &bytes in frames {
                if !(self.places.has_one() && self.queue.has_room_for(batch.len() + 1)) {
                    break;
                }
                let Some(staged) = self.staging.take(bytes) else { break };
                assert!(staged.offset + bytes <= CAPACITY);
                let overlaps = |&(offset, length): &(usize, usize)| {
                    offset < staged.offset + bytes && staged.offset < offset + length
                };
                assert!(!self.in_use.iter().any(overlaps), "bytes that the device still reads");
                self.in_use.push_back((staged.offset, bytes));
                batch.push((staged, bytes, self.places.take().expect("there is one")));
            }
            let count = batch.len();
            for (number, (staged, bytes, slot)) in (1..).zip(batch) {
                let posting = self.queue.post(staged, bytes, number == count).expect("there is room");
                self.sent.push_back((posting, slot));
            }
            assert!(self.sent.len() <= SLOTS.into());
        }

        /// Everything goes on until nothing is under way.
        fn settle(&mut self) {
            for _ in 0..20 {
                for step in [Step::Land, Step::Poll, Step::Drop(0), Step::Say, Step::Hear] {
                    self.step(step);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_overflows_and_nothing_stands_still(steps in steps()) {
            let mut world = World::new();
            steps.into_iter().for_each(|step| world.step(step));
            world.settle();
            prop_assert!(world.queue.is_empty() && world.in_use.is_empty());
            prop_assert!(world.staging.take(CAPACITY).is_some(), "all of it is free");
            let free: BTreeSet<_> = std::iter::from_fn(|| world.places.take()).collect();
            prop_assert_eq!(free.len(), usize::from(SLOTS));
        }
    }
}
