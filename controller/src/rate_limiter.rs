//! How often something may be done for each of many: so often in a row, and then at intervals (pure).
//!
//! A token bucket for each key, of which nothing is kept while it is full.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// How many keys there are before those with a full bucket are looked for.
const FEW: usize = 64;

/// The token buckets, by key.
#[derive(Debug)]
pub struct RateLimiter<K> {
    burst: u32,
    interval: Duration,
    /// When the bucket is full again.
    full: HashMap<K, Instant>,
    /// How many keys there may be before those with a full bucket are looked for again.
    room: usize,
}

impl<K: Eq + Hash> RateLimiter<K> {
    /// So often in a row, and then once in every interval.
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, full: HashMap::new(), room: FEW }
    }

    /// Returns when it may be done for a key the next time: now, or later.
    pub fn next(&self, key: &K, now: Instant) -> Instant {
        let Some(&full) = self.full.get(key) else { return now };
        // From then on there is a token.
        full.checked_sub(self.interval * self.burst.saturating_sub(1)).map_or(now, |next| next.max(now))
    }

    /// It is done for a key.
    pub fn consume(&mut self, key: K, now: Instant) {
        let full = self.full.entry(key).or_insert(now);
        *full = (*full).max(now) + self.interval;
        if self.full.len() > self.room {
            self.full.retain(|_, full| *full > now);
            self.room = FEW.max(2 * self.full.len());
        }
    }

    /// Forgets what has been used.
    pub fn clear(&mut self) {
        self.full.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_and_then_one_in_every_interval_for_each_key() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(3, 10 * SECOND);
        let mut used = |key, seconds| {
            let now = start + seconds * SECOND;
            let may = limiter.next(&key, now) == now;
            if may {
                limiter.consume(key, now);
            }
            may
        };
        let of_a: Vec<u32> = (0..60).filter(|&second| used("a", second)).collect();
        assert_eq!(of_a, [0, 1, 2, 10, 20, 30, 40, 50]);
        assert!(used("b", 60), "each for itself");
        let again: Vec<u32> = (100..105).filter(|&second| used("a", second)).collect();
        assert_eq!(again, [100, 101, 102], "it is full again");
    }

    #[test]
    fn says_when() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(2, 10 * SECOND);
        assert_eq!(limiter.next(&"a", start), start);
        limiter.consume("a", start);
        assert_eq!(limiter.next(&"a", start), start);
        limiter.consume("a", start);
        assert_eq!(limiter.next(&"a", start), start + 10 * SECOND);
        assert_eq!(limiter.next(&"a", start + 11 * SECOND), start + 11 * SECOND);
    }

    #[test]
    fn nothing_is_kept_of_what_is_full_again() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(1, SECOND);
        for number in 0..10_000_u32 {
            limiter.consume(number, start + SECOND * number);
        }
        assert!(limiter.full.len() <= FEW + 1, "{}", limiter.full.len());
    }
}
