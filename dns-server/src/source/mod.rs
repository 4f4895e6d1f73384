//! Where objects come from. Each source feeds [`State`] by the same four calls.

pub mod keep;
pub mod kube;
pub mod manifests;
pub mod snapshot;

use std::sync::Arc;

use anyhow::Result;
use multinet_runtime::Readiness;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::config::Source;
use crate::metrics::SourceMetrics;
use crate::state::State;

/// A source that is ready to be followed.
pub enum Prepared {
    /// Files, loaded once.
    Manifests(Box<manifests::Manifests>),
    /// Watches, not begun.
    Kubernetes(kube::Watches),
}

/// Loads manifests, or finds the API server: all that a bad configuration would fail at.
pub async fn prepare(
    source: &Source,
    readiness: &Readiness,
    metrics: &SourceMetrics,
    registry: &mut Registry,
) -> Result<Prepared> {
    Ok(match source {
        Source::Manifests(paths) => {
            Prepared::Manifests(Box::new(manifests::load(paths, metrics.manifests.clone())?))
        }
        Source::Kubernetes => Prepared::Kubernetes(kube::connect(readiness, registry).await?),
    })
}

impl Prepared {
    /// Publishes what is there already, so that a server with manifests has answers before it has listeners.
    pub fn publish(&mut self, state: &State) {
        if let Self::Manifests(manifests) = self {
            manifests.publish(state);
        }
    }

    /// Feeds `state` until `shutdown`. A task that ends before that has panicked or given up: what the server
    /// says would grow old without anybody noticing.
    pub fn follow(self, state: Arc<State>, shutdown: &CancellationToken) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::Manifests(manifests) => {
                let shutdown = shutdown.clone();
                tasks.spawn(async move {
                    if let Err(error) = manifests.follow(state, shutdown).await {
                        error!("{error}");
                    }
                });
            }
            Self::Kubernetes(watches) => watches.follow(&state, &mut tasks, shutdown),
        }
        tasks
    }
}
