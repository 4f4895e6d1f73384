//! Chance that can be repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable that names a seed.
const VARIABLE: &str = "MULTINET_SEED";

/// Numbers that follow from a seed, by SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// With the seed that the environment names, else a new one. It is shown if the test fails.
    pub(super) fn new() -> Self {
        let given = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let seed = given.unwrap_or_else(now);
        eprintln!("what is left to chance here is repeated by {VARIABLE}={seed}");
        Self(seed)
    }

    /// Another source, which follows from this one.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of these.
    pub(super) fn one_of<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())) }
    }

    /// Long enough for pods to change, by chance more or less long.
    pub(super) fn while_pods_change(&mut self) -> Duration {
        Duration::from_millis(500) + self.milliseconds(1000)
    }

    /// A time from zero to this many milliseconds.
    pub(super) fn milliseconds(&mut self, most: usize) -> Duration {
        Duration::from_millis(self.below(most + 1) as u64)
    }
}
