//! Histograms of integers. The bucket of a size is computed without a search, since every query
//! needs it twice.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the duration histogram in nanoseconds. The last bucket takes all greater values.
pub(super) const NANOSECONDS: [u64; 11] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    u64::MAX,
];

/// Upper bounds of the histograms of message sizes in bytes, as in CoreDNS.
pub(super) const BYTES: [u64; 10] = [64, 128, 256, 512, 1023, 2047, 4095, 16000, 64000, u64::MAX];

/// Histogram of integers with `N` buckets: a count for each, and the sum of all values.
#[derive(Debug)]
pub(super) struct Histogram<const N: usize> {
    pub(super) counts: [AtomicU64; N],
    /// Sum of all values, in bytes or nanoseconds: integers add up without rounding.
    pub(super) sum: AtomicU64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; N], sum: AtomicU64::new(0) }
    }
}

impl<const N: usize> Histogram<N> {
    /// Returns the number of values in a bucket, without those of lower buckets.
    pub(super) fn count(&self, bucket: usize) -> u64 {
        self.counts[bucket].load(Ordering::Relaxed)
    }
}

/// For each number of significant bits: the lowest bucket that a size with these bits may have, and
/// its bound. The bounds lie so far apart that the size is in that bucket or the next.
const BUCKETS: [(u8, u16); u16::BITS as usize + 1] = {
    let mut buckets = [(0, 0); u16::BITS as usize + 1];
    let mut bits = 0;
    while bits < buckets.len() {
        let smallest = (1 << bits) >> 1;
        let mut bucket = 0;
        while BYTES[bucket] < smallest {
            bucket += 1;
        }
        buckets[bits] = (bucket as u8, BYTES[bucket] as u16);
        bits += 1;
    }
    buckets
};

/// Returns the index in [`BYTES`] of the bucket for a message of `bytes` bytes.
#[inline]
pub(super) fn bucket_of_size(bytes: usize) -> usize {
    let bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
    let (bucket, bound) = BUCKETS[(u16::BITS - bytes.leading_zeros()) as usize];
    usize::from(bucket) + usize::from(bytes > bound)
}

/// Returns the index in [`NANOSECONDS`] of the bucket for a duration.
pub(super) fn bucket_of_time(nanoseconds: u64) -> usize {
    NANOSECONDS.partition_point(|&bound| bound < nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_of_every_size_is_the_one_that_a_search_finds() {
        for bytes in 0..=usize::from(u16::MAX) {
            let searched = BYTES.partition_point(|&bound| bound < bytes as u64);
            assert_eq!(bucket_of_size(bytes), searched, "{bytes}");
        }
        assert_eq!(bucket_of_size(usize::MAX), BYTES.len() - 1);
    }

    #[test]
    fn a_bound_is_in_its_own_bucket() {
        assert_eq!([0, 10_000, 10_001].map(bucket_of_time), [0, 0, 1]);
        assert_eq!([1_000_000_000, 1_000_000_001, u64::MAX].map(bucket_of_time), [9, 10, 10]);
    }
}
