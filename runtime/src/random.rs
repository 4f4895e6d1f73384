//! A little randomness, to keep many clients from doing the same thing at the same moment. It is no good for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A random number. Seeding hashers is the one source of randomness in the standard library.
pub fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number from 0 to 1.
pub fn random_fraction() -> f64 {
    f64::from((random_number() >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_varies_within_its_bounds() {
        let fractions: Vec<f64> = (0..20).map(|_| random_fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)), "{fractions:?}");
        assert!(fractions.iter().any(|fraction| *fraction != fractions[0]), "{fractions:?}");
    }
}
