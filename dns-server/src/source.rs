//! Sources of objects. Each source feeds [`State`] through the calls of
//! [`multinet_runtime::Index`].

pub(crate) mod kube;
pub mod manifests;
pub(crate) mod persist;
pub mod snapshot;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use multinet_runtime::{Readiness, WatchMetrics};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::ops::metrics::SourceMetrics;
use crate::store::state::State;

/// Source of services and slices that the flags choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// YAML and JSON files, and folders with such files.
    Manifests(Vec<PathBuf>),
    /// Watches of the Kubernetes API server.
    Kubernetes,
}

/// A source that is checked and ready to be followed.
pub enum Prepared {
    /// Manifests that were read, and published, once.
    Manifests(Box<manifests::Manifests>),
    /// Watches of the API server that have not begun.
    Kubernetes(Box<kube::Watches>),
}

/// Loads and publishes manifests, or finds the API server. A bad configuration fails here.
pub async fn prepare(
    source: &Source,
    state: &State,
    readiness: &Readiness,
    metrics: &SourceMetrics,
    watch_metrics: WatchMetrics,
) -> Result<Prepared> {
    Ok(match source {
        Source::Manifests(paths) => {
            // A server with manifests has answers before it has listeners.
            let manifests = manifests::load(paths, state, readiness, metrics.manifests.clone())?;
            Prepared::Manifests(Box::new(manifests))
        }
        Source::Kubernetes => Prepared::Kubernetes(Box::new(kube::connect(readiness, watch_metrics).await?)),
    })
}

impl Prepared {
    /// Returns a description of the source for the log: its paths or URL.
    pub fn origin(&self) -> String {
        match self {
            Self::Manifests(manifests) => manifests.origin(),
            Self::Kubernetes(watches) => watches.server.to_string(),
        }
    }

    /// Feeds `state` until `shutdown`. If the future ends earlier, following has failed, and the
    /// answers would become outdated unnoticed.
    pub async fn follow(self, state: Arc<State>, shutdown: CancellationToken) {
        let outcome = match self {
            Self::Manifests(manifests) => manifests.follow(state, shutdown).await,
            Self::Kubernetes(watches) => watches.follow(state, shutdown).await.map_err(anyhow::Error::from),
        };
        if let Err(error) = outcome {
            error!("{error}");
        }
    }
}
