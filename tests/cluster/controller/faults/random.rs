//! Random numbers that can be reproduced from a seed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Environment variable with the seed.
const VARIABLE: &str = "MULTINET_SEED";

/// Pseudorandom generator SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Creates a generator with the seed in the environment, or with a new one. Prints the seed,
    /// which the harness shows if the test fails.
    pub(super) fn new() -> Self {
        let given = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let seed = given.unwrap_or_else(now);
        eprintln!("to repeat the random choices, set {VARIABLE}={seed}");
        Self(seed)
    }

    /// Returns a new generator, seeded by this one.
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

    /// Returns a number below `end`, which must not be zero.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a random element.
    pub(super) fn one_of<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())) }
    }

    /// Returns a random time that is long enough for several changes of pods.
    pub(super) fn while_pods_change(&mut self) -> Duration {
        Duration::from_millis(500) + self.milliseconds(1000)
    }

    /// Returns a time from zero to `most` milliseconds.
    pub(super) fn milliseconds(&mut self, most: usize) -> Duration {
        Duration::from_millis(self.below(most + 1) as u64)
    }
}
