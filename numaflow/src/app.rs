//! Starts and stops the program's parts in a cluster.
//!
//! Everything is bound and checked before anything runs. A start therefore fails with one line, or
//! the program keeps running. Numaflow may be absent: its kinds are watched as soon as they exist.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, anyhow};
use kube::{Api, Client, Resource};
use multinet_crds::MultiNetworkService;
use multinet_runtime::{
    Admin, Guarded, Index, LeaseMetrics, Readiness, ReadyGuard, Refresh, WatchConfig, WatchMetrics, client,
    drain, lease, log, page, register_process_metrics, watch,
};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(config));
    // A thread may be blocked in a read from a hanging file system. Do not wait for it.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config) -> Result<()> {
    let log_level = log::init(&config.log)?;
    let readiness = Readiness::default();
    let starting = readiness.register("start");
    let shutdown = drain::on_signal(readiness.clone(), config.lameduck, DEADLINE);
    let mut registry = Registry::default();
    register_process_metrics(&mut registry, env!("CARGO_PKG_VERSION"));
    let watch_metrics = WatchMetrics::register(&mut registry);
    let lease_metrics = LeaseMetrics::register(&mut registry);
    let metrics = Metrics::register(&mut registry);

    let admin = match config.admin {
        Some(address) => Some(Admin::bind(address).await?),
        None => None,
    };
    let listener = bind(config.listen).await.with_context(|| {
        format!("--listen {}: cannot listen; choose another address or port", config.listen)
    })?;
    let (client, server) = client::connect().await?;
    let state = Arc::new(State::new(config.settings));

    let tasks = TaskTracker::new();
    if let Some(listener) = admin {
        info!("admin on http://{}", listener.local_addr()?);
        let described = Arc::clone(&state);
        let admin = Admin {
            readiness: readiness.clone(),
            registry: Arc::new(registry),
            log_level,
            allow_logging: config.admin_allow_logging,
            pages: vec![("/debug/state", page(move || described.describe()))],
        };
        tasks.spawn(admin.serve(listener, shutdown.clone()));
    }

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
        state: Arc::clone(&state),
        metrics: watch_metrics,
        shutdown: shutdown.clone(),
    };
    let mut watching = JoinSet::new();
    watches.watch::<Pipeline>(&mut watching, &listed, NUMAFLOW);
    watches.watch::<Vertex>(&mut watching, &listed, NUMAFLOW);
    watches.watch::<MonoVertex>(&mut watching, &listed, NUMAFLOW);
    watches.watch::<MultiNetworkService>(&mut watching, &listed, OURS);

    let (stopped, has_stopped) = oneshot::channel::<()>();
    let instance = config.lease.identity.clone();
    // `has_stopped` resolves when `stopped` is dropped, which also happens if the leader panics.
    let has_stopped = async { drop(has_stopped.await) };
    // The lease has a client of its own, so that writes and watches cannot delay a renewal.
    let (leadership, campaign) =
        lease(client::connect().await?.0, config.lease, lease_metrics, shutdown.clone(), has_stopped);
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
            drop(stopped);
        }
    });
    starting.ready();

    let outcome = tokio::select! {
        biased; // everything ends with the shutdown too
        () = shutdown.cancelled() => Ok(()),
        _ = watching.join_next() => Err(anyhow!("a watch has ended unexpectedly; see the log")),
        _ = &mut leading => Err(anyhow!("the leader's task has ended unexpectedly; see the log")),
        _ = &mut keeping => Err(anyhow!("the webhook's configuration is no longer kept; see the log")),
        _ = &mut answering => Err(anyhow!("the webhook's server has ended unexpectedly; see the log")),
    };
    shutdown.cancel();
    if let Err(unfinished) = drain::finish(&tasks, DEADLINE).await {
        warn!("{unfinished}");
    }
    info!("stopped");
    outcome
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

/// Everything that the watches need.
struct Watches {
    client: Client,
    refresh: Refresh,
    state: Arc<State>,
    metrics: WatchMetrics,
    shutdown: CancellationToken,
}

impl Watches {
    /// Spawns a watch, which feeds the state until the shutdown. A task that ends earlier has
    /// panicked. The caller must then stop the process, since the state would become outdated
    /// unnoticed.
    fn watch<K>(&self, tasks: &mut JoinSet<()>, listed: &Readiness, hint: &str)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        State: Index<K>,
    {
        let api = Api::<Guarded<K>>::all(self.client.clone());
        let config = WatchConfig { refresh: self.refresh.clone(), ..WatchConfig::new(api, hint) };
        let guard = listed.register(K::plural(&()));
        let watch =
            watch(config, Arc::clone(&self.state), guard, self.metrics.clone(), self.shutdown.clone());
        tasks.spawn(watch);
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
