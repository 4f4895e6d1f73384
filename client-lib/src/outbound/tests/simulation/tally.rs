//! Counters of events in a simulation: one in which little happens proves little.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Default)]
pub(super) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(super) fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(super) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, &count)| self.add(what, count));
    }

    pub(super) fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| write!(f, "{what}: {count}, "))
    }
}
