//! Sender of frames with keys. Each key is one stream, whose frames have to reach one receiver.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::stage::Stage;
use super::tally::all_arrived;
use super::turmoil::Programs;
use super::vertex::Record;

const SENDER: &str = "keyed";
const KEYS: usize = 24;

/// Least number of frames before and after the loss of a receiver.
const FRAMES: u64 = 3000;

/// Kills one of three receivers. Returns the programs that are left.
pub(super) async fn run(stage: &Stage, programs: Programs) -> Result<Programs> {
    let Programs { mut sinks, once, kept } = programs;
    let options = format!("--at-least-once --keys {KEYS} --rate 2000 --size 64");
    let mut keyed = kept.restart(stage, SENDER, &options).await?;
    keyed.connected(3).await?;
    let before = keyed.shows("have sent enough", |status| status.sent > FRAMES).await?;
    ensure!(before.repeats == 0, "{before:?}");
    let mut lost = sinks.remove(0);
    let died_with = lost.name.clone();
    lost.kill()?;
    let mut records = vec![lost.remove().await?];
    let after = keyed.connected(2).await?;
    keyed.shows("have sent enough", |status| status.sent > after.sent + FRAMES).await?;
    let status = keyed.finish().await?;
    for sink in &sinks {
        records.push(sink.record()?);
    }
    let twice = all_arrived(&records, SENDER, &status)?;
    eprintln!("by key: {twice} at more than one receiver; {status:?}");
    check(&records, &died_with)?;
    Ok(Programs { sinks, once, kept: keyed })
}

fn check(records: &[Record], lost: &str) -> Result<()> {
    // For each key, the receivers of its frames with the last number of each.
    let mut places = BTreeMap::<&str, BTreeMap<&str, u64>>::new();
    for Record { name, frames, .. } in records {
        for frame in frames.iter().filter(|frame| frame.sender == SENDER) {
            let last = places.entry(&frame.key).or_default().entry(name).or_default();
            let (key, number) = (&frame.key, frame.number);
            ensure!(*last < number, "{name} got frame {number} of {key} after frame {last}");
            *last = number;
        }
    }
    ensure!(places.len() == KEYS, "{} keys", places.len());
    let mut moved = 0;
    for (key, sinks) in &places {
        // A key of the lost receiver has moved to exactly one other.
        let expected = if sinks.contains_key(lost) { 2 } else { 1 };
        moved += expected - 1;
        ensure!(sinks.len() == expected, "the frames of {key} went to {sinks:?}; {lost} was lost");
    }
    ensure!(moved > 0 && moved < KEYS, "{moved} of {KEYS} keys moved");
    eprintln!("{moved} of {KEYS} keys moved");
    Ok(())
}
