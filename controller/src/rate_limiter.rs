//! Limits how often something may be done for each of many keys (pure).
//!
//! Each key has a token bucket: a burst of actions, then one action per interval. A full bucket
//! takes no memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Number of keys above which full buckets are looked for and removed.
const FEW: usize = 64;

/// Rate limiter with one token bucket per key.
#[derive(Debug)]
pub(crate) struct RateLimiter<K> {
    burst: u32,
    interval: Duration,
    /// Time at which the bucket of each key is full again.
    full: HashMap<K, Instant>,
    /// Number of keys above which full buckets are looked for the next time.
    room: usize,
}

impl<K: Eq + Hash> RateLimiter<K> {
    /// Returns a limiter that allows `burst` actions in a row for each key, then one per interval.
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, full: HashMap::new(), room: FEW }
    }

    /// Returns the next time at which an action is allowed for `key`: `now`, or a later time.
    pub(crate) fn next(&self, key: &K, now: Instant) -> Instant {
        let Some(&full) = self.full.get(key) else { return now };
        // The bucket is full at `full`; it holds its first token `burst - 1` intervals earlier.
        full.checked_sub(self.interval * self.burst.saturating_sub(1)).map_or(now, |next| next.max(now))
    }

    /// Takes a token for an action on `key`.
    pub(crate) fn consume(&mut self, key: K, now: Instant) {
        let full = self.full.entry(key).or_insert(now);
        *full = (*full).max(now) + self.interval;
        if self.full.len() > self.room {
            self.full.retain(|_, full| *full > now);
            self.room = FEW.max(2 * self.full.len());
        }
    }

    /// Refills all buckets.
    pub(crate) fn clear(&mut self) {
        self.full.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_key_gets_a_burst_and_then_one_action_per_interval() {
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
    fn next_returns_the_time_of_the_next_token() {
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
    fn full_buckets_are_removed() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(1, SECOND);
        for number in 0..10_000_u32 {
            limiter.consume(number, start + SECOND * number);
        }
        assert!(limiter.full.len() <= FEW + 1, "{}", limiter.full.len());
    }
}
