//! The shipped manifests on a node, with real pods on real secondary networks: API server, kubelet,
//! containerd, Multus, macvlan and whereabouts.

mod attached;
mod stage;
mod steps;

use std::time::Instant;

use anyhow::{Context as _, Result};
use multinet_testing::sandboxed;

use crate::stage::Stage;

/// A life of a user's pods and of ours, on one node. Each step finds the pods that the one before
/// it has left, all ready.
#[tokio::test]
async fn what_is_shipped_follows_real_pods() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let stage = Stage::set().await.context("setting the stage")?;
    let told = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    told("what we ship runs");
    steps::the_name_server_has_an_address(&stage).await.context("the name server")?;
    steps::network_comes_late(&stage).await.context("a network that comes late")?;
    told("a network came late");
    steps::second_nics_are_found(&stage).await.context("second NICs are found")?;
    told("second NICs were found");
    steps::failing_probe(&stage).await.context("a failing probe")?;
    told("a probe failed and recovered");
    steps::deleted_pod_is_replaced(&stage).await.context("a deleted pod")?;
    told("a deleted pod was replaced");
    steps::same_name_other_address(&stage).await.context("the same name with another address")?;
    told("a pod came again with another address");
    steps::own_pods_killed(&stage).await.context("our own pods killed")?;
    told("our own pods were killed");
    steps::own_pods_deleted(&stage).await.context("our own pods deleted")?;
    told("our own pods were deleted");
    Ok(())
}
