//! Which batches are timed. Reading the clock costs more than counting a query does, and how long queries
//! take is known as well from some of them.

/// One batch in so many is timed, in the mean.
const ONE_IN: u32 = 16;

/// Says of some batches that they are to be timed, in advance, so that what they are does not matter. The gaps
/// are random: nothing that happens at regular intervals is always hit or always missed.
#[derive(Debug)]
pub struct Sampler {
    left: u32,
    random: u32,
}

impl Sampler {
    /// From anything.
    pub fn new(seed: u32) -> Self {
        // Xorshift stays at zero.
        let mut sampler = Self { left: 0, random: seed | 1 };
        sampler.left = sampler.gap();
        sampler
    }

    /// Whether the next batch is to be timed.
    #[inline]
    pub fn should_sample(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return false;
        }
        self.left = self.gap();
        true
    }

    /// From 1 to twice the mean.
    fn gap(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + (self.random >> 8) % (2 * ONE_IN - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_sixteen_at_irregular_intervals() {
        for seed in [0, 1, 12_345, u32::MAX] {
            let mut sampler = Sampler::new(seed);
            let timed: Vec<u32> = (0..1_600_000).filter(|_| sampler.should_sample()).collect();
            assert!((98_000..102_000).contains(&timed.len()), "{seed}: {}", timed.len());
            // Of what comes every eighth time, an eighth of the sample.
            let regular = timed.iter().filter(|&&at| at % 8 == 3).count();
            assert!((11_900..13_100).contains(&regular), "{seed}: {regular}");
            let gaps = timed.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.clone().min() == Some(1) && gaps.max() == Some(31), "{seed}");
        }
    }
}
