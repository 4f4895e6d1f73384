//! Record of frames that were given up, so that none of them is later reported as delivered.

use std::collections::BTreeSet;

/// The most sequences of given-up frames that are remembered.
const REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct GivenUp {
    sequences: BTreeSet<u64>,
    /// Lower bound of what is remembered: any given-up sequence below it may have been forgotten.
    forgotten: u64,
    /// Sequences below that bound that a receiver has acknowledged since, up to as many.
    acknowledged: BTreeSet<u64>,
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

    /// Notes that a receiver has acknowledged a frame: it may have held it for long, while many
    /// later ones were given up.
    pub(super) fn acknowledge(&mut self, sequence: u64) {
        if sequence < self.forgotten {
            self.acknowledged.insert(sequence);
            if self.acknowledged.len() > REMEMBERED {
                self.acknowledged.pop_first();
            }
        }
    }

    /// Returns whether a frame that is not kept any more was given up, or may have been.
    pub(super) fn contains(&self, sequence: u64) -> bool {
        let may_be = sequence < self.forgotten && !self.acknowledged.contains(&sequence);
        may_be || self.sequences.contains(&sequence)
    }

    /// Returns the number of frames given up so far, including forgotten ones.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_sequence_counts_as_given_up() {
        let mut given_up = GivenUp::default();
        // All even sequences, of which the first comes last.
        (2..=REMEMBERED as u64).for_each(|number| given_up.add(2 * number));
        given_up.add(2);
        assert!(given_up.contains(2) && !given_up.contains(3) && given_up.contains(4));
        given_up.add(1_000_000);
        assert!([0, 1, 2, 4, 1_000_000].into_iter().all(|sequence| given_up.contains(sequence)));
        assert!([3, 5, 999_999].into_iter().all(|sequence| !given_up.contains(sequence)));
        assert_eq!(given_up.count(), REMEMBERED as u64 + 1);
    }
}
