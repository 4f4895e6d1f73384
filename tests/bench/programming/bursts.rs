//! Changes of one pod of each of many services at once, by the number of concurrent PATCHes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::usage::cpu_seconds;
use tokio::time::sleep;

use super::changes::{BURST, Fleets, Flipping, RECOVERY};
use super::stage::Stage;
use super::watcher::Watcher;

/// Concurrent PATCHes of a burst that has a target. Two keep the API server's two cores busy;
/// further ones wait there before a controller can act. With four, kube-controller-manager without
/// limits takes the 50 ms from which the target was set.
pub(crate) const IN_FLIGHT: usize = 4;

/// Numbers of concurrent PATCHes that are compared. The highest comes first, so that all
/// connections exist from then on.
const DEPTHS: [usize; 4] = [BURST, 8, IN_FLIGHT, 2];

/// Bound of the lists of pods that the API server makes before each burst, a random number. Its
/// garbage collector takes as much time as 50 changes, and runs about every 200 MB; a list
/// allocates about 50 MB. Equal rounds could run in step with it, and always have it in the same
/// side's burst.
const LISTS: usize = 5;

/// Minimum pause between queries to a server: about a twentieth of the measured time. Queries take
/// CPU time of the cores that everything runs on, which would slow down a side without limits.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// Pause in which remaining work is finished.
const QUIET: Duration = Duration::from_millis(500);

/// A burst.
#[derive(Debug)]
pub(crate) struct Burst {
    /// Times from the PATCH to the answer.
    pub(crate) times: Vec<Duration>,
    /// Times of the PATCHes alone.
    pub(crate) patches: Vec<Duration>,
    /// CPU time of the API server, in seconds.
    pub(crate) cpu_seconds: f64,
}

/// A burst of each side, one after the other.
pub(crate) type Round = [Burst; 2];

/// Bursts of both sides, with the same number of concurrent PATCHes.
pub(crate) struct Depth {
    pub(crate) in_flight: usize,
    /// Whether kube-controller-manager had no limit of requests.
    pub(crate) is_unlimited: bool,
    pub(crate) rounds: Vec<Round>,
}

/// Measures bursts that have a target.
pub(crate) async fn measure(fleets: &mut Fleets, stage: &Stage, count: usize) -> Result<Vec<Round>> {
    // Opens the connections for all concurrent requests.
    round(fleets, stage, IN_FLIGHT).await?;
    rounds(fleets, stage, IN_FLIGHT, count).await
}

/// Measures bursts by the number of concurrent PATCHes, with kube-controller-manager's limit of
/// requests and without, `count` rounds each. It then runs on without the limit.
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
