//! Starts and stops the publisher's parts. Everything is bound and checked before anything runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::watch::Problem;
use multinet_runtime::{
    Admin, LeaseMetrics, LogLevel, Readiness, TerminalSafe, WatchConfig, WatchMetrics, client, drain, lease,
    log, page, register_process_metrics, watch,
};
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::{Args, Config};
use crate::index::ClusterIndex;
use crate::limits::etcd::LONGEST_PAUSE;
use crate::limits::process::DEADLINE;
use crate::metrics::WriterMetrics;
use crate::writer::{Writer, WriterConfig};

/// Command that installs multinet's CRDs: advice for an API server that does not serve its kinds.
const HINT: &str = "kubectl apply -f deploy/crds";

/// Namespace whose uid identifies a cluster.
const CLUSTER: &str = "kube-system";

/// Runs the publisher until a signal stops it. Returns an error if it cannot start, or if the
/// prefix belongs to another owner.
pub fn run(args: Args) -> Result<()> {
    let config = Config::new(args)?;
    let log_level = log::init(&config.log)?;
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        warn!(%error, "cannot raise the limit of open files; it stays as it is");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(config, log_level));
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config, log_level: LogLevel) -> Result<()> {
    let readiness = Readiness::default();
    let starting = readiness.register("start");
    // The publisher serves no clients, so it need not stay up after it becomes unready.
    let shutdown = drain::on_signal(readiness.clone(), Duration::ZERO, DEADLINE);
    let mut registry = Registry::default();
    register_process_metrics(&mut registry, env!("CARGO_PKG_VERSION"));
    let watch_metrics = WatchMetrics::register(&mut registry);
    let lease_metrics = LeaseMetrics::register(&mut registry);
    let writer_metrics = WriterMetrics::register(&mut registry);

    let admin = match config.admin {
        Some(address) => Some(Admin::bind(address).await?),
        None => None,
    };
    let (client, server) = client::connect().await?;
    let index = Arc::new(ClusterIndex::new(config.settings.clone()));
    let tasks = TaskTracker::new();
    if let Some(listener) = admin {
        info!("admin on http://{}", listener.local_addr()?);
        let described = Arc::clone(&index);
        let admin = Admin {
            readiness: readiness.clone(),
            registry: Arc::new(registry),
            log_level,
            allow_logging: config.admin_allow_logging,
            pages: vec![("/debug/state", page(move || described.describe()))],
        };
        tasks.spawn(admin.serve(listener, shutdown.clone()));
    }
    let mut watches = JoinSet::new();
    watches.spawn(watch::<MultiNetworkService, ClusterIndex>(
        WatchConfig::new(Api::all(client.clone()), HINT),
        Arc::clone(&index),
        readiness.register("multinetworkservices"),
        watch_metrics.clone(),
        shutdown.clone(),
    ));
    watches.spawn(watch::<MultiNetworkEndpointSlice, ClusterIndex>(
        WatchConfig::new(Api::all(client.clone()), HINT),
        Arc::clone(&index),
        readiness.register("multinetworkendpointslices"),
        watch_metrics,
        shutdown.clone(),
    ));

    let (stopped, has_stopped) = oneshot::channel::<()>();
    // `has_stopped` resolves when `stopped` is dropped, which also happens if the writer panics.
    let has_stopped = async { drop(has_stopped.await) };
    // The lease has a client of its own, so that watches cannot delay a renewal.
    let (leadership, campaign) =
        lease(client::connect().await?.0, config.lease, lease_metrics, shutdown.clone(), has_stopped);
    tasks.spawn({
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        async move {
            // A leader that has not listed everything would delete the keys of unlisted objects.
            if shutdown.run_until_cancelled(readiness.until_ready()).await.is_some() {
                info!(version = env!("CARGO_PKG_VERSION"), from = %server, "everything has been listed");
                campaign.await;
            }
        }
    });
    let mut writing = tokio::spawn({
        let (index, readiness, shutdown) = (Arc::clone(&index), readiness.clone(), shutdown.clone());
        let (etcd, prefix, take_over) = (config.etcd, config.settings.prefix, config.take_over);
        let configured = config.owner;
        async move {
            let owner = owner(configured, &client, &readiness);
            let Some(owner) = shutdown.run_until_cancelled(owner).await else { return Ok(()) };
            let writer = WriterConfig { etcd, prefix, owner: owner?, take_over };
            let writer = Writer::new(writer, index, leadership, readiness, writer_metrics);
            let outcome = writer.run(shutdown).await;
            drop(stopped);
            outcome.map_err(anyhow::Error::from)
        }
    });
    starting.ready();

    let outcome = tokio::select! {
        biased; // everything ends with the shutdown too
        () = shutdown.cancelled() => Ok(()),
        _ = watches.join_next() => Err(anyhow!("a watch has ended unexpectedly; see the log")),
        written = &mut writing => written.context("the writer has ended unexpectedly; see the log").flatten(),
    };
    shutdown.cancel();
    if !writing.is_finished() && tokio::time::timeout(DEADLINE, writing).await.is_err() {
        warn!("the writer has not ended within {DEADLINE:?}");
    }
    if let Err(unfinished) = drain::finish(&tasks, DEADLINE).await {
        warn!("{unfinished}");
    }
    info!("stopped");
    outcome
}

/// Returns the name of the owner: the configured one, or the uid of the cluster's namespace
/// kube-system, which is read once the API server has answered the watches. Tries again while the
/// API server fails.
async fn owner(configured: Option<String>, client: &Client, readiness: &Readiness) -> Result<String> {
    if let Some(owner) = configured {
        return Ok(owner);
    }
    readiness.until_ready().await;
    let namespaces = Api::<Namespace>::all(client.clone());
    let advice = || {
        format!("cannot read the namespace {CLUSTER}, whose uid names the owner of the keys: give --owner")
    };
    loop {
        let failed = match namespaces.get(CLUSTER).await {
            Ok(found) => {
                readiness.note(CLUSTER, None);
                return found.metadata.uid.with_context(advice);
            }
            // Waiting does not help.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                return Err(kube::Error::Api(status)).with_context(advice);
            }
            Err(error) => Problem::from(error).message,
        };
        let problem = format!("cannot read the namespace {CLUSTER}: {failed}; trying again");
        warn!("{}", TerminalSafe(&problem));
        readiness.note(CLUSTER, Some(problem));
        sleep(LONGEST_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use multinet_testing::fake_api::FakeApi;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_owner_is_asked_for_until_the_api_server_says_it() {
        let readiness = Readiness::default();
        let (client, mut api) = FakeApi::new();
        let found = tokio::spawn({
            let readiness = readiness.clone();
            async move { owner(None, &client, &readiness).await }
        });
        for code in [429, 500, 503] {
            api.next().await.status(code, "later");
        }
        let request = api.next().await;
        assert!(readiness.notes()[0].1.contains("cannot read the namespace kube-system: "));
        request.json(http::StatusCode::OK, &serde_json::json!({"metadata": {"name": CLUSTER, "uid": "u"}}));
        assert_eq!(found.await.unwrap().unwrap(), "u");
        assert!(readiness.notes().is_empty());

        let (client, mut api) = FakeApi::new();
        let refused = tokio::spawn(async move { owner(None, &client, &Readiness::default()).await });
        api.next().await.status(403, "no");
        assert!(refused.await.unwrap().unwrap_err().to_string().contains("give --owner"));
    }
}
