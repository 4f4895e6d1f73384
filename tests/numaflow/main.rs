//! multinet-numaflow with the real controller of Numaflow and a real API server: direct edges are
//! injected, changed, repaired and removed, by Numaflow's own rolling updates.

mod balancer;
mod chain;
mod faults;
mod stage;
mod steps;

use std::time::Instant;

use anyhow::{Context as _, Result};
use multinet_testing::sandboxed;

use crate::chain::Chain;
use crate::stage::Stage;

/// The steps follow each other on one Pipeline, as in its life.
#[tokio::test]
async fn direct_edges_follow_their_pipeline() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let report = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    let mut stage = Stage::start().await.context("the start")?;
    report("multinet-numaflow and, later, Numaflow run");
    steps::first_pods_have_everything(&stage).await.context("first pods")?;
    steps::nothing_fights(&stage).await.context("a quiet time")?;
    report("the first pods have everything, and stay");
    let chain = Chain::start(&stage).await.context("the start of the chain")?;
    chain::frames_reach_the_next_vertex(&stage, &chain).await.context("frames")?;
    report("frames have reached the next vertex");
    chain::claims_become_names(&stage, &chain).await.context("claims")?;
    drop(chain);
    report("claims have become names");
    steps::bystanders_are_untouched(&stage).await.context("a Pipeline without edges")?;
    steps::wrong_edges_are_reported(&stage).await.context("wrong edges")?;
    report("wrong edges are reported");
    steps::scaling_needs_no_webhook(&mut stage).await.context("scaling without webhook")?;
    steps::a_missed_vertex_is_repaired(&mut stage).await.context("repair")?;
    steps::a_vertex_edited_by_hand_is_repaired(&stage).await.context("an edit by hand")?;
    report("vertices were scaled and repaired after an outage");
    steps::a_changed_edge_rolls_its_vertices(&stage).await.context("a changed edge")?;
    steps::the_certificate_is_replaced(&stage).await.context("a new certificate")?;
    report("an edge and the certificate changed");
    faults::both_replicas_answer(&mut stage).await.context("two replicas")?;
    faults::the_certificate_rotates_under_load(&stage).await.context("rotation")?;
    report("the certificate was rotated under load");
    faults::outages_end_in_the_plan(&mut stage, 5).await.context("outages")?;
    report("outages have ended in the plan");
    steps::fail_closed_waits(&mut stage).await.context("--fail-closed")?;
    report("a changed vertex waited for the webhook");
    steps::a_removed_edge_leaves_nothing(&stage).await.context("a removed edge")?;
    steps::deletion_takes_everything(&stage).await.context("deletion")?;
    report("the Pipeline is deleted");
    steps::a_policy_injects_without_webhook(&stage).await.context("the policy")?;
    report("a policy has injected");
    stage.numaflow.kill()
}

/// A replica, or all, or Numaflow, or the API server is killed during fifty rollouts.
#[tokio::test]
#[ignore = "takes minutes"]
async fn soak_outages_of_the_webhook_end_in_the_plan() -> Result<()> {
    sandboxed!();
    let mut stage = Stage::start().await.context("the start")?;
    steps::first_pods_have_everything(&stage).await.context("first pods")?;
    faults::both_replicas_answer(&mut stage).await.context("two replicas")?;
    faults::outages_end_in_the_plan(&mut stage, 50).await?;
    stage.numaflow.kill()
}
