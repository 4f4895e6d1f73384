//! Rounds of measurements, in each of which all programs take turns.

use std::io::{self, Write as _};
use std::iter::zip;
use std::slice::from_ref;

use anyhow::{Context as _, Result};
use multinet_testing::bench::{Cell, Table, at_least, figure, ratio, text};

use super::programs::{
    Load, multinet_latency, multinet_rate, perftest_latency, perftest_rate, ucx_rate, ucx_tests,
};
use super::{Extent, FAILURE};

/// Number of attempts with another program. On a busy machine, perftest sometimes fails with the
/// guest's clock.
const ATTEMPTS: usize = 2;

/// Microseconds for `--busy-poll`, so long that no side sleeps between messages.
const BUSY: u32 = 100_000;

/// Largest message size for which the tables show the message rate; for larger ones they show the
/// bandwidth.
const SMALL: u32 = 256;

/// Smallest message size with a target relative to `ib_write_bw`.
const FRAMED: u32 = 64 << 10;
/// Smallest share of `ib_write_bw`'s bandwidth.
const FRAMED_TARGET: f64 = 0.9;

/// Figures of one program in each round; NaN for a round in which it failed.
type Rounds = Vec<f64>;

/// Message size, number of queue pairs, and messages per second of ours, perftest and UCX.
type Bandwidths = (u32, u16, [Rounds; 3]);

/// Message size, and median latency of one direction in microseconds of perftest, ours with
/// `--busy-poll`, and ours without.
type Latencies = (u32, [Rounds; 3]);

/// Runs all measurements. Returns their tables.
pub(crate) fn measure(extent: Extent) -> Result<Vec<Table>> {
    let mut bandwidths: Vec<Bandwidths> = Vec::new();
    for &pairs in extent.pairs {
        bandwidths.extend(extent.sizes.iter().map(|&size| (size, pairs, Default::default())));
    }
    let mut latencies: Vec<Latencies> =
        extent.latencies.iter().map(|&size| (size, Default::default())).collect();
    for _ in 0..extent.rounds {
        for (size, pairs, [frames, perftest, ucx]) in &mut bandwidths {
            let load = extent.load(*size, *pairs);
            add(perftest, || others("ib_write_bw", load, || perftest_rate(load)));
            frames.push(multinet_rate(load)?);
            add(ucx, || fastest_ucx(load));
        }
        for (size, [perftest, busy, frames]) in &mut latencies {
            let load = Load { size: *size, pairs: 1, iterations: extent.trips };
            add(perftest, || others("ib_write_lat", load, || perftest_latency(load)));
            frames.push(multinet_latency(load, 0)?);
            busy.push(multinet_latency(load, BUSY)?);
        }
    }
    let note = |what| format!("{what} Medians of {} rounds.", extent.rounds);
    let (small, large): (Vec<_>, Vec<_>) = bandwidths.into_iter().partition(|(size, ..)| *size <= SMALL);
    Ok(vec![
        rates("Small messages", note("Messages a second."), small),
        rates("Bandwidth", note("In MiB a second."), large),
        latency(note("In microseconds."), latencies),
    ])
}

fn rates(title: &str, note: String, rows: Vec<Bandwidths>) -> Table {
    let columns = "bytes | queue pairs | frames | ib_write_bw | UCX | frames / ib_write_bw | target";
    let mut table = Table::new(title, note, columns);
    for (size, pairs, figures) in rows {
        let (times, digits) =
            if size <= SMALL { (1.0, 0) } else { (f64::from(size) / f64::from(1 << 20), 1) };
        let of_perftest = over(&figures[0], &figures[1]);
        let verdict = at_least((size >= FRAMED).then_some(FRAMED_TARGET), from_ref(&of_perftest));
        let figures = figures.map(|rates| figure(rates.into_iter().map(|rate| rate * times), digits));
        table.row([text(size), text(pairs)].into_iter().chain(figures).chain([of_perftest, verdict]));
    }
    table
}

fn latency(note: String, rows: Vec<Latencies>) -> Table {
    let columns = "bytes | ib_write_lat | frames, --busy-poll | / ib_write_lat | frames | / ib_write_lat";
    let mut table = Table::new("Latency", note, columns);
    for (size, [perftest, busy, frames]) in rows {
        let (of_busy, of_frames) = (over(&busy, &perftest), over(&frames, &perftest));
        let [perftest, busy, frames] = [perftest, busy, frames].map(|times| figure(times, 1));
        table.row([text(size), perftest, busy, of_busy, frames, of_frames]);
    }
    table
}

/// Returns the median ratio of the rounds. Other load on the machine usually lasts longer than the
/// two runs of a round, and so affects both.
fn over(ours: &[f64], theirs: &[f64]) -> Cell {
    ratio(zip(ours, theirs).map(|(ours, theirs)| ours / theirs))
}

impl Extent {
    fn load(&self, size: u32, pairs: u16) -> Load {
        let messages = (self.bytes / u64::from(size)).clamp(10, self.messages);
        Load { size, pairs, iterations: (messages / u64::from(pairs)).max(5) }
    }
}

/// Runs a program, and adds its figure. A program that has failed in an earlier round is not run
/// again, because a failure may take a minute.
fn add(figures: &mut Rounds, run: impl FnOnce() -> Option<f64>) {
    let has_failed = figures.iter().any(|figure| figure.is_nan());
    figures.push(if has_failed { None } else { run() }.unwrap_or(f64::NAN));
}

/// Measures the fastest test of UCX; `None` for several queue pairs, which UCX does not support.
fn fastest_ucx(load: Load) -> Option<f64> {
    if load.pairs > 1 {
        return None;
    }
    let tests = ucx_tests(load.size).iter();
    let all =
        tests.filter_map(|test| others(&format!("ucx_perftest -t {test}"), load, || ucx_rate(test, load)));
    all.max_by(f64::total_cmp)
}

/// Runs another program; `None` if it fails, after printing the error in one line.
fn others(name: &str, load: Load, run: impl Fn() -> Result<f64>) -> Option<f64> {
    let mut outcome = run();
    for _ in 1..ATTEMPTS {
        outcome = outcome.or_else(|_| run());
    }
    let context = || format!("{name}, {} bytes, {} queue pairs", load.size, load.pairs);
    let report = |error: anyhow::Error| drop(writeln!(io::stdout(), "{FAILURE}{}", one_line(&error)));
    outcome.with_context(context).map_err(report).ok()
}

fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.truncate(words.floor_char_boundary(300));
    words
}
