//! How many UDP queries per second a network may ask, if `--rate-limit` says so: token buckets in a table that
//! never grows.
//!
//! Clients count by network, IPv4 by /24 and IPv6 by /56, as the response rate limits of BIND and Knot do:
//! who forges sources forges all of a network. A bucket is one number, the moment at which it will be full
//! again (the virtual scheduling of GCRA), and holds what may be asked in a second. All workers share the
//! table, without locks: SO_REUSEPORT spreads the ports of one client over them, so that tables of their own
//! would give it a multiple of the number.
//!
//! A set of eight buckets is one cache line. A network that is not in its set takes the bucket that is fullest,
//! so a flood from ever new networks costs nobody else more than a bucket that begins anew: that error is
//! on the client's side. Two networks take each other for one if they share a set and 16 more bits of a hash that
//! is different in every run.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Instant;

use foldhash::quality::RandomState;
use ipnet::IpNet;
use multinet_runtime::network_of;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Buckets in a set.
const WAYS: usize = 8;

/// Sets: together half a MiB for 65,536 networks.
const SETS: usize = 8192;

/// Ticks of a second: of 100 ns, which is fine enough for a million queries per second.
pub const SECOND: u64 = 10_000_000;

/// A bucket's lower bits are a time in ticks, the upper ones tell networks apart. Times wrap around after
/// ten months, which [`ticks_ahead`] minds.
pub const TIME_BITS: u32 = 48;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// Attempts to write a bucket that others write too; then the query passes.
const ATTEMPTS: u32 = 4;

/// Who may ask how much.
#[derive(Debug)]
pub struct Limiter {
    /// Ticks that a query takes out of its bucket.
    cost: u64,
    exempt: Vec<IpNet>,
    table: Box<[BucketSet]>,
    seed: RandomState,
    begun: Instant,
}

/// Buckets that share a cache line: those of the networks whose hashes are alike.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct BucketSet([AtomicU64; WAYS]);

impl Limiter {
    /// At most `per_second` queries of each network that is not within `exempt`.
    pub fn new(per_second: u32, exempt: Vec<IpNet>) -> Self {
        let cost = (SECOND / u64::from(per_second.max(1))).max(1);
        let table = (0..SETS).map(|_| BucketSet::default()).collect();
        Self { cost, exempt, table, seed: RandomState::default(), begun: Instant::now() }
    }

    /// Whether a query that has just come is one too many; if not, it is counted.
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
    /// Whether a query is one too many for the bucket of its network; if not, its cost is taken out.
    /// `tag` is the network's hash, above [`TIME_BITS`]; `now` and `cost` are in ticks.
    pub fn is_over(&self, tag: u64, now: u64, cost: u64) -> bool {
        for _ in 0..ATTEMPTS {
            let (bucket, found) = self.find(tag, now);
            // How long until the bucket is full again.
            let missing = if found & !TIME == tag { ticks_ahead(found, now) } else { 0 };
            if missing + cost > SECOND {
                return true;
            }
            let full_at = (now + missing + cost) & TIME;
            if bucket
                .compare_exchange_weak(found, tag | full_at, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return false;
            }
        }
        false
    }

    /// The bucket of a network, or the fullest one, which it may have.
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

/// By how much a bucket's time is later than now, if at all. No bucket is more than a second ahead, or two if a worker has
/// been held up since it looked at the clock: what looks like it has been full for ages.
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

    /// How many of `queries` at one moment pass.
    fn passing(limiter: &Limiter, peer: &str, now: u64, queries: u32) -> u32 {
        (0..queries).map(|_| u32::from(!limiter.is_over_at(ip(peer), now))).sum()
    }

    #[test]
    fn a_bucket_holds_a_second_and_fills_steadily() {
        for rate in [1, 2, 8, 100, 5_000] {
            let limiter = Limiter::new(rate, Vec::new());
            assert_eq!(passing(&limiter, "10.0.0.1", 0, 2 * rate), rate);
            assert_eq!(passing(&limiter, "10.0.0.1", SECOND - 1, 2 * rate), rate - 1);
            assert_eq!(passing(&limiter, "10.0.0.1", 10 * SECOND, 2 * rate), rate);
            // A client that asks for twice as much all the time gets what it may have.
            let steady: u32 = (0..20 * u64::from(rate))
                .map(|query| 11 * SECOND + query * SECOND / (2 * u64::from(rate)))
                .map(|now| passing(&limiter, "10.0.0.1", now, 1))
                .sum();
            assert!((10 * rate..=11 * rate).contains(&steady), "{steady} of {rate} for ten seconds");
        }
    }

    /// Each worker looks at the clock before it looks at the bucket.
    #[test]
    fn who_is_late_finds_no_new_bucket() {
        let limiter = Limiter::new(10, Vec::new());
        assert_eq!(passing(&limiter, "10.0.0.1", SECOND, 20), 10);
        for earlier in [1, 1000, SECOND] {
            assert_eq!(passing(&limiter, "10.0.0.1", SECOND - earlier, 20), 0, "{earlier}");
        }
    }

    #[test]
    fn networks_count_each_for_itself() {
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

    /// The time in a bucket is shorter than the clock's.
    #[test]
    fn time_may_wrap_around() {
        for now in [TIME - SECOND / 2, TIME, TIME + 1, 3 * (TIME + 1) - SECOND / 4] {
            let limiter = Limiter::new(10, Vec::new());
            assert_eq!(passing(&limiter, "10.0.0.1", now, 100), 10, "{now}");
            assert_eq!(passing(&limiter, "10.0.0.1", now + SECOND / 2, 100), 5, "{now}");
        }
    }

    #[test]
    fn a_flood_of_networks_limits_nobody_else() {
        let limiter = Limiter::new(10, Vec::new());
        for network in 0..400_000u32 {
            let peer = IpAddr::from(std::net::Ipv4Addr::from_bits(network << 8));
            limiter.is_over_at(peer, 0);
        }
        assert_eq!(passing(&limiter, "192.0.2.1", 0, 10), 10);
        assert!(size_of::<BucketSet>() * SETS <= 512 << 10);
    }

    #[test]
    fn threads_share_the_number() {
        let limiter = Limiter::new(1_000, Vec::new());
        let passed: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| passing(&limiter, "10.0.0.1", 0, 1_000))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // More only if an exchange failed four times in a row.
        assert!((1_000..1_100).contains(&passed), "{passed}");
    }
}
