//! Which frames have been given up: whoever asks later must not be told that they have come.

use std::collections::BTreeSet;

/// So many are remembered.
const REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct GivenUp {
    sequences: BTreeSet<u64>,
    /// One below it may have been forgotten.
    forgotten: u64,
    count: u64,
}

impl GivenUp {
    pub(super) fn add(&mut self, sequence: u64) {
        self.count += 1;
        self.sequences.insert(sequence);
        if self.sequences.len() > REMEMBERED
            && let Some(oldest) = self.sequences.pop_first()
        {
            self.forgotten = self.forgotten.max(oldest + 1);
        }
    }

    /// Whether a frame that is not kept any more has been given up, or may have been.
    pub(super) fn contains(&self, sequence: u64) -> bool {
        sequence < self.forgotten || self.sequences.contains(&sequence)
    }

    /// How many there have been.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_forgotten_is_not_taken_for_what_has_come() {
        let mut given_up = GivenUp::default();
        // Every other one, the first of them late.
        (2..=REMEMBERED as u64).for_each(|number| given_up.add(2 * number));
        given_up.add(2);
        assert!(given_up.contains(2) && !given_up.contains(3) && given_up.contains(4));
        given_up.add(1_000_000);
        assert!([0, 1, 2, 4, 1_000_000].into_iter().all(|sequence| given_up.contains(sequence)));
        assert!([3, 5, 999_999].into_iter().all(|sequence| !given_up.contains(sequence)));
        assert_eq!(given_up.count(), REMEMBERED as u64 + 1);
    }
}
