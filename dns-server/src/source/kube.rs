//! The Kubernetes API server as the source: one guarded watch per kind.

use std::io;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use kube::{Api, Client};
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::{Readiness, ReadyGuard, WatchConfig, WatchMetrics, client, watch};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::store::state::State;

/// What to do when the API server does not know our kinds.
const HINT: &str = "kubectl apply -f deploy/crds";

/// Two watches that have not begun.
pub struct Watches {
    client: Client,
    /// The API server's URL.
    pub server: Arc<str>,
    metrics: WatchMetrics,
    services: ReadyGuard,
    slices: ReadyGuard,
}

/// Finds the API server's configuration; nothing is sent yet.
pub async fn connect(readiness: &Readiness, metrics: WatchMetrics) -> Result<Watches> {
    let (client, server) = client::connect()
        .await
        .map_err(|error| anyhow!("{error}; to serve files instead, give --manifests PATH"))?;
    Ok(Watches {
        client,
        server,
        metrics,
        services: readiness.register("multinetworkservices"),
        slices: readiness.register("multinetworkendpointslices"),
    })
}

impl Watches {
    /// Feeds `state` until `shutdown`; what is missing is waited for, and shown by `/readyz`. Ends before that only if
    /// a watch has panicked.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it.
    pub async fn follow(self, state: Arc<State>, shutdown: CancellationToken) -> io::Result<()> {
        let (ended, end) = oneshot::channel();
        // A thread of its own: publishing a list is work that no connection should wait for.
        std::thread::Builder::new().name("watches".to_owned()).spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            // Nobody waits for it after a shutdown.
            let _ = ended.send(runtime.map(|runtime| runtime.block_on(self.run(&state, &shutdown))));
        })?;
        // Nothing comes if the thread has panicked.
        end.await.unwrap_or(Ok(()))
    }

    /// Until one of the watches ends.
    async fn run(self, state: &Arc<State>, shutdown: &CancellationToken) {
        let Self { client, metrics, services, slices, .. } = self;
        let mut watches = JoinSet::new();
        watches.spawn(watch::<MultiNetworkService, State>(
            WatchConfig::new(Api::all(client.clone()), HINT),
            Arc::clone(state),
            services,
            metrics.clone(),
            shutdown.clone(),
        ));
        watches.spawn(watch::<MultiNetworkEndpointSlice, State>(
            WatchConfig::new(Api::all(client), HINT),
            Arc::clone(state),
            slices,
            metrics,
            shutdown.clone(),
        ));
        watches.join_next().await;
    }
}
