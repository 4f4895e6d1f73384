//! Runs all programs, one after the other, again and again.

use anyhow::{Context as _, Result};

use crate::Extent;
use crate::figures::{Bandwidths, Figures, Latencies};
use crate::programs::{
    Load, multinet_latency, multinet_rate, perftest_latency, perftest_rate, ucx_rate, ucx_tests,
};

/// So often others' programs are tried: on a busy machine perftest does not always get along with the guest's clock.
const ATTEMPTS: usize = 2;

/// In microseconds: with `--busy-poll` nobody sleeps between messages.
const BUSY: u32 = 100_000;

/// Measures, and says after each round what has come of all so far.
pub(crate) fn measure(extent: Extent, mut say: impl FnMut(&Figures) -> Result<()>) -> Result<()> {
    let mut figures = Figures::default();
    for &pairs in extent.pairs {
        figures.bandwidths.extend(extent.sizes.iter().map(|&size| Bandwidths::none(size, pairs)));
    }
    figures.latencies = extent.latencies.iter().map(|&size| Latencies::none(size)).collect();
    for _ in 0..extent.rounds {
        for bandwidths in &mut figures.bandwidths {
            let load = extent.load(bandwidths.size, bandwidths.pairs);
            bandwidths.add(load, &mut figures.failures)?;
        }
        for latencies in &mut figures.latencies {
            latencies.add(extent.trips, &mut figures.failures)?;
        }
        say(&figures)?;
    }
    Ok(())
}

impl Extent {
    fn load(&self, size: u32, pairs: u16) -> Load {
        let messages = (self.bytes / u64::from(size)).clamp(10, self.messages);
        Load { size, pairs, iterations: (messages / u64::from(pairs)).max(5) }
    }
}

impl Bandwidths {
    fn none(size: u32, pairs: u16) -> Self {
        let [frames, perftest, ucx] = [const { Vec::new() }; 3];
        Self { size, pairs, frames, perftest, ucx }
    }

    fn add(&mut self, load: Load, failures: &mut Vec<String>) -> Result<()> {
        add(&mut self.perftest, || others("ib_write_bw", load, failures, || perftest_rate(load)));
        self.frames.push(Some(multinet_rate(load)?));
        add(&mut self.ucx, || fastest_ucx(load, failures));
        Ok(())
    }
}

impl Latencies {
    fn none(size: u32) -> Self {
        let [frames, busy, perftest] = [const { Vec::new() }; 3];
        Self { size, frames, busy, perftest }
    }

    fn add(&mut self, trips: u64, failures: &mut Vec<String>) -> Result<()> {
        let load = Load { size: self.size, pairs: 1, iterations: trips };
        add(&mut self.perftest, || others("ib_write_lat", load, failures, || perftest_latency(load)));
        self.frames.push(Some(multinet_latency(load, 0)?));
        self.busy.push(Some(multinet_latency(load, BUSY)?));
        Ok(())
    }
}

/// Who has not got it done once is not tried again: it may take a minute to fail.
fn add(figures: &mut Vec<Option<f64>>, run: impl FnOnce() -> Option<f64>) {
    let has_failed = figures.iter().any(Option::is_none);
    figures.push(if has_failed { None } else { run() });
}

/// `None` where there are several queue pairs, which it has not.
fn fastest_ucx(load: Load, failures: &mut Vec<String>) -> Option<f64> {
    if load.pairs > 1 {
        return None;
    }
    let tests = ucx_tests(load.size).iter();
    let all = tests.filter_map(|test| {
        others(&format!("ucx_perftest -t {test}"), load, failures, || ucx_rate(test, load))
    });
    all.max_by(f64::total_cmp)
}

/// `None` if others' program does not get it done.
fn others(name: &str, load: Load, failures: &mut Vec<String>, run: impl Fn() -> Result<f64>) -> Option<f64> {
    let mut outcome = run();
    for _ in 1..ATTEMPTS {
        outcome = outcome.or_else(|_| run());
    }
    let context = || format!("{name}, {} bytes, {} queue pairs", load.size, load.pairs);
    outcome.with_context(context).map_err(|error| failures.push(one_line(&error))).ok()
}

fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.truncate(words.floor_char_boundary(300));
    words
}
