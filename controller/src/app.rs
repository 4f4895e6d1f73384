//! Starts and stops the controller's parts.
//!
//! ```text
//!   watches ──> ClusterIndex ──> Queue ──┐
//!   optional APIs ─┘                     ├─> Writer ──> API server
//!   everything listed ──> lease ─────────┘     └─> events
//!
//!   SIGTERM ──> not ready ──> writer finishes ──> lease is released ──> exit
//! ```

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, labels};
use multinet_runtime::{
    LeaseMetrics, Program, ProgramSettings, Readiness, Refresh, WatchMetrics, Watches, client, lease, page,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Args;
use crate::events::events;
use crate::fair_queue::Limits;
use crate::index::{ClusterIndex, Settings};
use crate::limits::process::{DEADLINE, THREADS};
use crate::metrics::{self, ApiMetrics, WriterMetrics};
use crate::optional::OptionalApis;
use crate::queue::Queue;
use crate::views;
use crate::writer::Writer;

/// Command that installs multinet's CRDs: advice for an API server that does not serve its kinds.
const OURS: &str = "kubectl apply -f deploy/crds";

/// Advice in log lines about an API server that does not serve a core kind.
const CORE: &str = "use an API server of Kubernetes 1.31 or later";

/// Runs the controller until a signal stops it. Returns an error if it cannot start, or if one of
/// its tasks ends early.
pub fn run(args: Args) -> Result<()> {
    // Planning a huge service occupies a thread for a while, and threads that need the index wait
    // for it. There must be more threads than those.
    let threads = available_parallelism().map_or(1, NonZero::get).max(THREADS);
    let settings = ProgramSettings {
        version: env!("CARGO_PKG_VERSION"),
        threads: Some(threads),
        // The controller serves no clients, so it need not stay up after it becomes unready.
        lameduck: Duration::ZERO,
        deadline: DEADLINE,
    };
    Program::run(&args.program.clone(), settings, |program| serve(args, program))
}

async fn serve(args: Args, mut program: Program) -> Result<()> {
    let registry = &mut program.registry;
    let watch_metrics = WatchMetrics::register(registry);
    let lease_metrics = LeaseMetrics::register(registry);
    let api_metrics = ApiMetrics::register(registry);
    let writer_metrics = WriterMetrics::default();
    let (client, server) = client::connect().await?;
    let queue = Arc::new(Queue::new(Limits::of_services(args.concurrent_writes.into())));
    let settings = Settings {
        zone: args.zone.clone(),
        limit: args.max_endpoints_per_slice.into(),
        caps: args.caps(),
        mirror_limit: args.max_endpoints_per_mirror_slice.into(),
        clock: Timestamp::now,
    };
    let index = Arc::new(ClusterIndex::new(settings, Arc::clone(&queue)));
    metrics::register(registry, &writer_metrics, Arc::clone(&index), Arc::clone(&queue));

    let described = Arc::clone(&index);
    program.serve_admin(vec![("/debug/state", page(move || described.describe()))])?;
    let Program { readiness, shutdown, tasks, .. } = &program;
    let refresh = Refresh::default();
    let watches = Watches {
        client: client.clone(),
        refresh: refresh.clone(),
        index: Arc::clone(&index),
        metrics: watch_metrics,
    };
    let mut watches = follow(watches, readiness, api_metrics, shutdown);

    let election = args.lease.config("multinet-controller");
    let instance = election.identity.clone();
    let (leadership, campaign, users) = lease::elect(election, lease_metrics, shutdown.clone()).await?;
    let (events, publisher) =
        events(client.clone(), leadership.clone(), &instance, writer_metrics.lost_events.clone());
    let writer = Writer::new(
        client,
        (index, queue),
        (leadership, refresh),
        events,
        writer_metrics,
        args.concurrent_writes.into(),
    );
    tasks.spawn(publisher.run());
    tasks.spawn({
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        async move {
            // A leader that has not listed everything would take unlisted objects for deleted ones.
            if shutdown.run_until_cancelled(readiness.until_ready()).await.is_some() {
                info!(version = env!("CARGO_PKG_VERSION"), from = %server, "everything has been listed");
                campaign.await;
            }
        }
    });
    let mut writing = tasks.spawn({
        let shutdown = shutdown.clone();
        async move {
            writer.run(shutdown).await;
            drop(users);
        }
    });
    let failure = async move {
        tokio::select! {
            _ = watches.join_next() => Err(anyhow!("a watch has ended unexpectedly; see the log")),
            _ = &mut writing => Err(anyhow!("the writer has ended unexpectedly; see the log")),
        }
    };
    program.run_until(failure).await
}

/// Spawns all watches, which feed the index until the shutdown. A task that ends earlier has
/// panicked. The caller must then stop the process, since slices would become outdated unnoticed.
fn follow(
    watches: Watches<ClusterIndex>,
    readiness: &Readiness,
    api_metrics: ApiMetrics,
    shutdown: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(watches.watch::<MultiNetworkService>(readiness, OURS, None, shutdown));
    tasks.spawn(watches.watch::<MultiNetworkEndpointSlice>(readiness, OURS, None, shutdown));
    tasks.spawn(watches.watch::<views::PodView>(readiness, CORE, None, shutdown));
    tasks.spawn(watches.watch::<views::NodeView>(readiness, CORE, None, shutdown));
    tasks.spawn(watches.watch::<views::ServiceView>(readiness, CORE, None, shutdown));
    let mirrors = format!("{}={}", labels::CORE_MANAGED_BY, labels::MANAGED_BY_CONTROLLER);
    tasks.spawn(watches.watch::<EndpointSlice>(readiness, CORE, Some(&mirrors), shutdown));
    let asked = readiness.register("API groups");
    let optional = OptionalApis::new(watches, api_metrics, shutdown.clone());
    tasks.spawn(optional.run(readiness.clone(), asked));
    tasks
}
