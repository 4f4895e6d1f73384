//! The most frequent queries: a sketch of bounded size (Space-Saving; Metwally, Agrawal, El Abbadi
//! 2005).
//!
//! The sketch has a fixed number of counters. A query without a counter takes over the one with the
//! lowest count, and continues from that count, which bounds its error. So every query that makes
//! up more than one in `capacity` has a counter, and every count exceeds the true one by at most
//! `error`.
//!
//! The sketch counts names together with the query type and the reply code, so that names that do
//! not exist, as search paths produce them, stand out. A query costs a hash and a dozen
//! comparisons, and allocates nothing.

mod merge;

use std::collections::HashMap;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

pub(crate) use merge::merge;

use crate::answer::query::Rcode;
use crate::limits::debug::MAX_CAPACITY;
use crate::store::name::MAX_NAME;

/// Counters of one worker's most frequent queries.
#[derive(Debug)]
pub(crate) struct Sketch {
    capacity: usize,
    total: u64,
    counters: Vec<Counter>,
    /// Indices of the counters, by falling count.
    order: Vec<u16>,
    /// Counters by the hash of their query. Two names have the same hash once in 2⁶⁴ pairs; they
    /// are then counted as one.
    index: HashMap<u64, u16, RandomState>,
}

/// Counter of one query. It holds the name inline, since counters change hands often.
#[derive(Debug)]
struct Counter {
    count: u64,
    error: u64,
    hash: u64,
    /// Index of the counter in [`Sketch::order`].
    position: u16,
    qtype: u16,
    rcode: Rcode,
    name_len: u8,
    name: [u8; MAX_NAME],
}

/// Key by which the most frequent queries are counted: queries with equal keys count as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueryKey {
    /// Lowercased name that was asked for, in wire format.
    pub name: Box<[u8]>,
    /// Number of the record type that was asked for.
    pub qtype: u16,
    /// Response code of the reply.
    pub rcode: u16,
}

/// Estimate of how often a query came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// Upper bound: the query came at most this often.
    pub count: u64,
    /// Greatest error of `count`: the query came at least `count` minus `error` times.
    pub error: u64,
}

/// Counts of a [`Sketch`] at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct SketchSnapshot {
    /// Number of all queries that were counted, also of those without a counter now.
    pub total: u64,
    /// Estimates for the queries that have a counter, by falling count.
    pub counts: Vec<(QueryKey, Estimate)>,
    /// Upper bound for how often any query without a counter came.
    pub rest: u64,
}

impl Sketch {
    /// Returns a sketch with this many counters, 1 to [`MAX_CAPACITY`].
    pub(crate) fn new(capacity: u16) -> Self {
        let capacity = usize::from(capacity.clamp(1, MAX_CAPACITY));
        Self {
            capacity,
            total: 0,
            counters: Vec::with_capacity(capacity),
            order: Vec::with_capacity(capacity),
            // With twice the room, the map cleans up removed keys in place and never grows.
            index: HashMap::with_capacity_and_hasher(2 * capacity + 2, RandomState::default()),
        }
    }

    /// Counts a query by name, type and response code. Ignores a name longer than DNS allows.
    pub(crate) fn count(&mut self, name: &[u8], qtype: u16, rcode: Rcode) {
        if name.len() > MAX_NAME {
            return;
        }
        self.total += 1;
        let hash = self.index.hasher().hash_one((name, qtype, rcode));
        let counter = match self.index.get(&hash) {
            Some(&counter) => counter,
            None => self.claim_counter(hash, name, qtype, rcode),
        };
        self.increment(counter);
    }

    /// Gives a query that has no counter a free one or that with the lowest count; returns its
    /// index.
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

    /// Increments a counter, and moves it in front of those with the count that it had.
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

    /// Returns all counts at this moment.
    pub(crate) fn snapshot(&self) -> SketchSnapshot {
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

#[cfg(test)]
mod tests;
