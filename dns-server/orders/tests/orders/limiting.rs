//! Threads that race for the buckets of the rate limiter.

use multinet_dns::answer::limit::{BucketSet, SECOND, TIME_BITS};
use shuttle::sync::Arc;
use shuttle::{check_random, thread};

const QUERIES: u64 = 3;

/// Number of a network's queries that may pass: those of one second.
const ALLOWED: u64 = 4;

/// Number of schedules to try.
const ORDERS: usize = 5_000;

/// Returns how many queries of each of three threads pass. Each thread is a client in the given
/// network.
fn passing(networks: [u64; 3]) -> [u64; 3] {
    let set = Arc::new(BucketSet::default());
    let is_over = |set: &BucketSet, network: u64| set.is_over(network << TIME_BITS, 0, SECOND / ALLOWED);
    let ask = move |set: &BucketSet, network| (0..QUERIES).map(|_| u64::from(!is_over(set, network))).sum();
    let threads = networks.map(|network| {
        let set = Arc::clone(&set);
        thread::spawn(move || ask(&set, network))
    });
    threads.map(|thread| thread.join().expect("a thread"))
}

/// A thread that loses the race for a bucket retries, and sees what the others took.
#[test]
fn threads_of_one_network_share_a_bucket() {
    let model = || {
        let passed: u64 = passing([1, 1, 1]).iter().sum();
        // A thread that has lost four times lets its query pass.
        assert!((ALLOWED..=ALLOWED + 1).contains(&passed), "{passed}");
    };
    check_random(model, ORDERS);
}

/// A network that queries at the same time takes nothing from another.
#[test]
fn networks_that_race_for_a_bucket_take_nothing_from_each_other() {
    let model = || {
        let [one, other, more] = passing([1, 2, 1]);
        assert_eq!(other, QUERIES);
        assert!((ALLOWED..=ALLOWED + 1).contains(&(one + more)), "{one} and {more}");
    };
    check_random(model, ORDERS);
}
