//! A write there, one back, and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use multinet_client::verbs::Pair;

use super::super::Extent;
use super::super::figures::Latency;
use super::{Connected, RECEIVED, succeeded};

/// How long an answer may take.
const HUNG: Duration = Duration::from_secs(30);

/// How many round trips come before those that count.
const WARM_UP: u64 = 10;

/// Number of our own writes.
const WRITTEN: u64 = 0;

/// The client's side.
pub(super) fn measure(connected: &Connected, extent: Extent) -> anyhow::Result<Latency> {
    let (count, time) = match extent {
        Extent::Count(count) => (count, Duration::MAX),
        Extent::Time(time) => (u64::MAX, time),
    };
    let pair = pair(connected)?;
    for _ in 0..WARM_UP {
        there_and_back(connected, pair)?;
    }
    let (mut round_trips, begin) = (Vec::new(), Instant::now());
    while (round_trips.len() as u64) < count && begin.elapsed() < time {
        let start = Instant::now();
        there_and_back(connected, pair)?;
        round_trips.push(start.elapsed());
    }
    Latency::of(connected.size, round_trips).context("no round trip was measured")
}

fn there_and_back(connected: &Connected, pair: &Pair) -> anyhow::Result<()> {
    pair.write(&[connected.message(WRITTEN, Some(0), true)])?;
    let begin = Instant::now();
    while !is_written_to(connected, pair)? {
        ensure!(begin.elapsed() < HUNG, "no answer for {} s", HUNG.as_secs());
    }
    Ok(())
}

/// The server's side, until it is to stop.
pub(super) fn echo(connected: &Connected, stop: &AtomicBool) -> anyhow::Result<()> {
    let pair = pair(connected)?;
    while !stop.load(Ordering::Relaxed) {
        if is_written_to(connected, pair)? {
            pair.write(&[connected.message(WRITTEN, Some(0), true)])?;
        }
    }
    Ok(())
}

/// Whether the other side has written, since this was asked last.
fn is_written_to(connected: &Connected, pair: &Pair) -> anyhow::Result<bool> {
    let Some(completion) = connected.queue.poll()? else {
        // The device's driver may need this processor.
        std::thread::yield_now();
        return Ok(false);
    };
    let is_theirs = succeeded(completion)?.id == RECEIVED;
    if is_theirs {
        pair.receive(RECEIVED)?;
    }
    Ok(is_theirs)
}

fn pair(connected: &Connected) -> anyhow::Result<&Pair> {
    connected.pairs.first().context("there is no queue pair")
}
