//! A receiver that is asked to end says what it has taken before it goes: then the sender's count of losses is exact.

use anyhow::{Context as _, Result, ensure};

use super::stage::Stage;
use super::tally::missing;
use super::turmoil::Cast;
use super::vertex::Sink;

const SENDER: &str = "orderly";

pub(super) async fn play(stage: &Stage, cast: Cast) -> Result<()> {
    let Cast { mut sinks, once, .. } = cast;
    let mut source = once.again(stage, SENDER, "--size 1000").await?;
    source.connected(2).await?;
    source.shows("have sent enough", |status| status.sent > 3000).await?;
    let mut first = sinks.pop().context("no receiver")?;
    first.terminate().await?;
    let mut records = vec![first.remove().await?];
    let after = source.connected(1).await?;
    source.shows("have sent enough", |status| status.sent > after.sent + 3000).await?;
    let status = source.finish().await?;
    for sink in &sinks {
        records.push(Sink::record(sink)?);
    }
    let missing = missing(&records, SENDER, &status)?;
    eprintln!("an orderly end: {missing} missing; {status:?}");
    ensure!(missing == status.lost, "{missing} are missing, {} are said to be lost", status.lost);
    Ok(())
}
