//! A receiver that is asked to end says what it has taken and acknowledged before it goes: what it had taken is neither counted as lost
//! nor sent again.

use anyhow::{Context as _, Result, ensure};

use super::stage::Stage;
use super::tally::{all_arrived, missing};
use super::turmoil::Cast;

const ONCE: &str = "once-more";
const KEPT: &str = "kept-more";

/// How many frames are sent before and after the end, at least.
const FRAMES: u64 = 3000;

/// One of two receivers ends.
pub(super) async fn play(stage: &Stage, cast: Cast) -> Result<()> {
    let Cast { mut sinks, once, kept } = cast;
    let mut once = once.again(stage, ONCE, "--size 1000").await?;
    let mut kept = kept.again(stage, KEPT, "--size 1000 --at-least-once").await?;
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
    eprintln!("an orderly end: {missing} missing; {once:?}; {twice} at more than one receiver; {kept:?}");
    ensure!(missing == once.lost, "{missing} are missing, {} are said to be lost", once.lost);
    ensure!(twice == 0, "{twice} had been acknowledged, and were sent again");
    Ok(())
}
