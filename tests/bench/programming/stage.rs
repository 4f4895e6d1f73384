//! The control plane, and the two sides that watch its pods: `multinet-controller` with
//! `multinet-dns`, and kube-controller-manager with CoreDNS.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::coredns::CoreDns;
use multinet_testing::objects::Objects;
use multinet_testing::replica::{Options, Replica};
use multinet_testing::tools::repository;
use serde_json::json;

use crate::side::{Side, kubernetes_plugin};

/// The nodes that pods are bound to; each zone has four.
pub(crate) const NODES: usize = 16;

/// The compared controller of kube-controller-manager.
const CONTROLLER: &str = "endpointslice-controller";

/// Running programs of the benchmark.
pub(crate) struct Stage {
    // Declared before the control plane, so that they are dropped first.
    ours: Option<(Controller, Replica)>,
    core: Option<CoreDns>,
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    controller: PathBuf,
    dns: PathBuf,
}

impl Stage {
    /// Starts a control plane with our kinds and roles, NetworkAttachmentDefinitions and nodes, but
    /// no controllers.
    pub(crate) async fn new() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.apply_crds().await?;
        cluster.apply_rbac().await?;
        let objects = cluster.objects().await?;
        let multus = repository().join("testing/src/programs/node/crds/network-attachment-definitions.yaml");
        objects.define([multus]).await?;
        for number in 0..NODES {
            let labels = json!({"topology.kubernetes.io/zone": format!("zone-{}", number / 4)});
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": format!("gpu-{number}"), "labels": labels}});
            objects.apply_object(&serde_json::from_value(node)?).await?;
        }
        let controller = cluster.controller_kubeconfig(cluster.address()).await?;
        let dns = cluster.dns_server_kubeconfig(cluster.address()).await?;
        Ok(Self { ours: None, core: None, cluster, objects, controller, dns })
    }

    /// Starts one side, and does not wait until it has read all objects.
    pub(crate) async fn start(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Ours => self.start_ours(&ControllerOptions::controller(&self.controller)).await?,
            Side::Core => {
                let plugin = kubernetes_plugin(&self.cluster);
                let blocks = [(".", plugin.as_str())];
                let manager = self.cluster.start_controller_manager(CONTROLLER);
                let ((), core) = tokio::try_join!(manager, CoreDns::start(&blocks))?;
                self.core = Some(core);
            }
        }
        Ok(())
    }

    /// Starts multinet with a limit of endpoints per slice.
    pub(crate) async fn start_with_slices_of(&mut self, limit: usize) -> Result<()> {
        let controller = ControllerOptions::controller(&self.controller);
        self.start_ours(&controller.flag("--max-endpoints-per-slice", limit.to_string())).await
    }

    async fn start_ours(&mut self, controller: &ControllerOptions) -> Result<()> {
        let dns = Options::new(&self.dns);
        self.ours = Some(tokio::try_join!(controller.start(), dns.start())?);
        Ok(())
    }

    /// Restarts kube-controller-manager without its limit of requests.
    pub(crate) async fn restart_core_without_limits(&mut self) -> Result<()> {
        let flags = ["--kube-api-qps=500", "--kube-api-burst=1000"];
        self.cluster.start_controller_manager_with(CONTROLLER, &flags).await
    }

    /// Stops one side, as a rollout does.
    pub(crate) async fn stop(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Ours => {
                if let Some((mut controller, mut dns)) = self.ours.take() {
                    controller.terminate().await?;
                    dns.terminate().await?;
                }
                Ok(())
            }
            Side::Core => {
                self.core = None;
                self.cluster.kill_controller_manager()
            }
        }
    }

    /// Returns the address of a side's DNS server.
    pub(crate) fn dns(&self, side: Side) -> Result<SocketAddr> {
        Ok(match side {
            Side::Ours => self.ours.as_ref().context("multinet-dns does not run")?.1.dns(),
            Side::Core => self.core.as_ref().context("CoreDNS does not run")?.address(),
        })
    }

    /// Returns the process id of a side's controller.
    pub(crate) fn controller_pid(&self, side: Side) -> Result<u32> {
        match side {
            Side::Ours => Ok(self.ours.as_ref().context("multinet-controller does not run")?.0.pid()),
            Side::Core => {
                self.cluster.controller_manager_pid().context("kube-controller-manager does not run")
            }
        }
    }

    /// Waits until multinet's programs have read all objects. kube-controller-manager's controller
    /// reports no readiness.
    pub(crate) async fn ready(&self) -> Result<()> {
        let (controller, dns) = self.ours.as_ref().context("multinet-controller does not run")?;
        controller.ready().await?;
        dns.ready().await
    }
}
