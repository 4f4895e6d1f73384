//! The tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::measure::{Spread, middle, verdict};
use multinet_testing::tools::tool;

use crate::memory::Memory;
use crate::rounds::{Figures, Measure};
use crate::rows::Row;
use crate::servers::Who;
use crate::workers::are_cores_shared;

/// At most so much of CoreDNS' settled memory.
const MEMORY_TARGET: f64 = 0.5;

/// All that has been measured.
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    pub(crate) figures: Figures,
    pub(crate) memory: Option<Memory>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
}

impl Page {
    pub(crate) fn text(&self) -> Result<String> {
        Ok([self.head()?, self.ratios()?, self.absolute()?].concat())
    }

    fn head(&self) -> Result<String> {
        let machine = String::from_utf8(Command::new("uname").arg("-sm").output()?.stdout)?;
        let cores = std::thread::available_parallelism()?;
        let knot = version("knotd".as_ref(), "--version")?;
        let nsd = version("nsd".as_ref(), "-v")?;
        let core = version(&tool("coredns")?, "-version")?;
        let shared = if are_cores_shared() {
            "a generator shares each worker's core, with one worker and with two"
        } else {
            "the generators have other cores than the workers"
        };
        Ok(format!(
            "Written by `make bench-dns`. The peers are Knot {knot} and NSD {nsd}, as Debian has them, CoreDNS {core} with its kubernetes\n\
             plugin alone, and a bare echo in batches of 32 that parses nothing; in the same run, on loopback, with the same data:\n\
             1000 services of 3 endpoints and one of 100, as manifests, as a zone file, and as headless Services in a real API\n\
             server. Each server has one worker and one core, a generator of our own another core. Rate limits are off; NSD's\n\
             answers are minimal (`minimal-responses`) where SRV is not asked for, since it would leave out the addresses of the\n\
             targets. Queries have EDNS with 1232 octets. Every reply is checked: id, flags, rcode, question, number of answers.\n\n\
             CPU is user and system time of the server per answer. Over UDP, 32 queries from each of 4 source ports are under way\n\
             at any time, over TCP as many on each of 4 connections. The generator sends them as one piece (UDP GSO, one write), so\n\
             that it is not what is slow. multinet-dns likewise sends together what it has for one port, which no other server here does.\n\
             Where that does not help, since each query comes from a port of its own, 64 are under way. At 10,000 queries/s, and for latency, they are sent one by one at even distances. Latency\n\
             counts from when a query was due; it is that of the middle one of 20 parts of each run. Saturation is what CPU per\n\
             answer allows, each server's own, half of it with each query from a port of its own. At twice of it, 2000 queries/s of all are watched. Mixed is 4 A, 3 NODATA, 2 NXDOMAIN and 1 SRV. For two workers,\n\
             {shared}.\n\
             {} rounds, in which servers take turns, of {:.1} s for each figure. Ratios are those of one round: median (least–most).\n\
             Machine: {cores} cores, {}.\n\n",
            self.rounds,
            self.time.as_secs_f64(),
            machine.trim(),
        ))
    }

    fn ratios(&self) -> Result<String> {
        let mut text = "| multinet-dns | target | measured | |\n|---|---|---|---|\n".to_owned();
        for row in &self.rows {
            let target = row.target.map(|target| format!("≤ {target}")).unwrap_or_default();
            let Some(Spread { median, least, most }) =
                row.ratio(&self.figures).with_context(|| row.title.clone())?
            else {
                writeln!(text, "| {} | {target} | more queries were lost than may be | |", row.title)?;
                continue;
            };
            let verdict = row.target.map(|target| verdict(median <= target)).unwrap_or_default();
            let places = if median < 0.1 { 3 } else { 2 };
            writeln!(
                text,
                "| {} | {target} | {:.places$} ({:.places$}–{:.places$}) | {verdict} |",
                row.title, median, least, most
            )?;
        }
        if let Some(Memory { endpoints, ours, core, .. }) = self.memory {
            let ratio = ours.settled / core.settled;
            writeln!(
                text,
                "| RSS with {endpoints} endpoints, over CoreDNS settled | ≤ {MEMORY_TARGET} | {ratio:.2} (once) | {} |",
                verdict(ratio <= MEMORY_TARGET)
            )?;
        }
        Ok(text)
    }

    /// Medians.
    fn absolute(&self) -> Result<String> {
        let mut text = String::from("\nThe medians, in microseconds:\n\n|");
        let names = Who::ALL.map(Who::name);
        write!(text, " | {} |\n|---{}|\n", names.join(" | "), "|---".repeat(names.len()))?;
        let measures: BTreeSet<Measure> = self.figures.keys().map(|(measure, _)| *measure).collect();
        for measure in measures {
            write!(text, "| {} |", title(measure))?;
            for who in Who::ALL {
                match self.figures.get(&(measure, who)) {
                    Some(figures) => write!(text, " {} |", median(figures))?,
                    None => write!(text, " |")?,
                }
            }
            writeln!(text)?;
        }
        if let Some(Memory { endpoints, ours, core, rest }) = self.memory {
            writeln!(
                text,
                "\nResident sets with {endpoints} endpoints from the API server, in MiB, after the start and {} s later, \
                 in which nothing was asked:\nmultinet-dns {:.0} and {:.0}, CoreDNS {:.0} and {:.0}.",
                rest.as_secs(),
                ours.at_start,
                ours.settled,
                core.at_start,
                core.settled
            )?;
        }
        Ok(text)
    }
}

/// Of the rounds that have a figure.
fn median(figures: &[f64]) -> String {
    let finite = figures.iter().copied().filter(|figure| figure.is_finite()).collect();
    middle(finite).map_or_else(|_| "–".into(), |median| format!("{median:.2}"))
}

fn title(measure: Measure) -> String {
    match measure {
        Measure::Udp(question) => format!("UDP, {}", question.name()),
        Measure::Apart => "UDP, A, each from a port of its own".into(),
        Measure::Tcp(question) => format!("TCP, {}", question.name()),
        Measure::Everyday => "UDP, A at 10,000 queries/s".into(),
        Measure::Latency => "p99 latency at half of saturation".into(),
        Measure::Overload => "p99 latency of what is answered, at twice of saturation (bound: 2000)".into(),
        Measure::Workers(1) => "one worker, many ports".into(),
        Measure::Workers(count) => format!("{count} workers, many ports"),
    }
}

/// The first word with a digit at its start or behind a dash, of what a program says about itself.
fn version(program: &std::path::Path, flag: &str) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program).arg(flag).env("PATH", format!("{path}:/usr/sbin:/sbin")).output()?;
    // Some say it to standard error.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let words = said.split_whitespace().map(|word| word.rsplit('-').next().unwrap_or(word));
    let found = words.into_iter().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    Ok(found.with_context(|| format!("{} says {said:?}", program.display()))?.to_owned())
}
