//! A real node and its cluster: kubelet and containerd run pods, whose networks Multus creates.
//!
//! // Only for use in a [sandbox](crate::sandbox), which stands for the node's machine: containers,
//! mounts, networks and control groups vanish with it.

mod daemons;
pub mod pods;
mod services;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node as CoreNode;
use kube::Api;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

pub use self::daemons::CLUSTER_DNS;
use self::services::Services;
use crate::cluster::Cluster;
use crate::images;
use crate::multus::{Multus, ip};
use crate::objects::{Namespace, Objects};
use crate::process::{Process, print_tail};
use crate::tools::tool;
use crate::wait::eventually;

/// Time limit of any operation on a node, such as an import of an image, the replacement of a pod,
/// or a change in DNS. Usually it takes a few seconds, but the machine may be busy.
pub const BOUND: Duration = Duration::from_secs(90);

/// Name of the node.
pub const NAME: &str = "node-a";

/// Zone of the node.
pub const ZONE: &str = "zone-a";

/// Address of the node, on an interface without a peer.
const ADDRESS: &str = "172.30.0.1";

/// Controllers of Kubernetes for a node with Deployments and Services.
const CONTROLLERS: &str = "endpointslice-controller,deployment-controller,replicaset-controller,\
    serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
    garbage-collector-controller,namespace-controller,node-lifecycle-controller,disruption-controller,\
    pod-garbage-collector-controller";

/// Cluster of one node.
#[derive(Debug)]
pub struct Node {
    // The order of the fields is that in which the parts have to be dropped.
    _services: Services,
    kubelet: Process,
    containerd: Process,
    networks: Multus,
    cluster: Cluster,
    _folder: TempDir,
}

impl Node {
    /// Starts all parts, and waits until the node is ready for pods.
    pub async fn start() -> Result<Self> {
        ensure!(crate::sandbox::is_inside(), "a node must run in a sandbox");
        connect()?;
        let folder = TempDir::with_prefix("multinet-node-")?;
        let path = folder.path().to_owned();
        let images = spawn_blocking(move || images::all(&path));
        let mut cluster = Cluster::start_for_pods(&[]).await?;
        cluster.start_controller_manager(CONTROLLERS).await?;
        cluster.start_scheduler()?;
        let networks = Multus::set_up(&cluster).await?;
        let mut containerd = daemons::containerd(folder.path(), &networks).await?;
        for image in images.await?? {
            daemons::import(&mut containerd, &image).await?;
            fs::remove_file(image)?;
        }
        let kubelet = daemons::kubelet(folder.path(), cluster.admin_kubeconfig())?;
        let services = Services::serve(cluster.client().await?)?;
        let mut node = Self { _services: services, kubelet, containerd, networks, cluster, _folder: folder };
        node.ready().await?;
        Ok(node)
    }

    async fn ready(&mut self) -> Result<()> {
        let nodes: Api<CoreNode> = Api::all(self.cluster.client().await?);
        self.kubelet
            .until("register a node that is ready", BOUND, async || {
                let conditions = nodes.get(NAME).await?.status.and_then(|status| status.conditions);
                let conditions = conditions.unwrap_or_default();
                let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
                let ready = ready.context("no condition Ready")?;
                ensure!(ready.status == "True", "not ready: {:?}", ready.message);
                Ok(())
            })
            .await?;
        self.containerd.check_running()
    }

    /// Returns the control plane.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the networks of pods.
    pub fn networks(&self) -> &Multus {
        &self.networks
    }

    /// Returns access to all objects of the cluster.
    pub async fn objects(&self) -> Result<Objects> {
        self.cluster.objects().await
    }

    /// Creates a namespace, and waits until it admits pods.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        let namespace = self.cluster.temp_namespace(prefix).await?;
        self.wait_for_service_account(namespace.name()).await?;
        Ok(namespace)
    }

    /// Runs `kubectl`, which must not fail. Returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = tokio::process::Command::new(tool("kubectl")?)
            .arg("--kubeconfig")
            .arg(self.cluster.admin_kubeconfig())
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(BOUND, output).await.context("kubectl takes too long")??;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", args.join(" "), stderr.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies a shipped kustomization.
    pub async fn apply_kustomization(&self, folder: &Path) -> Result<()> {
        let folder = folder.to_str().context("a path that is not text")?;
        eventually("kubectl apply -k to succeed", BOUND, async || {
            self.kubectl(&["apply", "-k", folder]).await.map(drop)
        })
        .await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        print_tail(&self.networks.log());
    }
}

/// Gives the node its address within the cluster.
fn connect() -> Result<()> {
    ip(&["link", "add", "uplink", "type", "veth", "peer", "name", "uplink-end"])?;
    ip(&["link", "set", "uplink-end", "up"])?;
    ip(&["link", "set", "uplink", "up"])?;
    ip(&["address", "add", &format!("{ADDRESS}/24"), "dev", "uplink"])?;
    // The kernel translates addresses of Services only after it has found a route for them.
    ip(&["route", "add", "10.96.0.0/16", "dev", "uplink"])?;
    // The address of the API server needs no translation.
    ip(&["address", "add", &format!("{}/32", crate::cluster::SERVICE_ADDRESS), "dev", "lo"])
}
