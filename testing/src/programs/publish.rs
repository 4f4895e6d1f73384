//! `multinet-publish` as in a cluster.

use std::path::Path;

pub use crate::program::{Options as PublisherOptions, Program as Publisher};

impl PublisherOptions {
    /// Returns the options of a publisher for the cluster and user of a kubeconfig file.
    pub fn publisher(kubeconfig: &Path) -> Self {
        Self::of("multinet-publish", kubeconfig)
    }
}
