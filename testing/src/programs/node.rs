//! A real node, with the cluster that it belongs to: kubelet and containerd run pods whose networks Multus makes.
//!
//! It needs a [sandbox](crate::sandbox), which is the machine that it is a node of: containers, mounts, networks and control
//! groups go when the sandbox goes.

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

/// How long anything may take on a node: an image to be imported, a pod to be replaced, a change to be in DNS. Usually it
/// is a few seconds, but the machine may be busy.
pub const BOUND: Duration = Duration::from_secs(90);

/// What the node is called.
pub const NAME: &str = "node-a";

/// Its zone.
pub const ZONE: &str = "zone-a";

/// Its address, on an interface that leads nowhere.
const ADDRESS: &str = "172.30.0.1";

/// The controllers of Kubernetes that a node with Deployments and Services needs.
const CONTROLLERS: &str = "endpointslice-controller,deployment-controller,replicaset-controller,\
    serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
    garbage-collector-controller,namespace-controller,node-lifecycle-controller,disruption-controller,\
    pod-garbage-collector-controller";

/// A cluster of one node.
#[derive(Debug)]
pub struct Node {
    // In the order in which they are to end.
    _services: Services,
    kubelet: Process,
    containerd: Process,
    networks: Multus,
    cluster: Cluster,
    _folder: TempDir,
}

impl Node {
    /// Starts everything, and waits until the node is ready for pods.
    pub async fn start() -> Result<Self> {
        ensure!(crate::sandbox::is_inside(), "a node needs a sandbox of its own");
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

    /// The control plane.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The networks of pods.
    pub fn networks(&self) -> &Multus {
        &self.networks
    }

    /// All objects of the cluster.
    pub async fn objects(&self) -> Result<Objects> {
        self.cluster.objects().await
    }

    /// A new namespace in which pods can be made.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        let namespace = self.cluster.temp_namespace(prefix).await?;
        self.wait_for_service_account(namespace.name()).await?;
        Ok(namespace)
    }

    /// Runs `kubectl`, which must not fail, and returns what it wrote.
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

    /// Applies a kustomization as it is shipped.
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

/// Gives the node the address that it has within its cluster.
fn connect() -> Result<()> {
    ip(&["link", "add", "uplink", "type", "veth", "peer", "name", "uplink-end"])?;
    ip(&["link", "set", "uplink-end", "up"])?;
    ip(&["link", "set", "uplink", "up"])?;
    ip(&["address", "add", &format!("{ADDRESS}/24"), "dev", "uplink"])?;
    // Addresses of Services are translated after a route for them was found.
    ip(&["route", "add", "10.96.0.0/16", "dev", "uplink"])?;
    // That of the API server needs no translation.
    ip(&["address", "add", &format!("{}/32", crate::cluster::SERVICE_ADDRESS), "dev", "lo"])
}
