//! A sender of frames with keys: each key is one stream, and its frames belong together.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::stage::Stage;
use super::tally::all_arrived;
use super::turmoil::Cast;
use super::vertex::Record;

const SENDER: &str = "keyed";
const KEYS: usize = 24;

/// How many frames are sent before and after a receiver is lost, at least.
const FRAMES: u64 = 3000;

/// One of three receivers dies. Gives those that are left.
pub(super) async fn play(stage: &Stage, cast: Cast) -> Result<Cast> {
    let Cast { mut sinks, once, kept } = cast;
    let options = format!("--at-least-once --keys {KEYS} --rate 2000 --size 64");
    let mut keyed = kept.again(stage, SENDER, &options).await?;
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
    Ok(Cast { sinks, once, kept: keyed })
}

fn check(records: &[Record], lost: &str) -> Result<()> {
    // By key: the receivers that had its frames, with the last number of each.
    let mut places = BTreeMap::<&str, BTreeMap<&str, u64>>::new();
    for Record { name, frames, .. } in records {
        for frame in frames.iter().filter(|frame| frame.sender == SENDER) {
            let last = places.entry(&frame.key).or_default().entry(name).or_default();
            let (key, number) = (&frame.key, frame.number);
            ensure!(*last < number, "{name} had frame {number} of {key} after frame {last}");
            *last = number;
        }
    }
    ensure!(places.len() == KEYS, "{} keys", places.len());
    let mut moved = 0;
    for (key, sinks) in &places {
        // A key of the one that was lost has moved to one other, and to one only.
        let expected = if sinks.contains_key(lost) { 2 } else { 1 };
        moved += expected - 1;
        ensure!(sinks.len() == expected, "the frames of {key} went to {sinks:?}; {lost} was lost");
    }
    ensure!(moved > 0 && moved < KEYS, "{moved} of {KEYS} keys moved");
    eprintln!("{moved} of {KEYS} keys moved");
    Ok(())
}
