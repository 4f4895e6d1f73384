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
    counters: Vec<Counter>,
    /// Slots by falling count.
    order: Vec<u16>,
    /// Slots by the hash of what they count. That of two names is the same once in 2⁶⁴ pairs; they are then
    /// counted as one.
    index: HashMap<u64, u16, BuildHasherDefault<IdentityHasher>>,
}

/// One counter. Names lie in it, for they change hands often.
#[derive(Debug)]
struct Counter {
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
pub struct QueryKey {
    /// The lowercased name in wire format.
    pub name: Box<[u8]>,
    /// The type that was asked for.
    pub qtype: u16,
    /// What the reply said.
    pub rcode: u16,
}

/// How often it was, at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// No less than the truth.
    pub count: u64,
    /// By how much it may be more.
    pub error: u64,
}

/// What a sketch holds at a moment.
#[derive(Debug, Clone, Default)]
pub struct SketchSnapshot {
    /// Queries counted.
    pub total: u64,
    /// What has a counter.
    pub counts: Vec<(QueryKey, Estimate)>,
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
            counters: Vec::with_capacity(capacity),
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
        let counter = match self.index.get(&hash) {
            Some(&counter) => counter,
            None => self.claim_counter(hash, name, qtype, rcode),
        };
        self.increment(counter);
    }

    /// A counter for something new.
    fn claim_counter(&mut self, hash: u64, name: &[u8], qtype: u16, rcode: Rcode) -> u16 {
        let lowest = self.order.last().copied().filter(|_| self.counters.len() == self.capacity);
        let number = lowest.unwrap_or_else(|| {
            let number = self.counters.len() as u16;
            let (position, name) = (number, [0; MAX_NAME]);
            self.counters.push(Counter {
                count: 0,
                error: 0,
                hash,
                position,
                qtype,
                rcode,
                name_len: 0,
                name,
            });
            self.order.push(number);
            number
        });
        let counter = &mut self.counters[usize::from(number)];
        if lowest.is_some() {
            self.index.remove(&counter.hash);
        }
        (counter.error, counter.hash, counter.qtype, counter.rcode) = (counter.count, hash, qtype, rcode);
        counter.name[..name.len()].copy_from_slice(name);
        counter.name_len = name.len() as u8;
        self.index.insert(hash, number);
        number
    }

    /// Counts one more, and puts the counter in front of those that it has had as much as.
    fn increment(&mut self, number: u16) {
        let counter = &self.counters[usize::from(number)];
        let (count, from) = (counter.count, usize::from(counter.position));
        let to = self.order[..from].partition_point(|&other| self.counters[usize::from(other)].count > count);
        self.order.swap(from, to);
        self.counters[usize::from(self.order[from])].position = from as u16;
        let counter = &mut self.counters[usize::from(number)];
        counter.position = to as u16;
        counter.count += 1;
    }

    /// What it holds.
    pub fn snapshot(&self) -> SketchSnapshot {
        let counts = self.order.iter().map(|&number| {
            let counter = &self.counters[usize::from(number)];
            let name = counter.name[..usize::from(counter.name_len)].into();
            let key = QueryKey { name, qtype: counter.qtype, rcode: counter.rcode as u16 };
            (key, Estimate { count: counter.count, error: counter.error })
        });
        let lowest = self.order.last().filter(|_| self.counters.len() == self.capacity);
        let rest = lowest.map_or(0, |&number| self.counters[usize::from(number)].count);
        SketchSnapshot { total: self.total, counts: counts.collect(), rest }
    }
}

/// Takes a hash for what it is.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `write_u64` is called; this is for completeness.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests;
