//! Rounds of measurements. In a round, all servers are measured one right after the other, so that
//! a slow moment of the machine affects all of them. Ratios compare servers within a round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use multinet_testing::measure::Log;
use multinet_testing::usage::{family, precise_cpu_seconds};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::flight::{FEW, Lost, Tally};
use super::questions::{Load, Question};
use super::servers::{Server, Who, pin};
use super::{overload, rate, tcp, udp, workers};

/// The cores of the server and of the generator.
pub(crate) const SERVER_CORE: usize = 0;
pub(crate) const GENERATOR_CORE: usize = 1;

/// Queries a second in the everyday regime.
pub(crate) const EVERYDAY: f64 = 10_000.0;

/// So many of a million may be lost where that shows in the figure.
const MORE: u64 = 20_000;

/// Where a server gets more than it can take, any number of them.
const MOST: u64 = 1_000_000_000;

/// How often a measure is taken that loses too much.
const ATTEMPTS: usize = 5;

/// One kind of figure. All but latency are CPU time of the server per answer, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// At saturation.
    Udp(Question),
    /// Of A, each query from a port of its own.
    Apart,
    /// Pipelined, at saturation.
    Tcp(Question),
    /// At [`EVERYDAY`] queries a second.
    Everyday,
    /// Of A at half of saturation: what 99 % of the answers do not exceed, in microseconds.
    Latency,
    /// The same at twice of saturation, of what is answered.
    Overload,
    /// With so many workers of ours, each on a core.
    Workers(usize),
}

/// A measure of one server.
pub(crate) type Key = (Measure, Who);

/// A figure per round.
pub(crate) type Figures = BTreeMap<Key, Vec<f64>>;

/// The servers that are measured.
pub(crate) struct Stage {
    pub(crate) servers: Vec<Server>,
    /// Ours with two workers, if that is measured.
    pub(crate) two_workers: Option<Server>,
    /// NSD with additionals, if SRV is measured.
    pub(crate) nsd_for_srv: Option<Server>,
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// The figure, in microseconds.
    pub(crate) micros: f64,
    /// How busy the server was; far below one core at saturation, the generator or the machine was
    /// too slow.
    pub(crate) cores: f64,
}

/// Measures all of it, in rounds.
pub(crate) fn measure(
    stage: &Stage,
    keys: &BTreeSet<Key>,
    rounds: usize,
    time: Duration,
    log: &Log,
) -> Result<Figures> {
    let mut figures = Figures::new();
    for round in 1..=rounds {
        for &(measure, who) in keys {
            let Outcome { micros, cores } = patiently(stage, measure, who, time, log)
                .with_context(|| format!("{measure:?} of {}", who.name()))?;
            log.print(&format!(
                "round {round} of {rounds}: {measure:?}, {}: {micros:.2} µs, {cores:.2} cores",
                who.name()
            ));
            figures.entry((measure, who)).or_default().push(micros);
        }
    }
    Ok(figures)
}

/// A measure that loses too much is taken again, a few times; then it has no figure in this round.
fn patiently(stage: &Stage, measure: Measure, who: Who, time: Duration, log: &Log) -> Result<Outcome> {
    for _ in 0..ATTEMPTS {
        match one(stage, measure, who, time) {
            Err(error) if error.is::<Lost>() => {
                log.print(&format!("lost too much: {measure:?}, {}: {error}", who.name()));
            }
            outcome => return outcome,
        }
    }
    Ok(Outcome { micros: f64::NAN, cores: f64::NAN })
}

