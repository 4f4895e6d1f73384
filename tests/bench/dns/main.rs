//! Compares what an answer of `multinet-dns` costs with Knot, NSD, CoreDNS and a bare echo, and prints its part of
//! `docs/benchmarks.md`.
//!
//! Run by `make bench-dns`, on release builds. With `--quick`, less of everything; with `--only udp,tcp`, only these groups.
//! Every load is bounded and on loopback, and every reply is checked.

#![forbid(unsafe_code)]

mod batch;
mod data;
mod echo;
mod flight;
mod memory;
mod overload;
mod page;
mod questions;
mod rate;
mod rounds;
mod rows;
mod servers;
mod tcp;
mod udp;
mod workers;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use multinet_testing::cluster::Cluster;
use multinet_testing::measure::Log;

use crate::data::{Kind, LONG, SMALL};
use crate::page::Page;
use crate::rounds::{Key, Measure, Stage};
use crate::rows::Group;
use crate::servers::{Server, Who};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    rounds: usize,
    /// Of each figure.
    time: Duration,
    /// Of a hundred endpoints each, for memory.
    services: usize,
    /// Before memory counts as settled: Go gives it back in its own time.
    rest: Duration,
}

const FULL: Extent =
    Extent { rounds: 5, time: Duration::from_secs(2), services: 1000, rest: Duration::from_secs(180) };

const QUICK: Extent =
    Extent { rounds: 3, time: Duration::from_millis(300), services: 100, rest: Duration::from_secs(5) };

#[tokio::main]
async fn main() -> Result<()> {
    let (mut extent, mut only) = (FULL, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // This program is started again as the echo.
            echo::ROLE => return echo::serve(),
            "--quick" => extent = QUICK,
            "--only" => only = Some(arguments.next().context("--only wants a list of groups")?),
            other => bail!("{other:?}: there are --quick and --only GROUP,…"),
        }
    }
    let groups = Group::parse(only.as_deref())?;
    let Extent { rounds, time, services, rest } = extent;
    let log = Log::begin();

    let rows = rows::of(&groups);
    let keys = rows::keys(&rows);
    let figures = {
        // Kept until the end, since CoreDNS follows it.
        let cluster = cluster(&keys, &log).await?;
        let stage = stage(&keys, cluster.as_ref(), &log).await?;
        rounds::measure(&stage, &keys, rounds, time, &log)?
    };
    let memory = match groups.contains(&Group::Memory) {
        true => Some(memory::measure(services, rest, &log).await?),
        false => None,
    };
    let page = Page { rows, figures, memory, rounds, time };
    io::stdout().write_all(page.text()?.as_bytes())?;
    Ok(())
}

/// The cluster that feeds CoreDNS, if that is measured.
async fn cluster(keys: &BTreeSet<Key>, log: &Log) -> Result<Option<Cluster>> {
    if !keys.iter().any(|(_, who)| *who == Who::Core) {
        return Ok(None);
    }
    log.say("creating Services and EndpointSlices for CoreDNS");
    let cluster = Cluster::start().await?;
    data::create(&cluster.objects().await?, Kind::Core, &[SMALL, LONG]).await?;
    Ok(Some(cluster))
}

/// Starts the servers that are measured.
async fn stage(keys: &BTreeSet<Key>, cluster: Option<&Cluster>, log: &Log) -> Result<Stage> {
    let mut servers = Vec::new();
    for who in Who::ALL {
        if keys.iter().any(|(_, of)| *of == who) {
            log.say(&format!("starting {}", who.name()));
            servers.push(match who {
                Who::Ours => Server::ours(1)?,
                Who::Knot => Server::knot().await?,
                Who::Nsd => Server::nsd(true).await?,
                Who::Core => Server::core(cluster.context("CoreDNS needs a cluster")?).await?,
                Who::Echo => Server::echo()?,
            });
        }
    }
    let two_workers = match keys.contains(&(Measure::Workers(2), Who::Ours)) {
        true => Some(Server::ours(2)?),
        false => None,
    };
    let has_srv = |measure| matches!(measure, Measure::Udp(question) if question.has_srv());
    let nsd_for_srv = match keys.iter().any(|&(measure, who)| who == Who::Nsd && has_srv(measure)) {
        true => Some(Server::nsd(false).await?),
        false => None,
    };
    Ok(Stage { servers, two_workers, nsd_for_srv })
}
