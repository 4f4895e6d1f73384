//! Frames from pod to pod, by everything that stands between them: API server, controller, `multinet-dns`, CoreDNS, Multus, macvlan.

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

/// A pipeline's life. Each act goes on with the pods that the one before it has left.
#[tokio::test]
async fn frames_find_their_way() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let told = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    let mut stage = Stage::set().await.context("setting the stage")?;
    told("the chain runs");
    let cast = turmoil::play(&mut stage, &told).await.context("pods come, go and are replaced")?;
    told("nothing was lost that was promised");
    let cast = keyed::play(&stage, cast).await.context("frames by key")?;
    told("keys have stayed where they belong");
    orderly::play(&stage, cast).await.context("a receiver that ends in order")?;
    told("an orderly end has lost what it said, and nothing more");
    Ok(())
}
