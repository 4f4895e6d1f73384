//! Senders, receivers and a network between them, by chance and with a clock of their own, next to books of what must hold.
//!
//! `MULTINET_SEED=17 cargo test -p multinet-client --lib simulation` runs one world again. When something does not hold,
//! simpler worlds are looked for in which it does not either, and the last events of the simplest are told.

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

/// Worlds that are run if nothing else is said.
const WORLDS: u64 = 200;

/// Steps in each world between two times of peace.
const STEPS: usize = 1_000;

/// Seeds that are tried with each simpler plan.
const TRIES: u64 = 50;

/// `Err`: what does not hold.
type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// What was found, and when.
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
        let seen = [
            "passed over",
            "stale data",
            "repeats",
            "rejected",
            "lost",
            "undeliverable",
            "refused",
            "limited",
        ];
        for what in seen {
            assert!(
                tally.get(what) >= worlds / 10,
                "there is too little of this to prove anything: {what}: {tally}"
            );
        }
    }
    println!("{tally}{:.0} steps each second", tally.get("steps") as f64 / start.elapsed().as_secs_f64());
}

#[expect(clippy::result_large_err, reason = "a failure happens once, and is told in full")]
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
    let told = run(simplest.plan, true).err().unwrap_or(simplest);
    println!("{}", told.events.join("\n"));
    panic!("MULTINET_SEED={seed}; simplest: step {} of {:?}: {}", told.step, told.plan, told.message);
}

/// Looks for a simpler world in which something does not hold either.
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
