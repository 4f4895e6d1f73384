//! Frames from pod to pod through the whole chain: API server, controller, `multinet-dns`, CoreDNS,
//! Multus and macvlan.

mod keyed;
mod orderly;
mod stage;
mod tally;
mod turmoil;
mod vertex;

use std::time::Instant;

use anyhow::{Context as _, Result};
use multinet_testing::sandboxed;

use self::stage::Stage;

/// The steps run one after the other. Each begins with the pods that the one before has left.
#[tokio::test]
async fn frames_flow_from_pod_to_pod_through_the_whole_chain() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let report = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    let mut stage = Stage::start().await.context("the start of the chain")?;
    report("the chain runs");
    let programs = turmoil::run(&mut stage, &report).await.context("pods that come, go and are replaced")?;
    report("frames were counted and repeated as promised");
    let programs = keyed::run(&stage, programs).await.context("frames by key")?;
    report("keys have stayed at their receivers");
    orderly::run(&stage, programs).await.context("a receiver that ends gracefully")?;
    report("a graceful end has lost only the frames that were counted");
    Ok(())
}
