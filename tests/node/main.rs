//! The shipped manifests on a node, with real pods on real secondary networks: API server, kubelet,
//! containerd, Multus, macvlan and whereabouts.

mod attached;
mod pipeline;
mod stage;
mod steps;

use std::time::Instant;

use anyhow::{Context as _, Result};
use multinet_testing::sandboxed;

use crate::stage::Stage;

/// The steps run on one node, one after the other. Each begins with the pods that the one before
/// has left, all ready.
#[tokio::test]
async fn the_shipped_manifests_follow_real_pods() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let stage = Stage::start().await.context("the start of the node")?;
    let report = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    report("the shipped manifests run");
    steps::the_name_server_has_an_address(&stage).await.context("the name server")?;
    steps::network_comes_late(&stage).await.context("a network that is created late")?;
    report("a network was created late");
    steps::second_nics_are_found(&stage).await.context("pods at their second NICs")?;
    report("pods were reached at their second NICs");
    steps::failing_probe(&stage).await.context("a failing probe")?;
    report("a probe failed and recovered");
    steps::deleted_pod_is_replaced(&stage).await.context("a deleted pod")?;
    report("a deleted pod was replaced");
    steps::same_name_other_address(&stage).await.context("the same name with another address")?;
    report("a pod of the same name got another address");
    steps::own_pods_killed(&stage).await.context("kills of our own programs")?;
    report("our own programs were killed");
    steps::own_pods_deleted(&stage).await.context("deletion of our own pods")?;
    report("our own pods were deleted");
    pipeline::vertices_get_second_nics(&stage).await.context("a Pipeline")?;
    report("the vertices of a Pipeline have second NICs");
    Ok(())
}
