//! The Kubernetes API server as a source: one guarded watch per kind.

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

/// Command that is logged as a remedy when the API server lacks the custom resources.
const HINT: &str = "kubectl apply -f deploy/crds";

/// Watches of services and of slices at the API server, not begun yet.
pub struct Watches {
    client: Client,
    /// URL of the Kubernetes API server.
    pub server: Arc<str>,
    metrics: WatchMetrics,
    services: ReadyGuard,
    slices: ReadyGuard,
}

/// Prepares the watches from the client configuration. Sends nothing to the API server yet.
pub(crate) async fn connect(readiness: &Readiness, metrics: WatchMetrics) -> Result<Watches> {
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
    /// Feeds `state` until `shutdown`. Waits for whatever is missing, which `/readyz` shows. Ends
    /// earlier only if a watch has panicked.
    ///
    /// # Errors
    ///
    /// If the system has no thread for the watches.
    pub async fn follow(self, state: Arc<State>, shutdown: CancellationToken) -> io::Result<()> {
        let (ended, end) = oneshot::channel();
        // A thread of its own, since publishing a long list would delay connections on a shared
        // one.
        std::thread::Builder::new().name("watches".to_owned()).spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            // The receiver may be gone after a shutdown.
            let _ = ended.send(runtime.map(|runtime| runtime.block_on(self.run(&state, &shutdown))));
        })?;
        // The sender is dropped without a value if the thread has panicked.
        end.await.unwrap_or(Ok(()))
    }

    /// Runs both watches until the shutdown, or until one of them ends.
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
