//! Random numbers that keep many clients from acting at the same moment. Not for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Returns a random number. Its source is the seed of a hasher, the only randomness in the standard
/// library.
pub fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns a random number from 0 to 1.
pub fn random_fraction() -> f64 {
    f64::from((random_number() >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_vary_between_0_and_1() {
        let fractions: Vec<f64> = (0..20).map(|_| random_fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)), "{fractions:?}");
        assert!(fractions.iter().any(|fraction| *fraction != fractions[0]), "{fractions:?}");
    }
}
