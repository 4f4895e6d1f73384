//! Starts and stops the publisher's parts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::watch::Problem;
use multinet_runtime::{
    LeaseMetrics, Program, ProgramSettings, Readiness, Refresh, TerminalSafe, WatchMetrics, Watches, client,
    lease, page,
};
use tokio::task::JoinSet;
use tokio::time::sleep;
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
    let settings = ProgramSettings {
        version: env!("CARGO_PKG_VERSION"),
        threads: None,
        // The publisher serves no clients, so it need not stay up after it becomes unready.
        lameduck: Duration::ZERO,
        deadline: DEADLINE,
    };
    Program::run(&config.program.clone(), settings, |program| serve(config, program))
}

async fn serve(config: Config, mut program: Program) -> Result<()> {
    let registry = &mut program.registry;
    let watch_metrics = WatchMetrics::register(registry);
    let lease_metrics = LeaseMetrics::register(registry);
    let writer_metrics = WriterMetrics::register(registry);
    let (client, server) = client::connect().await?;
    let index = Arc::new(ClusterIndex::new(config.settings.clone()));
    let described = Arc::clone(&index);
    program.serve_admin(vec![("/debug/state", page(move || described.describe()))])?;
    let Program { readiness, shutdown, tasks, .. } = &program;
    let following = Watches {
        client: client.clone(),
        refresh: Refresh::default(),
        index: Arc::clone(&index),
        metrics: watch_metrics,
    };
    let mut watches = JoinSet::new();
    watches.spawn(following.watch::<MultiNetworkService>(readiness, HINT, None, shutdown));
    watches.spawn(following.watch::<MultiNetworkEndpointSlice>(readiness, HINT, None, shutdown));

    let (leadership, campaign, users) = lease::elect(config.lease, lease_metrics, shutdown.clone()).await?;
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
    let writing = tasks.spawn({
        let (index, readiness, shutdown) = (Arc::clone(&index), readiness.clone(), shutdown.clone());
        let (etcd, prefix, take_over) = (config.etcd, config.settings.prefix, config.take_over);
        let configured = config.owner;
        async move {
            let owner = owner(configured, &client, &readiness);
            let Some(owner) = shutdown.run_until_cancelled(owner).await else { return Ok(()) };
            let writer = WriterConfig { etcd, prefix, owner: owner?, take_over };
            let writer = Writer::new(writer, index, leadership, readiness, writer_metrics);
            let outcome = writer.run(shutdown).await;
            drop(users);
            outcome.map_err(anyhow::Error::from)
        }
    });
    let failure = async move {
        tokio::select! {
            _ = watches.join_next() => Err(anyhow!("a watch has ended unexpectedly; see the log")),
            written = writing => written.context("the writer has ended unexpectedly; see the log").flatten(),
        }
    };
    program.run_until(failure).await
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
