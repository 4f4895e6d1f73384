//! Runs all programs, one after the other, again and again.

use anyhow::{Context as _, Result};

use crate::Extent;
use crate::figures::{Bandwidths, Figures, Latencies, Run};
use crate::programs::{
    Done, Load, multinet_bandwidth, multinet_latency, perftest_bandwidth, perftest_latency, ucx_bandwidth,
    ucx_tests,
};

/// So often others' programs are tried: on a busy machine perftest does not always get along with the guest's clock.
const ATTEMPTS: usize = 2;

/// In microseconds: with `--busy-poll` nobody sleeps between messages.
const BUSY: u32 = 100_000;

/// What a start costs, by each program.
#[derive(Default)]
struct Starts {
    multinet: f64,
    perftest: Option<f64>,
    ucx: Option<f64>,
}

/// Measures, and says after each round what has come of all so far.
pub(crate) fn measure(extent: Extent, mut say: impl FnMut(&Figures) -> Result<()>) -> Result<()> {
    let mut figures = Figures::default();
    let mut loads = Vec::new();
    for &pairs in extent.pairs {
        for &size in extent.sizes {
            let load = extent.load(size, pairs);
            loads.push((load, Starts::of(load.least(), &mut figures.failures)?));
            figures.bandwidths.push(Bandwidths::none(size, pairs));
        }
    }
    figures.latencies = extent.latencies.iter().map(|&size| Latencies::none(size)).collect();
    for _ in 0..extent.rounds {
        for (bandwidths, (load, starts)) in figures.bandwidths.iter_mut().zip(&loads) {
            bandwidths.add(*load, starts, &mut figures.failures)?;
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

impl Starts {
    fn of(least: Load, failures: &mut Vec<String>) -> Result<Self> {
        Ok(Self {
            multinet: multinet_bandwidth(least)?.cpu,
            perftest: others("ib_write_bw", least, failures, || perftest_bandwidth(least))
                .map(|done| done.cpu),
            ucx: fastest_ucx(least, failures).map(|done| done.cpu),
        })
    }
}

impl Bandwidths {
    fn none(size: u32, pairs: u16) -> Self {
        Self { size, pairs, multinet: Vec::new(), perftest: Vec::new(), ucx: Vec::new() }
    }

    fn add(&mut self, load: Load, starts: &Starts, failures: &mut Vec<String>) -> Result<()> {
        self.multinet.push(Some(run(multinet_bandwidth(load)?, starts.multinet)));
        // Who does not get the least of it done is not tried again: it may take a minute to fail.
        let perftest = starts.perftest.and_then(|start| {
            let done = others("ib_write_bw", load, failures, || perftest_bandwidth(load))?;
            Some(run(done, start))
        });
        self.perftest.push(perftest);
        self.ucx.push(starts.ucx.and_then(|start| Some(run(fastest_ucx(load, failures)?, start))));
        Ok(())
    }
}

impl Latencies {
    fn none(size: u32) -> Self {
        Self { size, multinet: Vec::new(), busy: Vec::new(), perftest: Vec::new() }
    }

    fn add(&mut self, trips: u64, failures: &mut Vec<String>) -> Result<()> {
        let load = Load { size: self.size, pairs: 1, iterations: trips };
        self.multinet.push(Some(multinet_latency(load, 0)?));
        self.perftest.push(others("ib_write_lat", load, failures, || perftest_latency(load)));
        self.busy.push(Some(multinet_latency(load, BUSY)?));
        Ok(())
    }
}

/// `None` where there are several queue pairs, which it has not.
fn fastest_ucx(load: Load, failures: &mut Vec<String>) -> Option<Done> {
    if load.pairs > 1 {
        return None;
    }
    let tests = ucx_tests(load.size).iter();
    let all = tests.filter_map(|test| {
        others(&format!("ucx_perftest -t {test}"), load, failures, || ucx_bandwidth(test, load))
    });
    all.max_by(|a, b| a.rate.total_cmp(&b.rate))
}

/// `None` if others' program does not get it done.
fn others<T>(name: &str, load: Load, failures: &mut Vec<String>, run: impl Fn() -> Result<T>) -> Option<T> {
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

fn run(Done { rate, messages, cpu }: Done, start: f64) -> Run {
    Run { rate, cpu: (cpu - start).max(0.0) * 1e6 / messages as f64 }
}
