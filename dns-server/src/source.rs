//! Where objects come from. Each source feeds [`State`] by the same four calls.

pub mod kube;
pub mod manifests;
pub mod persist;
pub mod snapshot;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use multinet_runtime::{Readiness, WatchMetrics};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::ops::metrics::SourceMetrics;
use crate::store::state::State;

/// Where objects come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Files and folders.
    Manifests(Vec<PathBuf>),
    /// The Kubernetes API server.
    Kubernetes,
}

/// A source that is ready to be followed.
pub enum Prepared {
    /// Files, loaded once.
    Manifests(Box<manifests::Manifests>),
    /// Watches, not begun.
    Kubernetes(Box<kube::Watches>),
}

/// Loads manifests and publishes them, or finds the API server: all that a bad configuration would fail at.
pub async fn prepare(
    source: &Source,
    state: &State,
    readiness: &Readiness,
    metrics: &SourceMetrics,
    watch_metrics: WatchMetrics,
) -> Result<Prepared> {
    Ok(match source {
        Source::Manifests(paths) => {
            let mut manifests = manifests::load(paths, readiness, metrics.manifests.clone())?;
            // A server with manifests has answers before it has listeners.
            manifests.publish(state);
            Prepared::Manifests(Box::new(manifests))
        }
        Source::Kubernetes => Prepared::Kubernetes(Box::new(kube::connect(readiness, watch_metrics).await?)),
    })
}

impl Prepared {
    /// Where objects come from, in words.
    pub fn origin(&self) -> String {
        match self {
            Self::Manifests(manifests) => manifests.origin(),
            Self::Kubernetes(watches) => watches.server.to_string(),
        }
    }

    /// Feeds `state` until `shutdown`. If that ends before, something has panicked or given up: what the server says
    /// would grow old without anybody noticing.
    pub async fn follow(self, state: Arc<State>, shutdown: CancellationToken) {
        let outcome = match self {
            Self::Manifests(manifests) => {
                manifests.follow(state, shutdown).await.map_err(anyhow::Error::from)
            }
            Self::Kubernetes(watches) => watches.follow(state, shutdown).await.map_err(anyhow::Error::from),
        };
        if let Err(error) = outcome {
            error!("{error}");
        }
    }
}
