//! Rate limit for UDP queries (`--rate-limit`): token buckets for client networks, in a table of
//! fixed size.
//!
//! Clients are counted by network, IPv4 by /24 and IPv6 by /56, like the response rate limits of
//! BIND and Knot do, because an attacker who forges source addresses can forge all of a network. A
//! bucket is one number, the time at which it will be full again (virtual scheduling of GCRA). A
//! full bucket holds the queries of one second. All workers share the table without locks. With
//! separate tables, a client would get a multiple of the limit, since SO_REUSEPORT spreads its
//! ports over the workers.
//!
//! A set of eight buckets is one cache line. A network that has no bucket in its set takes the
//! fullest one. So a flood from ever new networks costs another network at most a bucket that
//! starts full again, an error in favour of the client. Two networks share a bucket by mistake if
//! they share a set and 16 more bits of a hash, whose seed differs in every run.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Instant;

use foldhash::quality::RandomState;
use ipnet::IpNet;
use multinet_runtime::network_of;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets in a [`BucketSet`], which fill one cache line.
const WAYS: usize = 8;

/// Number of bucket sets. The table takes half a MiB, for 65,536 networks.
const SETS: usize = 8192;

/// Number of ticks in a second. A tick of 100 ns is fine enough for a million queries per second.
pub const SECOND: u64 = 10_000_000;

/// Number of lower bits of a bucket, which hold a time in ticks. The upper bits identify the
/// network. Times wrap around after ten months, which [`ticks_ahead`] handles.
pub const TIME_BITS: u32 = 48;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// Number of attempts to update a bucket that other threads update, too. Then the query passes.
const ATTEMPTS: u32 = 4;

/// Rate limiter for UDP queries, by client network.
#[derive(Debug)]
pub struct Limiter {
    /// Time, in ticks, that a query takes out of its network's bucket.
    cost: u64,
    exempt: Vec<IpNet>,
    table: Box<[BucketSet]>,
    seed: RandomState,
    begun: Instant,
}

/// Buckets in one cache line, for networks whose hashes lead to the same set.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct BucketSet([AtomicU64; WAYS]);

impl Limiter {
    /// Makes a limiter of `per_second` queries for each client network outside `exempt`.
    pub fn new(per_second: u32, exempt: Vec<IpNet>) -> Self {
        let cost = (SECOND / u64::from(per_second.max(1))).max(1);
        let table = (0..SETS).map(|_| BucketSet::default()).collect();
        Self { cost, exempt, table, seed: RandomState::default(), begun: Instant::now() }
    }

    /// Tells whether a query that has just arrived exceeds the limit. Otherwise the query is
    /// counted.
    pub fn is_over(&self, peer: IpAddr) -> bool {
        let now = self.begun.elapsed().as_nanos() / 100;
        self.is_over_at(peer, now as u64)
    }

    fn is_over_at(&self, peer: IpAddr, now: u64) -> bool {
        let peer = peer.to_canonical();
        if self.exempt.iter().any(|network| network.contains(&peer)) {
            return false;
        }
        let hash = self.seed.hash_one(network_of(peer));
        self.table[hash as usize % SETS].is_over(hash & !TIME, now & TIME, self.cost)
    }
}

impl BucketSet {
    /// Tells whether a query exceeds the limit of its network. Otherwise its cost is taken out of
    /// the bucket. `tag` is the network's hash, above [`TIME_BITS`]; `now` and `cost` are in ticks.
    pub fn is_over(&self, tag: u64, now: u64, cost: u64) -> bool {
        for _ in 0..ATTEMPTS {
            let (bucket, found) = self.find(tag, now);
            // Ticks until the bucket is full again.
            let missing = if found & !TIME == tag { ticks_ahead(found, now) } else { 0 };
            if missing + cost > SECOND {
                return true;
            }
            let full_at = (now + missing + cost) & TIME;
            // Relaxed is enough: a bucket is one word, and no other memory depends on it.
            if bucket
                .compare_exchange_weak(found, tag | full_at, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return false;
            }
        }
        false
    }

    /// Returns the bucket of a network, or the fullest bucket for it to take over, with its value.
    fn find(&self, tag: u64, now: u64) -> (&AtomicU64, u64) {
        let (mut fullest, mut found) = (&self.0[0], self.0[0].load(Ordering::Relaxed));
        for bucket in &self.0 {
            let value = bucket.load(Ordering::Relaxed);
            if value & !TIME == tag {
                return (bucket, value);
            }
            if ticks_ahead(value, now) < ticks_ahead(found, now) {
                (fullest, found) = (bucket, value);
            }
        }
        (fullest, found)
    }
}

