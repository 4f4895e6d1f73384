//! One pod of each of many services at once, by how many PATCHes are under way at the same time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::usage::cpu_seconds;
use tokio::time::sleep;

use super::changes::{BURST, Fleets, Flipping, RECOVERY};
use super::stage::Stage;
use super::watcher::Watcher;

/// How many PATCHes of a burst are under way, where it is set against the target. Two keep the API
/// server's two cores busy; what more there are wait for each other, before there is anything that
/// a controller could do. With four, kube-controller-manager without limits of its own takes what
/// the target was made from: some 50 ms.
pub(crate) const IN_FLIGHT: usize = 4;

/// How many are under way in those bursts that are compared. Fewer come later, so that all
/// connections are there that are needed.
const DEPTHS: [usize; 4] = [BURST, 8, IN_FLIGHT, 2];

/// Before each burst, the API server makes some lists of the burst's pods, at random up to so many.
/// Its garbage collector, which takes as much of its time as some 50 changes do, comes with every
/// 200 MB or so, of which a list makes some 50: rounds that are all alike could be in step with it,
/// and have it in the same side's burst each time.
const LISTS: usize = 5;

/// How long at least a server is left alone after it has been asked: some twentieth of what is
/// measured. Asking takes time of the cores that everything runs on; a side that waits for no limit
/// of its own would be charged with it.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// Pause in which remaining work is finished.
const QUIET: Duration = Duration::from_millis(500);

/// A burst.
#[derive(Debug)]
pub(crate) struct Burst {
    /// From the PATCH to the answer.
    pub(crate) times: Vec<Duration>,
    /// The PATCHes alone.
    pub(crate) patches: Vec<Duration>,
    /// CPU time of the API server, in seconds.
    pub(crate) cpu_seconds: f64,
}

/// A burst of each side, one after the other.
pub(crate) type Round = [Burst; 2];

/// Bursts of both sides, with so many PATCHes under way.
pub(crate) struct Depth {
    pub(crate) in_flight: usize,
    /// Whether core waited for no limit of its own.
    pub(crate) is_unlimited: bool,
    pub(crate) rounds: Vec<Round>,
}

/// Bursts that are set against the target.
pub(crate) async fn measure(fleets: &mut Fleets, stage: &Stage, count: usize) -> Result<Vec<Round>> {
    // For the connections that so many requests at once need.
    round(fleets, stage, IN_FLIGHT).await?;
    rounds(fleets, stage, IN_FLIGHT, count).await
}

/// Bursts by how many PATCHes are under way, with core's limit and without, so many rounds each;
/// core is left without.
pub(crate) async fn by_depth(fleets: &mut Fleets, stage: &mut Stage, count: usize) -> Result<Vec<Depth>> {
    let mut all = Vec::new();
    for is_unlimited in [false, true] {
        if is_unlimited {
            stage.restart_core_without_limits().await?;
            fleets.settled(stage).await?;
            sleep(RECOVERY).await;
        }
        round(fleets, stage, BURST).await?;
        for in_flight in DEPTHS {
            let rounds = rounds(fleets, stage, in_flight, count).await?;
            all.push(Depth { in_flight, is_unlimited, rounds });
        }
    }
    Ok(all)
}

async fn rounds(fleets: &mut Fleets, stage: &Stage, in_flight: usize, count: usize) -> Result<Vec<Round>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(round(fleets, stage, in_flight).await?);
    }
    Ok(all)
}

async fn round(fleets: &mut Fleets, stage: &Stage, in_flight: usize) -> Result<Round> {
    let [ours, core] = &mut fleets.burst;
    Ok([burst(ours, stage, in_flight).await?, burst(core, stage, in_flight).await?])
}

async fn burst(pods: &mut Flipping, stage: &Stage, in_flight: usize) -> Result<Burst> {
    for _ in 0..fastrand::usize(..=LISTS) {
        pods.fleet.list().await?;
    }
    sleep(QUIET).await;
    let apiserver = stage.cluster.apiserver_pid().context("the API server does not run")?;
    let watcher = Watcher::start(stage.dns(pods.side)?, PAUSE)?;
    let before = cpu_seconds(apiserver)?;
    let (patches, times) = pods.burst(&watcher, in_flight).await?;
    let cpu_seconds = cpu_seconds(apiserver)? - before;
    sleep(RECOVERY).await;
    Ok(Burst { times, patches, cpu_seconds })
}
