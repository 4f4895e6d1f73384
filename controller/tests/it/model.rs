//! The controller's pure core against a plain model: whatever happens, in whichever order it is told, the slices, mirrors and
//! statuses come to say what the design says.
//!
//! ```text
//!  operations ──> Cluster ── Watches ──> ClusterIndex ── Queue ──> Job ──> Cluster
//!                    │      (late, lost,   │      (conflicts, lost answers)
//!                    │       repeated)     │
//!                    └──> Expected ── Order ┘ who had an address first
//! ```
//!
//! [`Cluster`](cluster::Cluster) is what there is. The watches tell the [`ClusterIndex`](multinet_controller::index::ClusterIndex) of it, from the JSON
//! that an API server would send, and the jobs do what it decides. [`Expected`](expected::Expected) makes everything anew from all objects,
//! in the simplest way there is; it shares no code with the controller.
//!
//! `PROPTEST_CASES=5000 cargo test -p multinet-controller --test it model::` runs more cases; `PROPTEST_RNG_SEED` others.

mod check;
mod clock;
mod cluster;
mod edits;
mod expected;
mod limits;
mod objects;
mod operations;
mod order;
mod probes;
mod services;
mod simulation;
mod watches;
mod writer;

use multinet_controller::caps::Caps;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError};

use self::cluster::Cluster;
use self::operations::{Operation, operation};
use self::simulation::Simulation;

/// How many cases run, and from which seed, unless the environment says otherwise.
const CASES: u32 = 160;
const SEED: u64 = 4;

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let has = |name| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if has("PROPTEST_CASES") { default.cases } else { CASES },
        rng_seed: if has("PROPTEST_RNG_SEED") { default.rng_seed } else { RngSeed::Fixed(SEED) },
        max_shrink_iters: 4000,
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn it_comes_to_say_what_it_should(
        limit in 1usize..8,
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        run(limit, &operations)?;
    }

    #[test]
    fn it_keeps_to_limits(
        limit in 1usize..8,
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        run_with_limits(limit, &operations)?;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    clock::reset();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

fn run_with_limits(limit: usize, operations: &[Operation]) -> Result<(), TestCaseError> {
    runtime().block_on(async {
        let mut simulation = Simulation::new(limit, limits::CAPS, Cluster::new());
        for operation in operations {
            simulation.apply(operation).await;
            if matches!(operation, Operation::Rest) {
                limits::check(&simulation)?;
            }
        }
        simulation.rest().await;
        limits::check(&simulation)?;
        probes::nothing_is_left_to_do(&mut simulation).await?;
        probes::a_newcomer_agrees(&simulation)
    })
}

fn run(limit: usize, operations: &[Operation]) -> Result<(), TestCaseError> {
    runtime().block_on(async {
        let mut simulation = Simulation::new(limit, Caps::default(), Cluster::new());
        for operation in operations {
            simulation.apply(operation).await;
            if matches!(operation, Operation::Rest) {
                check::check(&simulation)?;
            }
        }
        simulation.rest().await;
        check::check(&simulation)?;
        probes::nothing_is_left_to_do(&mut simulation).await?;
        probes::noise_is_no_work(&mut simulation)?;
        probes::a_newcomer_agrees(&simulation)?;
        probes::one_pod_is_one_write(&mut simulation).await?;
        probes::own_writes_are_known(&mut simulation).await?;
        probes::one_zone_is_one_write(&mut simulation).await?;
        probes::one_network_is_no_write(&mut simulation).await?;
        probes::the_newest_generation_counts(&mut simulation).await?;
        probes::names_come_back(&mut simulation).await
    })
}
