//! Compares the cost of an answer from `multinet-dns` with Knot, NSD, CoreDNS and an echo server.
//!
//! Every load is bounded and runs over loopback, and every reply is checked.

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
use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::bench::{Arguments, Results, version};
use multinet_testing::cluster::Cluster;
use multinet_testing::measure::Log;
use multinet_testing::tools::tool;

use self::data::{LONG, SMALL};
pub(crate) use self::echo::{ROLE as ECHO, serve as echo};
use self::rounds::{Key, Measure, Stage};
use self::rows::Group;
use self::servers::{Server, Who};
use crate::side::Side;

/// Amount of measurements.
#[derive(Debug, Clone, Copy)]
struct Extent {
    rounds: usize,
    /// Duration of each measurement.
    time: Duration,
    /// Services of a hundred endpoints each, for memory.
    services: usize,
    /// Pause before memory counts as settled: Go returns memory late.
    rest: Duration,
}

const FULL: Extent =
    Extent { rounds: 5, time: Duration::from_secs(2), services: 1000, rest: Duration::from_secs(180) };

const QUICK: Extent =
    Extent { rounds: 3, time: Duration::from_millis(300), services: 100, rest: Duration::from_secs(5) };

/// Measures all groups, or those of `--only`.
pub(crate) async fn measure(arguments: &Arguments, log: &Log) -> Result<Results> {
    let Extent { rounds, time, services, rest } = if arguments.is_quick { QUICK } else { FULL };
    let groups = Group::parse(arguments.only.as_deref())?;
    let rows = rows::of(&groups);
    let keys = rows.iter().flat_map(|row| [row.ours, row.over]).collect();
    let figures = {
        // Kept until the end, because CoreDNS watches it.
        let cluster = cluster(&keys, log).await?;
        let stage = stage(&keys, cluster.as_ref(), log).await?;
        rounds::measure(&stage, &keys, rounds, time, log)?
    };
    let memory = match groups.contains(&Group::Memory) {
        true => Some(memory::measure(services, rest, log).await?),
        false => None,
    };
    let versions = [
        ("Knot", version("knotd", "--version")?),
        ("NSD", version("nsd", "-v")?),
        ("CoreDNS", version(tool("coredns")?, "-version")?),
    ];
    let note = format!("{rounds} rounds, {:.1} s for each figure.", time.as_secs_f64());
    let mut tables = vec![page::ratios(note, &rows, &figures, memory)?, page::medians(&figures)];
    tables.extend(memory.map(page::memory));
    Results::new(&versions, tables)
}
/// Starts the cluster that CoreDNS watches, if CoreDNS is measured.
async fn cluster(keys: &BTreeSet<Key>, log: &Log) -> Result<Option<Cluster>> {
    if !keys.iter().any(|(_, who)| *who == Who::Core) {
        return Ok(None);
    }
    log.print("creating Services and EndpointSlices for CoreDNS");
    let cluster = Cluster::start().await?;
    data::create(&cluster.objects().await?, Side::Core, &[SMALL, LONG]).await?;
    Ok(Some(cluster))
}

/// Starts the servers that are measured.
async fn stage(keys: &BTreeSet<Key>, cluster: Option<&Cluster>, log: &Log) -> Result<Stage> {
    let mut servers = Vec::new();
    for who in Who::ALL {
        if keys.iter().any(|(_, of)| *of == who) {
            log.print(&format!("starting {}", who.name()));
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
