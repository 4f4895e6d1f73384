//! Receiver that ends gracefully. It first reports which frames it has taken and acknowledged, so
//! that these are neither counted as lost nor sent again.

use anyhow::{Context as _, Result, ensure};

use super::stage::Stage;
use super::tally::{all_arrived, missing};
use super::turmoil::Programs;

const ONCE: &str = "once-more";
const KEPT: &str = "kept-more";

/// Least number of frames before and after the end.
const FRAMES: u64 = 3000;

/// Ends one of two receivers.
pub(super) async fn run(stage: &Stage, programs: Programs) -> Result<()> {
    let Programs { mut sinks, once, kept } = programs;
    let mut once = once.restart(stage, ONCE, "--size 1000").await?;
    let mut kept = kept.restart(stage, KEPT, "--size 1000 --at-least-once").await?;
    for source in [&mut once, &mut kept] {
        source.connected(2).await?;
        source.shows("have sent enough", |status| status.sent > FRAMES).await?;
    }
    let mut first = sinks.pop().context("no receiver")?;
    first.terminate().await?;
    let mut records = vec![first.remove().await?];
    for source in [&mut once, &mut kept] {
        let after = source.connected(1).await?;
        source.shows("have sent enough", |status| status.sent > after.sent + FRAMES).await?;
    }
    let (once, kept) = (once.finish().await?, kept.finish().await?);
    for sink in &sinks {
        records.push(sink.record()?);
    }
    let missing = missing(&records, ONCE, &once)?;
    let twice = all_arrived(&records, KEPT, &kept)?;
    eprintln!("a graceful end: {missing} missing; {once:?}; {twice} at more than one receiver; {kept:?}");
    ensure!(missing == once.lost, "{missing} frames are missing, but {} were counted as lost", once.lost);
    ensure!(twice == 0, "{twice} acknowledged frames were sent again");
    Ok(())
}
