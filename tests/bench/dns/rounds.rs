//! Rounds of measurements. A round measures all servers one right after the other, so that a slow
//! moment of the machine affects all of them. Ratios compare servers within a round.

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

/// Allowed losses per million if losses raise the figure.
const MORE: u64 = 20_000;

/// Any number of losses, for an overloaded server.
const MOST: u64 = 1_000_000_000;

/// Attempts at a measurement that loses too many queries.
const ATTEMPTS: usize = 5;

/// Kind of figure. All but latency are CPU time of the server per answer, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// At saturation.
    Udp(Question),
    /// A queries, each from a port of its own.
    Apart,
    /// Pipelined queries, at saturation.
    Tcp(Question),
    /// At [`EVERYDAY`] queries per second.
    Everyday,
    /// 99th percentile of the latency of A queries at half of saturation, in microseconds.
    Latency,
    /// The same at twice saturation, of the answered queries.
    Overload,
    /// multinet-dns with a number of workers, each on a core.
    Workers(usize),
}

/// A kind of figure, of one server.
pub(crate) type Key = (Measure, Who);

/// Figures, one per round.
pub(crate) type Figures = BTreeMap<Key, Vec<f64>>;

/// The running servers.
pub(crate) struct Stage {
    pub(crate) servers: Vec<Server>,
    /// multinet-dns with two workers, if that is measured.
    pub(crate) two_workers: Option<Server>,
    /// NSD with additionals, if SRV is measured.
    pub(crate) nsd_for_srv: Option<Server>,
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// The figure, in microseconds.
    pub(crate) micros: f64,
    /// CPU cores that the server used. Far below one core at saturation means that the generator or
    /// the machine was too slow.
    pub(crate) cores: f64,
}

/// Measures all figures, in rounds.
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

/// Measures, a few times if too many queries are lost; then there is no figure in this round.
fn patiently(stage: &Stage, measure: Measure, who: Who, time: Duration, log: &Log) -> Result<Outcome> {
    for _ in 0..ATTEMPTS {
        match one(stage, measure, who, time) {
            Err(error) if error.is::<Lost>() => {
                log.print(&format!("lost too many queries: {measure:?}, {}: {error}", who.name()));
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
    // Warms up both sides.
    let warm_up = time / 10;
    let shape = match measure {
        // The saturation of single queries, because latency is measured with single queries.
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
            // From CPU time, so that it is the saturation of the server and not of the generator.
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

/// Measures the cost with one generator, on its own core.
fn alone(server: &Server, generator: impl Fn() -> Result<Tally> + Sync) -> Result<Outcome> {
    cost(server, &[GENERATOR_CORE], FEW, generator)
}

/// Measures the CPU time of the server per answer while generators run, one on each of the cores.
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
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a generator panicked")))
            .collect()
    });
    let (spent, elapsed) = (precise_cpu_seconds(&pids)? - before, begin.elapsed());
    let mut tally = Tally::default();
    for one in tallies {
        tally.add(one?);
    }
    tally.check(may_be_lost)?;
    Ok(Outcome { micros: spent * 1e6 / tally.answered as f64, cores: spent / elapsed.as_secs_f64() })
}

/// Pins the calling thread to a core.
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