/// Returns how far the time of a bucket is ahead of `now`, or 0. A bucket is at most one second
/// ahead, or two if a worker was delayed after it read the clock. A time that seems further ahead
/// has wrapped around: its bucket has long been full.
fn ticks_ahead(bucket: u64, now: u64) -> u64 {
    let ahead = (bucket & TIME).wrapping_sub(now) & TIME;
    if ahead > 2 * SECOND { 0 } else { ahead }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Returns how many of `queries` pass at one moment.
    fn passing(limiter: &Limiter, peer: &str, now: u64, queries: u32) -> u32 {
        (0..queries).map(|_| u32::from(!limiter.is_over_at(ip(peer), now))).sum()
    }

    #[test]
    fn a_bucket_holds_the_queries_of_a_second_and_refills_steadily() {
        for rate in [1, 2, 8, 100, 5_000] {
            let limiter = Limiter::new(rate, Vec::new());
            assert_eq!(passing(&limiter, "10.0.0.1", 0, 2 * rate), rate);
            assert_eq!(passing(&limiter, "10.0.0.1", SECOND - 1, 2 * rate), rate - 1);
            assert_eq!(passing(&limiter, "10.0.0.1", 10 * SECOND, 2 * rate), rate);
            // A client that always asks for twice its share gets its share.
            let steady: u32 = (0..20 * u64::from(rate))
                .map(|query| 11 * SECOND + query * SECOND / (2 * u64::from(rate)))
                .map(|now| passing(&limiter, "10.0.0.1", now, 1))
                .sum();
            assert!((10 * rate..=11 * rate).contains(&steady), "{steady} of {rate} for ten seconds");
        }
    }

    /// Each worker reads the clock before it reads the bucket, so `now` may lie before the bucket's
    /// time.
    #[test]
    fn a_delayed_worker_does_not_find_a_full_bucket() {
        let limiter = Limiter::new(10, Vec::new());
        assert_eq!(passing(&limiter, "10.0.0.1", SECOND, 20), 10);
        for earlier in [1, 1000, SECOND] {
            assert_eq!(passing(&limiter, "10.0.0.1", SECOND - earlier, 20), 0, "{earlier}");
        }
    }

    #[test]
    fn each_network_has_a_limit_of_its_own() {
        let limiter = Limiter::new(5, vec!["10.1.0.0/16".parse().unwrap(), "fd01::/64".parse().unwrap()]);
        for (first, same, other) in [
            ("10.0.0.1", "10.0.0.255", "10.0.1.1"),
            ("::ffff:10.0.2.1", "10.0.2.2", "10.0.3.1"),
            ("fd00::1", "fd00:0:0:ff::1", "fd00:0:0:100::1"),
        ] {
            assert_eq!(passing(&limiter, first, 0, 3), 3, "{first}");
            assert_eq!(passing(&limiter, same, 0, 10), 2, "{same}");
            assert_eq!(passing(&limiter, other, 0, 10), 5, "{other}");
        }
        for exempt in ["10.1.2.3", "::ffff:10.1.2.3", "fd01::7"] {
            assert_eq!(passing(&limiter, exempt, 0, 100), 100, "{exempt}");
        }
    }

    /// A bucket stores fewer bits of the time than the clock has.
    #[test]
    fn the_limit_holds_when_the_time_wraps_around() {
        for now in [TIME - SECOND / 2, TIME, TIME + 1, 3 * (TIME + 1) - SECOND / 4] {
            let limiter = Limiter::new(10, Vec::new());
            assert_eq!(passing(&limiter, "10.0.0.1", now, 100), 10, "{now}");
            assert_eq!(passing(&limiter, "10.0.0.1", now + SECOND / 2, 100), 5, "{now}");
        }
    }

    #[test]
    fn a_flood_from_many_networks_does_not_limit_another_network() {
        let limiter = Limiter::new(10, Vec::new());
        for network in 0..400_000u32 {
            let peer = IpAddr::from(std::net::Ipv4Addr::from_bits(network << 8));
            limiter.is_over_at(peer, 0);
        }
        assert_eq!(passing(&limiter, "192.0.2.1", 0, 10), 10);
        assert!(size_of::<BucketSet>() * SETS <= 512 << 10);
    }

    #[test]
    fn threads_share_one_limit() {
        let limiter = Limiter::new(1_000, Vec::new());
        let passed: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| passing(&limiter, "10.0.0.1", 0, 1_000))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // More pass only if an exchange failed four times in a row.
        assert!((1_000..1_100).contains(&passed), "{passed}");
    }
}