fn one(stage: &Stage, measure: Measure, who: Who, time: Duration) -> Result<Outcome> {
    let server = stage.server(measure, who)?;
    if let Measure::Workers(count) = measure {
        return workers::cost(server, count, time);
    }
    pin(server, &[SERVER_CORE])?;
    let (zone, echoed) = (who.zone(), who == Who::Echo);
    // So that neither side is measured while it is cold.
    let warm_up = time / 10;
    let shape = match measure {
        // Latency is that of queries which come one by one, and half of what a server can take of
        // those.
        Measure::Apart | Measure::Latency => udp::APART,
        _ => udp::OWN_CORE,
    };
    let udp = |load: &Load, time| alone(server, || udp::saturate(server.address, load, shape, time));
    match measure {
        Measure::Udp(_) | Measure::Apart => {
            let question = if let Measure::Udp(question) = measure { question } else { Question::A };
            let load = question.load(zone, echoed)?;
            udp(&load, warm_up)?;
            udp(&load, time)
        }
        Measure::Tcp(question) => {
            let load = question.load(zone, echoed)?;
            alone(server, || tcp::saturate(server.address, &load, warm_up))?;
            alone(server, || tcp::saturate(server.address, &load, time))
        }
        Measure::Everyday => {
            let load = Question::A.load(zone, echoed)?;
            alone(server, || Ok(rate::pace(server.address, &load, EVERYDAY, time, |_| Ok(()))?.tally))
        }
        Measure::Latency | Measure::Overload | Measure::Workers(_) => {
            let load = Question::A.load(zone, echoed)?;
            // By CPU time, so that it is the server's saturation and not the generator's.
            udp(&load, warm_up)?;
            let saturation = 1e6 / udp(&load, time / 2)?.micros;
            let is_overload = measure == Measure::Overload;
            let p99 = OnceLock::new();
            let outcome = cost(server, &[GENERATOR_CORE], if is_overload { MOST } else { MORE }, || {
                let paced = match is_overload {
                    true => overload::flood(server.address, &load, 2.0 * saturation, time)?,
                    false => rate::pace(server.address, &load, 0.5 * saturation, time, |_| Ok(()))?,
                };
                let _ = p99.set(if is_overload { paced.p99_of_answered()? } else { paced.p99()? });
                Ok(paced.tally)
            })?;
            Ok(Outcome { micros: *p99.get().context("no latency")?, ..outcome })
        }
    }
}

/// The cost with one generator, on its own core.
fn alone(server: &Server, generator: impl Fn() -> Result<Tally> + Sync) -> Result<Outcome> {
    cost(server, &[GENERATOR_CORE], FEW, generator)
}

/// CPU time of the server per answer while the generators run, one on each of those cores. So many
/// of a million may be lost.
pub(crate) fn cost(
    server: &Server,
    cores: &[usize],
    may_be_lost: u64,
    generator: impl Fn() -> Result<Tally> + Sync,
) -> Result<Outcome> {
    let pids = family(server.pid)?;
    let (before, begin) = (precise_cpu_seconds(&pids)?, Instant::now());
    let tallies: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let generator = &generator;
        let run = |&core: &usize| scope.spawn(move || stay_on(core).and_then(|()| generator()));
        let running: Vec<_> = cores.iter().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a panic"))).collect()
    });
    let (spent, elapsed) = (precise_cpu_seconds(&pids)? - before, begin.elapsed());
    let mut tally = Tally::default();
    for one in tallies {
        tally.add(one?);
    }
    tally.check(may_be_lost)?;
    Ok(Outcome { micros: spent * 1e6 / tally.answered as f64, cores: spent / elapsed.as_secs_f64() })
}

/// Keeps the calling thread on that core.
fn stay_on(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("this machine has no core {core}"))
}

impl Stage {
    fn server(&self, measure: Measure, who: Who) -> Result<&Server> {
        let special = match measure {
            Measure::Workers(2) => self.two_workers.as_ref(),
            Measure::Udp(question) if who == Who::Nsd && question.has_srv() => self.nsd_for_srv.as_ref(),
            _ => None,
        };
        let found = special.or_else(|| self.servers.iter().find(|server| server.who == who));
        found.with_context(|| format!("{} was not started", who.name()))
    }
}
