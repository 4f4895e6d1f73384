//! multinet-numaflow with the real controller of Numaflow and a real API server: direct edges are
//! injected, changed, repaired and removed, by Numaflow's own rolling updates.

mod stage;
mod steps;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::sandboxed;

use crate::stage::Stage;

/// The steps follow each other on one Pipeline, as in its life.
#[tokio::test]
async fn direct_edges_follow_their_pipeline() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let report = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    let mut stage = Stage::start().await.context("the start")?;
    report("Numaflow and multinet-numaflow run");
    steps::first_pods_have_everything(&stage).await.context("first pods")?;
    steps::nothing_fights(&stage).await.context("a quiet time")?;
    report("the first pods have everything, and stay");
    steps::bystanders_are_untouched(&stage).await.context("a Pipeline without edges")?;
    steps::wrong_edges_are_reported(&stage).await.context("wrong edges")?;
    report("wrong edges are reported");
    steps::scaling_needs_no_webhook(&mut stage).await.context("scaling without webhook")?;
    steps::a_missed_vertex_is_repaired(&mut stage).await.context("repair")?;
    report("vertices were scaled and repaired after an outage");
    steps::a_changed_edge_rolls_its_vertices(&stage).await.context("a changed edge")?;
    steps::the_certificate_is_replaced(&stage).await.context("a new certificate")?;
    report("an edge and the certificate changed");
    steps::fail_closed_waits(&mut stage).await.context("--fail-closed")?;
    report("a changed vertex waited for the webhook");
    steps::a_removed_edge_leaves_nothing(&stage).await.context("a removed edge")?;
    steps::deletion_takes_everything(&stage).await.context("deletion")?;
    report("the Pipeline is deleted");
    steps::a_policy_injects_without_webhook(&stage).await.context("the policy")?;
    report("a policy has injected");
    ensure!(!stage.numaflow.log().contains("panic"), "Numaflow panicked");
    Ok(())
}

/// The program is killed during fifty rollouts, at any moment.
#[tokio::test]
#[ignore = "takes a quarter of an hour"]
async fn soak_outages_of_the_webhook_end_in_the_plan() -> Result<()> {
    sandboxed!();
    let mut stage = Stage::start().await.context("the start")?;
    steps::first_pods_have_everything(&stage).await.context("first pods")?;
    steps::outages_end_in_the_plan(&mut stage, 50).await?;
    ensure!(!stage.numaflow.log().contains("panic"), "Numaflow panicked");
    Ok(())
}
