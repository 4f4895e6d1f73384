//! `multinet-controller` as in a cluster: with the shipped ServiceAccount and roles.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::program::BOUND;
use crate::wait::eventually;

pub use crate::program::{Options as ControllerOptions, Program as Controller};

impl ControllerOptions {
    /// Returns the options of a controller for the cluster and user of a kubeconfig file.
    pub fn controller(kubeconfig: &Path) -> Self {
        Self::of("multinet-controller", kubeconfig)
    }
}

impl ControllerOptions {
    /// Returns the options of `multinet-numaflow` for the cluster and user of a kubeconfig file.
    pub fn numaflow(kubeconfig: &Path) -> Self {
        Self::of("multinet-numaflow", kubeconfig)
    }
}

impl Controller {
    /// Returns whether the controller is the leader, by its metric.
    pub async fn is_leader(&self) -> Result<bool> {
        let (_, metrics) = self.get("metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix("multinet_leader "));
        Ok(value.context("the metric multinet_leader is not served")? == "1")
    }

    /// Waits until the controller is the leader, or until it is not.
    pub async fn leads(&self, expected: bool) -> Result<()> {
        eventually(&format!("the controller to lead: {expected}"), BOUND, async || {
            ensure!(self.is_leader().await? == expected, "not yet\n{}", self.tail());
            Ok(())
        })
        .await
    }
}
