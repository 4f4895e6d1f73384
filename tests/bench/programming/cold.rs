//! Ten thousand pods: a cold start until all are served, and a rolling restart of some.

use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::dns::{Query, Transport};
use multinet_testing::usage::{cpu_seconds, peak_mebibytes};
use multinet_testing::wait::eventually;
use tokio::time::sleep;

use super::fleet::{Fleet, Member};
use super::requests::Requests;
use super::stage::Stage;
use crate::side::Side;

/// Bound of a cold start.
const BOUND: Duration = Duration::from_secs(180);

/// Pause until controllers have written everything; they write a status a second after the last
/// change.
const SETTLED: Duration = Duration::from_secs(3);

/// Pause after each event of the rolling restart, so that changes come one at a time.
const BETWEEN: Duration = Duration::from_millis(15);

/// Events of a restart that change an endpoint: the old pod terminates and goes, the new one
/// appears and becomes ready.
pub(crate) const EVENTS: usize = 4;

/// A cold start: all objects exist, except slices.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) took: Duration,
    pub(crate) requests: Requests,
}

/// Starts a side, and waits until it answers for every pod of the fleet.
pub(crate) async fn start(stage: &mut Stage, fleet: &Fleet, side: Side) -> Result<Start> {
    let before = Requests::count(stage).await?;
    let begun = Instant::now();
    stage.start(side).await?;
    for service in 0..fleet.services {
        served(stage, fleet, side, service).await?;
    }
    let took = begun.elapsed();
    sleep(SETTLED).await;
    Ok(Start { took, requests: Requests::count(stage).await?.since(&before) })
}

/// Waits until the answer has all pods of a service.
async fn served(stage: &Stage, fleet: &Fleet, side: Side, service: usize) -> Result<()> {
    let name = fleet.domain(side, service);
    let server = stage.dns(side)?;
    eventually(&format!("all of {name}"), BOUND, async || {
        let reply = ask(server, Transport::Tcp, &Query::new(&name, "A")).await?;
        let found: HashSet<String> = reply.data().into_iter().collect();
        ensure!(found.len() == fleet.pods_each, "{} of {} addresses", found.len(), fleet.pods_each);
        Ok(())
    })
    .await
}

/// Result of a rolling restart.
#[derive(Debug)]
pub(crate) struct Restart {
    pub(crate) pods: usize,
    pub(crate) requests: Requests,
    /// CPU time of the API server, in seconds.
    pub(crate) cpu_seconds: f64,
}

/// Replaces these pods one at a time, service by service, as Deployments would. `sides` are the
/// running ones.
pub(crate) async fn restart(
    stage: &Stage,
    fleet: &Fleet,
    pods: Range<usize>,
    sides: &[Side],
) -> Result<Restart> {
    ensure!(pods.end <= fleet.services * fleet.pods_each, "the fleet has no {} pods", pods.end);
    let before = Requests::count(stage).await?;
    let cpu_before = apiserver_seconds(stage)?;
    for index in pods.clone() {
        let old = Member { service: index / fleet.pods_each, pod: index % fleet.pods_each };
        // New pods have the names and addresses of the service after the last one.
        let new = Member { service: old.service, pod: old.pod + fleet.services * fleet.pods_each };
        fleet.terminate(old).await?;
        sleep(BETWEEN).await;
        fleet.create(new, false).await?;
        fleet.attach(new).await?;
        fleet.run(new, false).await?;
        sleep(BETWEEN).await;
        fleet.ready(new, true).await?;
        sleep(BETWEEN).await;
        fleet.remove(old).await?;
        sleep(BETWEEN).await;
    }
    for service in pods.start / fleet.pods_each..pods.end.div_ceil(fleet.pods_each) {
        for &side in sides {
            served(stage, fleet, side, service).await?;
        }
    }
    sleep(SETTLED).await;
    let cpu_seconds = apiserver_seconds(stage)? - cpu_before;
    Ok(Restart { pods: pods.len(), requests: Requests::count(stage).await?.since(&before), cpu_seconds })
}

/// Restarts pods after the first `after`, with one side at a time. Returns the CPU time of the API
/// server by side.
pub(crate) async fn restart_alone(
    stage: &mut Stage,
    fleet: &Fleet,
    after: usize,
    pods: usize,
) -> Result<[f64; 2]> {
    let mut seconds = [0.0; 2];
    for (number, side) in Side::BOTH.into_iter().enumerate() {
        let other = Side::BOTH[1 - number];
        stage.stop(other).await?;
        let first = after + number * pods;
        seconds[number] = restart(stage, fleet, first..first + pods, &[side]).await?.cpu_seconds;
        stage.start(other).await?;
        for service in 0..fleet.services {
            served(stage, fleet, other, service).await?;
        }
    }
    Ok(seconds)
}

fn apiserver_seconds(stage: &Stage) -> Result<f64> {
    cpu_seconds(stage.cluster.apiserver_pid().context("the API server does not run")?)
}

/// Resources that a controller used since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mebibytes: f64,
}

impl Usage {
    pub(crate) fn of(stage: &Stage, side: Side) -> Result<Self> {
        let pid = stage.controller_pid(side)?;
        let context = || format!("the controller of {side:?} ended");
        Ok(Self {
            cpu_seconds: cpu_seconds(pid).with_context(context)?,
            peak_mebibytes: peak_mebibytes(pid).with_context(context)?,
        })
    }

    /// Returns the usage beyond `before`, from another process of the same program.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            peak_mebibytes: self.peak_mebibytes - before.peak_mebibytes,
        }
    }
}
