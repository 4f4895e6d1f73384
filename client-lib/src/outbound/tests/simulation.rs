//! Simulated worlds: senders, receivers and a network with random faults and a clock of its own.
//! Separate bookkeeping checks what must hold.
//!
//! `MULTINET_SEED=17 cargo test -p multinet-client --lib simulation` runs one world again. After a
//! failure, the test looks for simpler worlds that fail, too, and prints the last events of the
//! simplest.

mod network;
mod plan;
mod receiver;
mod sender;
mod tally;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::Plan;
use tally::Tally;
use world::World;

/// Number of worlds to run by default.
const WORLDS: u64 = 200;

/// Steps in each world between two phases of healing.
const STEPS: usize = 1_000;

/// Seeds that are tried with each simpler plan.
const TRIES: u64 = 50;

/// Outcome of a check. The error says what does not hold.
type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// A check that failed, and the events before.
#[derive(Debug)]
struct Failure {
    plan: Plan,
    step: usize,
    message: String,
    events: Vec<String>,
}

#[test]
fn nothing_that_was_promised_is_lost() {
    check(WORLDS);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_nothing_that_was_promised_is_lost() {
    check(50 * WORLDS);
}

fn check(worlds: u64) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("MULTINET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + worlds,
    };
    let start = std::time::Instant::now();
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        match run(Plan::of(seed, STEPS), false) {
            Ok(more) => tally.merge(&more),
            Err(failure) => report(failure),
        }
    }
    if seeds.end - seeds.start > 1 {
        let seen =
            ["dropped", "stale data", "repeats", "rejected", "lost", "undeliverable", "refused", "limited"];
        for what in seen {
            assert!(
                tally.get(what) >= worlds / 10,
                "this happened too rarely to prove anything: {what}: {tally}"
            );
        }
    }
    println!("{tally}{:.0} steps each second", tally.get("steps") as f64 / start.elapsed().as_secs_f64());
}

#[expect(clippy::result_large_err, reason = "a failure happens once, and is printed in full")]
fn run(plan: Plan, logs: bool) -> Result<Tally, Failure> {
    let mut world = World::new(plan, logs);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let outcome = outcome.unwrap_or_else(|_| Err("a panic".to_owned()));
    let (step, tally, events) = world.end();
    outcome.map(|()| tally).map_err(|message| Failure { plan, step, message, events })
}

fn report(found: Failure) -> ! {
    let seed = found.plan.seed;
    let simplest = simplify(found);
    let shown = run(simplest.plan, true).err().unwrap_or(simplest);
    println!("{}", shown.events.join("\n"));
    panic!("MULTINET_SEED={seed}; simplest: step {} of {:?}: {}", shown.step, shown.plan, shown.message);
}

/// Returns the failure of a simpler world, if one can be found.
fn simplify(mut failure: Failure) -> Failure {
    'again: loop {
        let weight = (failure.plan.weight(), failure.step);
        for plan in failure.plan.simpler() {
            for seed in (0..TRIES).map(|more| plan.seed.wrapping_add(more * 1_000_003)) {
                if let Err(simpler) = run(Plan { seed, ..plan }, false)
                    && (simpler.plan.weight(), simpler.step) < weight
                {
                    failure = simpler;
                    continue 'again;
                }
            }
        }
        return failure;
    }
}
