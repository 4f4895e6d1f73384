//! Compares the controller's pure core with a plain model. After any events in any order, slices,
//! mirrors and statuses must finally be as specified.
//!
//! ```text
//!  operations ──> Cluster ── Watches ──> ClusterIndex ── Queue ──> Job ──> Cluster
//!                    │      (late, lost,   │             (conflicts, lost answers)
//!                    │       repeated)     │
//!                    └──> Expected ── Order ┘ which pod had an address first
//! ```
//!
//! [`Cluster`](cluster::Cluster) holds the objects. The watches feed the
//! [`ClusterIndex`](multinet_controller::index::ClusterIndex) from the JSON that an API server
//! would send, and jobs perform what it decides. [`Expected`](expected::Expected) computes
//! everything again from all objects in the simplest way. It shares no code with the controller.
//!
//! `PROPTEST_CASES=5000 cargo test -p multinet-controller --test it model::` runs more cases, and
//! `PROPTEST_RNG_SEED` selects others.

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

/// Number of cases, and their seed, unless environment variables set them.
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
    fn the_cluster_reaches_the_specified_state(
        limit in 1usize..8,
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        run(limit, &operations)?;
    }

    #[test]
    fn published_addresses_stay_within_limits(
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
        probes::planning_again_writes_nothing(&mut simulation).await?;
        probes::a_new_controller_agrees(&simulation)
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
        probes::planning_again_writes_nothing(&mut simulation).await?;
        probes::unrelated_changes_cause_no_work(&mut simulation)?;
        probes::a_new_controller_agrees(&simulation)?;
        probes::a_pod_costs_one_write_per_slice(&mut simulation).await?;
        probes::own_writes_are_known(&mut simulation).await?;
        probes::a_zone_costs_one_write_per_slice(&mut simulation).await?;
        probes::a_network_costs_no_write(&mut simulation).await?;
        probes::the_newest_generation_counts(&mut simulation).await?;
        probes::removed_service_labels_come_back(&mut simulation).await
    })
}
