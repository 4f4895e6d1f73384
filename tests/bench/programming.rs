//! Compares `multinet-controller` and `multinet-dns` with kube-controller-manager and CoreDNS: the
//! time from a pod's change to the answer, and the cost.

mod bursts;
mod changes;
mod cold;
mod creation;
mod fleet;
mod page;
mod requests;
mod stage;
mod watcher;
mod webhook;
mod writes;

use std::time::Duration;

use anyhow::Result;
use multinet_testing::bench::{Arguments, Results, version};
use multinet_testing::measure::Log;
use multinet_testing::tools::tool;
use multinet_testing::usage::{peak_mebibytes, resident_mebibytes};
use tokio::time::sleep;

use self::changes::Fleets;
use self::cold::Usage;
use self::fleet::Fleet;
use self::stage::Stage;
use crate::side::Side;

/// Pause after a process started, until it is idle.
const QUIET: Duration = Duration::from_secs(3);

/// Amount of measurements.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Changes of each kind.
    samples: usize,
    /// Bursts of each side that have a target.
    bursts: usize,
    /// Bursts of each side for each number of concurrent PATCHes.
    bursts_compared: usize,
    /// Other services of a hundred pods each.
    other_services: usize,
    /// Replaced pods among those.
    restarted: usize,
    /// Pods among those that are replaced while one side runs alone.
    restarted_alone: usize,
    /// Creations of a service.
    creations: usize,
    /// Writes with each verb, and of each size.
    writes: usize,
}

const FULL: Extent = Extent {
    samples: 200,
    bursts: 5,
    bursts_compared: 3,
    other_services: 100,
    restarted: 300,
    restarted_alone: 150,
    creations: 3,
    writes: 100,
};
const QUICK: Extent = Extent {
    samples: 50,
    bursts: 1,
    bursts_compared: 1,
    other_services: 10,
    restarted: 20,
    restarted_alone: 100,
    creations: 1,
    writes: 20,
};

/// Pods in each of the other services.
const PODS_EACH: usize = 100;

/// Memory of `multinet-controller`.
#[derive(Debug, Clone, Copy)]
struct Memory {
    pods: usize,
    resident: f64,
    peak: f64,
}

/// Measures everything.
pub(crate) async fn measure(arguments: &Arguments, log: &Log) -> Result<Results> {
    let extent = if arguments.is_quick { QUICK } else { FULL };
    log.print("starting a control plane");
    let mut stage = Stage::new().await?;
    log.print("writing slices with each verb and of each size");
    let writes = writes::measure(&stage, extent.writes).await?;
    log.print("writing Vertices of Numaflow, with and without the webhook");
    let webhook = webhook::measure(&stage, extent.writes).await?;

    log.print("creating a service, with slices of several sizes");
    let creations = creation::measure(&mut stage, extent.creations).await?;

    log.print("starting everything without pods");
    let mut memory = Vec::new();
    stage.start(Side::Ours).await?;
    stage.ready().await?;
    stage.start(Side::Core).await?;
    sleep(QUIET).await;
    memory.push(Memory::of(&stage, 0)?);
    let idle = Usage::of(&stage, Side::Core)?;
    stop(&mut stage).await?;

    log.print("creating the pods that change");
    let mut fleets = Fleets::new(&stage).await?;
    stage.start(Side::Core).await?;
    log.print("changing them, with slices of several sizes");
    let limits = fleets.by_limit(&mut stage, extent.samples).await?;
    fleets.settled(&stage).await?;
    sleep(QUIET).await;
    memory.push(Memory::of(&stage, fleets.pods())?);
    log.print("changing them");
    let few = fleets.measure(&stage, extent.samples, extent.bursts).await?;
    log.print("bursts by concurrent PATCHes");
    let depths = bursts::by_depth(&mut fleets, &mut stage, extent.bursts_compared).await?;
    stop(&mut stage).await?;

    let others = extent.other_services * PODS_EACH;
    log.print(&format!("creating {others} other pods"));
    let fleet = Fleet::new(&stage, ("others", 5), (extent.other_services, PODS_EACH), &Side::BOTH).await?;
    fleet.fill(|_| true).await?;
    log.print("cold starts");
    let ours = cold::start(&mut stage, &fleet, Side::Ours).await?;
    let core = cold::start(&mut stage, &fleet, Side::Core).await?;
    log.print(&format!("a rolling restart of {} pods", extent.restarted));
    let restart = cold::restart(&stage, &fleet, 0..extent.restarted, &Side::BOTH).await?;
    let usage = [Usage::of(&stage, Side::Ours)?, Usage::of(&stage, Side::Core)?.since(idle)];
    memory.push(Memory::of(&stage, fleets.pods() + others)?);
    log.print("rolling restarts with one side alone");
    let pods = extent.restarted_alone;
    let alone = (pods, cold::restart_alone(&mut stage, &fleet, extent.restarted, pods).await?);

    log.print("changing the first pods again");
    fleets.settled(&stage).await?;
    let many = fleets.measure(&stage, extent.samples, extent.bursts).await?;

    let versions = [
        ("kube-controller-manager", version(tool("kube-controller-manager")?, "--version")?),
        ("CoreDNS", version(tool("coredns")?, "-version")?),
    ];
    let mut tables: Vec<_> =
        page::changes(extent.samples, &[(fleets.pods(), few), (fleets.pods() + others, many)]).into();
    tables.extend([
        page::depths(&depths),
        page::limits(&limits),
        page::many_pods(others, [ours, core], &restart, alone, usage),
        page::creations(&creations),
        page::memory(&memory),
    ]);
    tables.extend(page::writes(&writes));
    tables.push(page::webhook(&webhook));
    Results::new(&versions, tables)
}

async fn stop(stage: &mut Stage) -> Result<()> {
    for side in Side::BOTH {
        stage.stop(side).await?;
    }
    Ok(())
}

impl Memory {
    fn of(stage: &Stage, pods: usize) -> Result<Self> {
        let pid = stage.controller_pid(Side::Ours)?;
        Ok(Self { pods, resident: resident_mebibytes(pid)?, peak: peak_mebibytes(pid)? })
    }
}
