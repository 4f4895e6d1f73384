//! Starts and stops the program's parts in a cluster. Numaflow may be absent: its kinds are watched
//! as soon as they exist.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, anyhow};
use multinet_crds::MultiNetworkService;
use multinet_runtime::{
    LeaseMetrics, Program, ProgramSettings, Readiness, ReadyGuard, Refresh, WatchMetrics, Watches, client,
    lease, page,
};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::info;

use crate::config::Config;
use crate::events::Events;
use crate::index::State;
use crate::keeper::{Current, Keeper};
use crate::leader::Leader;
use crate::limits::process::{DEADLINE, READINESS_INTERVAL};
use crate::metrics::Metrics;
use crate::objects::{MonoVertex, Pipeline, Vertex};
use crate::server::{Server, bind};
use crate::webhook::Webhook;

/// Command that installs multinet's CRDs: advice for an API server that does not serve its kinds.
const OURS: &str = "kubectl apply -f deploy/crds";

/// Advice for an API server that does not serve Numaflow's kinds.
const NUMAFLOW: &str = "install Numaflow; until then there is nothing to do";

/// Name under which `/readyz` shows the lists of all objects.
const LISTS: &str = "lists";

/// Runs the program until a signal stops it.
///
/// # Errors
///
/// If it cannot start, or if one of its tasks ends early.
pub fn run(config: Config) -> Result<()> {
    let settings = ProgramSettings {
        version: env!("CARGO_PKG_VERSION"),
        threads: None,
        lameduck: config.lameduck,
        deadline: DEADLINE,
    };
    Program::run(&config.program.clone(), settings, |program| serve(config, program))
}

async fn serve(config: Config, mut program: Program) -> Result<()> {
    let registry = &mut program.registry;
    let watch_metrics = WatchMetrics::register(registry);
    let lease_metrics = LeaseMetrics::register(registry);
    let metrics = Metrics::register(registry);
    let listener = bind(config.listen).await.with_context(|| {
        format!("--listen {}: cannot listen; choose another address or port", config.listen)
    })?;
    let (client, server) = client::connect().await?;
    let state = Arc::new(State::new(config.settings));

    let described = Arc::clone(&state);
    program.serve_admin(vec![("/debug/state", page(move || described.describe()))])?;
    let Program { readiness, shutdown, tasks, .. } = &program;

    // The process is ready without Numaflow, but decides nothing before all its objects are listed.
    let listed = Readiness::default();
    tasks.spawn({
        let (readiness, listed, shutdown) = (readiness.clone(), listed.clone(), shutdown.clone());
        let guard = readiness.register(LISTS);
        async move { shutdown.run_until_cancelled(follow(listed, readiness, guard)).await }
    });
    let refresh = Refresh::default();
    let watches = Watches {
        client: client.clone(),
        refresh: refresh.clone(),
        index: Arc::clone(&state),
        metrics: watch_metrics,
    };
    let mut watching = JoinSet::new();
    watching.spawn(watches.watch::<Pipeline>(&listed, NUMAFLOW, None, shutdown));
    watching.spawn(watches.watch::<Vertex>(&listed, NUMAFLOW, None, shutdown));
    watching.spawn(watches.watch::<MonoVertex>(&listed, NUMAFLOW, None, shutdown));
    watching.spawn(watches.watch::<MultiNetworkService>(&listed, OURS, None, shutdown));

    let instance = config.lease.identity.clone();
    let (leadership, campaign, users) = lease::elect(config.lease, lease_metrics, shutdown.clone()).await?;
    tasks.spawn(campaign);

    let (current, has_webhook) = (Arc::new(Current::default()), Arc::new(AtomicBool::new(false)));
    let keeper = Keeper {
        client: client.clone(),
        config: config.keeper,
        leadership: leadership.clone(),
        current: Arc::clone(&current),
        has_webhook: Arc::clone(&has_webhook),
        readiness: readiness.clone(),
        metrics: metrics.clone(),
    };
    let mut keeping = tasks.spawn(keeper.run(readiness.register("webhook"), shutdown.clone()));
    let webhook = Webhook::new(client.clone(), Arc::clone(&state), listed.clone(), metrics.clone());
    info!("listening on https://{}", listener.local_addr()?);
    let mut answering = tasks.spawn(Server::new(webhook, current, shutdown.clone()).serve(listener));

    let events = Events::new(client.clone(), &instance, metrics.failed_events.clone());
    let leader = Leader::new(client, state, (leadership, refresh), events, metrics, has_webhook);
    let mut leading = tasks.spawn({
        let shutdown = shutdown.clone();
        async move {
            // A leader that has not listed everything would take unlisted objects for deleted ones.
            if shutdown.run_until_cancelled(listed.until_ready()).await.is_some() {
                info!(version = env!("CARGO_PKG_VERSION"), from = %server, "everything has been listed");
                leader.run(shutdown).await;
            }
            drop(users);
        }
    });
    let failure = async move {
        tokio::select! {
            _ = watching.join_next() => Err(anyhow!("a watch has ended unexpectedly; see the log")),
            _ = &mut leading => Err(anyhow!("the leader's task has ended unexpectedly; see the log")),
            _ = &mut keeping => Err(anyhow!("the webhook's configuration is no longer kept; see the log")),
            _ = &mut answering => Err(anyhow!("the webhook's server has ended unexpectedly; see the log")),
        }
    };
    program.run_until(failure).await
}

