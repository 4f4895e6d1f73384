//! Simulated pipelines: a pod that offers the payloads of messages, fetchers, the queues before and
//! between them, and random faults, with a clock of its own. Separate bookkeeping checks what must
//! hold.
//!
//! `MULTINET_SEED=17 cargo test -p multinet-client --lib offers` runs one pipeline again.

mod fetcher;
mod model;
mod queue;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use world::World;

use super::LedgerLimits;

/// Number of pipelines to run by default.
const WORLDS: u64 = 100;

/// Steps in each pipeline between two phases without faults.
const STEPS: usize = 1_000;

/// Result of a check. The error says what does not hold.
type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// All decisions that are made before the first step.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    settings: LedgerLimits,
    /// Number of messages that are under way at a time.
    messages: usize,
    fetchers: usize,
    /// Time for which a payload is on offer.
    deadline: Duration,
    /// Time after which a queue delivers a message again.
    redelivery: Duration,
    /// Time for which a queue drops messages of the same id.
    window: Duration,
    /// Faults per thousand steps.
    pace: u32,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let settings = LedgerLimits {
            budget: [1, 8, 24, 1000][rng.usize(..4)],
            max_offers: [2, 8, 100][rng.usize(..3)],
            remember: Duration::from_secs([0, 60, 600][rng.usize(..3)]),
            max_remembered: [0, 2, 100][rng.usize(..3)],
        };
        Self {
            seed,
            settings,
            messages: rng.usize(1..=12),
            fetchers: rng.usize(1..=5),
            deadline: Duration::from_secs([5, 50, 600][rng.usize(..3)]),
            redelivery: Duration::from_secs([10, 60][rng.usize(..2)]),
            window: Duration::from_secs([0, 60][rng.usize(..2)]),
            pace: [5, 30, 100][rng.usize(..3)],
        }
    }

    /// Returns the time that a fetcher waits for a payload that is not on offer.
    fn patience(&self) -> Duration {
        self.redelivery + self.window + Duration::from_secs(30)
    }
}

/// Counters of events: a simulation in which little happens proves little.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

#[test]
fn what_is_acknowledged_upstream_has_been_processed() {
    check(WORLDS);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_what_is_acknowledged_upstream_has_been_processed() {
    check(100 * WORLDS);
}

fn check(worlds: u64) {
    let seed = std::env::var("MULTINET_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = seed.map_or(1..1 + worlds, |seed| seed..seed + 1);
    let mut tally = Tally::default();
    for seed in seeds {
        let plan = Plan::of(seed);
        let mut world = World::new(plan, tally);
        let outcome = catch_unwind(AssertUnwindSafe(|| world.run(STEPS)));
        if let Err(message) = outcome.unwrap_or_else(|_| Err("a panic".to_owned())) {
            println!("{}", world.events());
            panic!("MULTINET_SEED={seed}: {message}; {plan:?}");
        }
        tally = world.end();
    }
    println!("{tally:?}");
    if seed.is_none() {
        for what in world::SEEN {
            let count = tally.0.get(what).copied().unwrap_or_default();
            assert!(count >= worlds / 2, "this happened too rarely to prove anything: {what}: {count}");
        }
    }
}
