//! Sampling of batches whose duration is measured. Reading the clock costs more than counting a
//! query, and a sample gives the distribution just as well.

use fastrand::Rng;

/// Mean number of batches from one whose duration is measured to the next.
const ONE_IN: u32 = 16;

/// Chooses the batches to measure in advance, so that the choice does not depend on their content.
/// The gaps are random, so that periodic events are neither always hit nor always missed.
#[derive(Debug)]
pub struct Sampler {
    left: u32,
    random: Rng,
}

impl Sampler {
    /// Returns a sampler. Any seed will do, and different ones choose different batches.
    pub fn new(seed: u32) -> Self {
        let mut sampler = Self { left: 0, random: Rng::with_seed(seed.into()) };
        sampler.left = sampler.gap();
        sampler
    }

    /// Tells whether to measure the duration of the next batch of queries.
    #[inline]
    pub fn should_sample(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return false;
        }
        self.left = self.gap();
        true
    }

    /// Returns the distance to the next measured batch: at least 1, and less than twice the mean.
    fn gap(&mut self) -> u32 {
        self.random.u32(1..2 * ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampler_chooses_one_batch_in_sixteen_at_random_intervals() {
        for seed in [0, 1, 12_345, u32::MAX] {
            let mut sampler = Sampler::new(seed);
            let timed: Vec<u32> = (0..1_600_000).filter(|_| sampler.should_sample()).collect();
            assert!((98_000..102_000).contains(&timed.len()), "{seed}: {}", timed.len());
            // Of events in every eighth batch, the sample hits an eighth.
            let regular = timed.iter().filter(|&&at| at % 8 == 3).count();
            assert!((11_900..13_100).contains(&regular), "{seed}: {regular}");
            let gaps = timed.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.clone().min() == Some(1) && gaps.max() == Some(31), "{seed}");
        }
    }
}