/// Keeps the process from being ready until everything is listed, unless only Numaflow is missing.
async fn follow(listed: Readiness, readiness: Readiness, guard: ReadyGuard) {
    let mut guard = Some(guard);
    while !show(&listed, &readiness, &mut guard) {
        // An error means that the reason may have changed.
        let _ = timeout(READINESS_INTERVAL, listed.until_ready()).await;
    }
}

/// Shows in `/readyz` what is still to be listed. Returns whether everything is.
fn show(listed: &Readiness, readiness: &Readiness, guard: &mut Option<ReadyGuard>) -> bool {
    let lacking = lacking(&listed.pending());
    readiness.note(LISTS, if let Lacking::Numaflow(reason) = &lacking { Some(reason.clone()) } else { None });
    if let Lacking::Lists(reason) = &lacking {
        guard.get_or_insert_with(|| readiness.register(LISTS)).waiting_for(reason);
    } else {
        *guard = None;
    }
    lacking == Lacking::Nothing
}

/// Lists that are still missing, with the reason.
#[derive(Debug, PartialEq, Eq)]
enum Lacking {
    Nothing,
    /// Only those of kinds that the cluster does not have.
    Numaflow(String),
    Lists(String),
}

fn lacking(pending: &[(String, Option<String>)]) -> Lacking {
    let reasons = || pending.iter().map(|(name, reason)| reason.as_ref().unwrap_or(name));
    // A watch gives this advice only for a kind that the API server does not know.
    match reasons().find(|reason| !reason.ends_with(NUMAFLOW)).or_else(|| reasons().next()) {
        None => Lacking::Nothing,
        Some(reason) if reason.ends_with(NUMAFLOW) => Lacking::Numaflow(reason.clone()),
        Some(reason) => Lacking::Lists(reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_unready_until_all_is_listed_or_only_numaflow_is_unknown() {
        let (listed, readiness) = (Readiness::default(), Readiness::default());
        let (pipelines, services) = (listed.register("pipelines"), listed.register("services"));
        let mut guard = Some(readiness.register(LISTS));
        let absent = format!("no such kind, pipelines; waiting for it: {NUMAFLOW}");
        pipelines.waiting_for(&absent);
        services.waiting_for("forbidden");
        assert!(!show(&listed, &readiness, &mut guard));
        assert_eq!(readiness.pending(), [(LISTS.to_owned(), Some("forbidden".to_owned()))]);

        services.ready();
        assert!(!show(&listed, &readiness, &mut guard));
        assert!(readiness.is_ready());
        assert_eq!(readiness.notes(), [(LISTS.to_owned(), absent)]);

        pipelines.waiting_for("silent");
        assert!(!show(&listed, &readiness, &mut guard) && !readiness.is_ready());
        pipelines.ready();
        assert!(show(&listed, &readiness, &mut guard));
        assert!(readiness.is_ready() && readiness.notes().is_empty());
    }
}
