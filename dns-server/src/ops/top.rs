//! Which names are asked for most: a sketch of bounded size (Space-Saving; Metwally, Agrawal, El Abbadi 2005).
//!
//! There are as many counters as one wants to see names, or some more. What has no counter takes over that with
//! the lowest count, with its count, which is then the most that may be wrong about it. So all that was asked
//! for in more than one of `capacity` queries is there, and every count lies between the truth and `error` more.
//!
//! What is counted is a name with its type and the code of the reply: where search paths make clients ask for
//! names that do not exist, that is what stands out. A query costs a hash and a dozen comparisons, and
//! allocates nothing.

mod merge;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher};

pub use merge::{Top, merge};

use crate::answer::query::Rcode;
use crate::store::name::MAX_NAME;

/// The most counters that a sketch has.
pub const MAX_CAPACITY: u16 = 1000;

/// The counters of one worker.
#[derive(Debug)]
pub struct Sketch {
    capacity: usize,
    total: u64,
    hasher: foldhash::fast::RandomState,
    slots: Vec<Slot>,
    /// Slots by falling count.
    order: Vec<u16>,
    /// Slots by the hash of what they count. That of two names is the same once in 2⁶⁴ pairs; they are then
    /// counted as one.
    index: HashMap<u64, u16, BuildHasherDefault<Itself>>,
}

/// One counter. Names lie in it, for they change hands often.
#[derive(Debug)]
struct Slot {
    count: u64,
    error: u64,
    hash: u64,
    /// Where it stands in the order.
    position: u16,
    qtype: u16,
    rcode: Rcode,
    name_len: u8,
    name: [u8; MAX_NAME],
}

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The lowercased name in wire format.
    pub name: Box<[u8]>,
    /// The type that was asked for.
    pub qtype: u16,
    /// What the reply said.
    pub rcode: u16,
}

/// How often it was, at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// No less than the truth.
    pub count: u64,
    /// By how much it may be more.
    pub error: u64,
}

/// What a sketch holds at a moment.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Queries counted.
    pub total: u64,
    /// What has a counter.
    pub counts: Vec<(Key, Count)>,
    /// How often anything else was asked for at most.
    pub rest: u64,
}

impl Sketch {
    /// With so many counters, 1 to [`MAX_CAPACITY`].
    pub fn new(capacity: u16) -> Self {
        let capacity = usize::from(capacity.clamp(1, MAX_CAPACITY));
        Self {
            capacity,
            total: 0,
            hasher: foldhash::fast::RandomState::default(),
            slots: Vec::with_capacity(capacity),
            order: Vec::with_capacity(capacity),
            // With twice the room the map tidies up in place and never grows.
            index: HashMap::with_capacity_and_hasher(2 * capacity + 2, BuildHasherDefault::default()),
        }
    }

    /// Counts a query. A name that is longer than DNS allows is not one.
    pub fn count(&mut self, name: &[u8], qtype: u16, rcode: Rcode) {
        if name.len() > MAX_NAME {
            return;
        }
        self.total += 1;
        let hash = self.hasher.hash_one((name, qtype, rcode));
        let slot = match self.index.get(&hash) {
            Some(&slot) => slot,
            None => self.take_over(hash, name, qtype, rcode),
        };
        self.raise(slot);
    }

    /// A counter for something new.
    fn take_over(&mut self, hash: u64, name: &[u8], qtype: u16, rcode: Rcode) -> u16 {
        let lowest = self.order.last().copied().filter(|_| self.slots.len() == self.capacity);
        let number = lowest.unwrap_or_else(|| {
            let number = self.slots.len() as u16;
            let (position, name) = (number, [0; MAX_NAME]);
            self.slots.push(Slot { count: 0, error: 0, hash, position, qtype, rcode, name_len: 0, name });
            self.order.push(number);
            number
        });
        let slot = &mut self.slots[usize::from(number)];
        if lowest.is_some() {
            self.index.remove(&slot.hash);
        }
        (slot.error, slot.hash, slot.qtype, slot.rcode) = (slot.count, hash, qtype, rcode);
        slot.name[..name.len()].copy_from_slice(name);
        slot.name_len = name.len() as u8;
        self.index.insert(hash, number);
        number
    }

    /// Counts one more, and puts the counter in front of those that it has had as much as.
    fn raise(&mut self, number: u16) {
        let slot = &self.slots[usize::from(number)];
        let (count, from) = (slot.count, usize::from(slot.position));
        let to = self.order[..from].partition_point(|&other| self.slots[usize::from(other)].count > count);
        self.order.swap(from, to);
        self.slots[usize::from(self.order[from])].position = from as u16;
        let slot = &mut self.slots[usize::from(number)];
        slot.position = to as u16;
        slot.count += 1;
    }

    /// What it holds.
    pub fn seen(&self) -> Seen {
        let counts = self.order.iter().map(|&number| {
            let slot = &self.slots[usize::from(number)];
            let name = slot.name[..usize::from(slot.name_len)].into();
            let key = Key { name, qtype: slot.qtype, rcode: slot.rcode as u16 };
            (key, Count { count: slot.count, error: slot.error })
        });
        let lowest = self.order.last().filter(|_| self.slots.len() == self.capacity);
        let rest = lowest.map_or(0, |&number| self.slots[usize::from(number)].count);
        Seen { total: self.total, counts: counts.collect(), rest }
    }
}

/// Takes a hash for what it is.
#[derive(Debug, Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        // Only `write_u64` is called; this is for completeness.
        for &octet in octets {
            self.0 = self.0.rotate_left(8) ^ u64::from(octet);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests;
