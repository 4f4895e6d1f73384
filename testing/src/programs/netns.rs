//! Pods without a node: network namespaces that the real Multus attaches, called by cnitool as by a
//! container runtime. The test plays scheduler and kubelet, and Multus reports its own work. Only
//! for use in a [sandbox](crate::sandbox).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod as CorePod;
use serde_json::{Value, json};

use crate::multus::{self, Multus, ip};
use crate::objects::Namespace;
use crate::pods::{Pod, Pods};
use crate::tools::tool;

/// Annotation by which a pod asks Multus for networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Pod that is an object and a network namespace. The test runs programs in it.
#[derive(Debug)]
pub struct LightPod {
    pods: Pods,
    name: String,
    /// Environment of cnitool, to attach and later to detach.
    environment: Vec<(&'static str, String)>,
    network: String,
    is_attached: bool,
}

impl LightPod {
    /// Creates a pod, lets Multus attach it, and makes it running and ready.
    pub async fn start(multus: &Multus, namespace: &Namespace, pod: Pod) -> Result<Self> {
        let mut pod = Self::create(multus, namespace, pod).await?;
        pod.attach().await?;
        pod.pods.ready(&pod.name, true).await?;
        Ok(pod)
    }

    /// Creates a pod without a network.
    pub async fn create(multus: &Multus, namespace: &Namespace, pod: Pod) -> Result<Self> {
        let pod = Pods::of(namespace).create(pod).await?;
        Self::of(multus, namespace, pod)
    }

    /// Returns a pod that another program has created, without a network yet.
    pub fn of(multus: &Multus, namespace: &Namespace, pod: CorePod) -> Result<Self> {
        let pods = Pods::of(namespace);
        let metadata = pod.metadata;
        let name = metadata.name.context("a pod without name")?;
        let uid = metadata.uid.context("a pod without uid")?;
        let network = format!("pod-{uid}");
        let arguments = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", namespace.name()),
            ("K8S_POD_NAME", &name),
            ("K8S_POD_INFRA_CONTAINER_ID", &network),
            ("K8S_POD_UID", &uid),
        ];
        let arguments = arguments.map(|(key, value)| format!("{key}={value}")).join(";");
        let environment = vec![
            ("CNI_PATH", Multus::plugins()?.display().to_string()),
            ("NETCONFPATH", multus.configuration().display().to_string()),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_ARGS", arguments),
        ];
        Ok(Self { pods, name, environment, network, is_attached: false })
    }

    /// Lets Multus attach all of its networks, and makes it running, but not ready.
    ///
    /// // A network namespace in which this has failed must not be used again, so each call creates
    /// one.
    pub async fn attach(&mut self) -> Result<CorePod> {
        ip(&["netns", "add", &self.network])?;
        let added = self.cnitool("add").await;
        if added.is_err() {
            ip(&["netns", "delete", &self.network])?;
        }
        let added: Value = serde_json::from_str(&added?).context("cnitool did not print JSON")?;
        self.is_attached = true;
        let address = added["ips"][0]["address"].as_str().context("no address on the default network")?;
        let address = address.split('/').next().unwrap_or(address);
        // Replaces the addresses of an earlier attempt instead of merging with them.
        let addresses = json!([{"ip": address}, {"$patch": "replace"}]);
        let runs = json!({"phase": "Running", "podIP": address, "podIPs": addresses});
        self.pods.status(&self.name, runs).await?;
        self.pods.ready(&self.name, false).await
    }

    /// Lets Multus detach it. The pod keeps the annotation of Multus.
    pub async fn detach(&mut self) -> Result<()> {
        self.cnitool("del").await?;
        self.is_attached = false;
        ip(&["netns", "delete", &self.network])
    }

    /// Detaches the pod, and deletes it.
    pub async fn remove(mut self) -> Result<()> {
        if self.is_attached {
            self.detach().await?;
        }
        self.pods.remove(&self.name).await
    }

    /// Returns the object.
    pub async fn object(&self) -> Result<CorePod> {
        Ok(self.pods.api().get(&self.name).await?)
    }

    /// Returns the addresses on secondary networks, as reported by Multus: pairs of interface and
    /// address.
    pub async fn addresses(&self) -> Result<Vec<(String, String)>> {
        multus::second_addresses(&self.object().await?)
    }

    /// Sets `/etc/resolv.conf` of programs in the pod's network.
    pub fn resolv_conf(&self, contents: &str) -> Result<()> {
        // `ip netns exec` mounts the files of this folder over /etc.
        let folder = Path::new("/etc/netns").join(&self.network);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("resolv.conf"), contents).context("cannot write the pod's resolv.conf")
    }

    /// Returns a command that runs a program in the pod's network.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network]).arg(program.as_ref());
        command
    }

    async fn cnitool(&self, verb: &str) -> Result<String> {
        let place = PathBuf::from("/run/netns").join(&self.network);
        let mut command = tokio::process::Command::new(tool("cnitool")?);
        let command = command.arg(verb).args([multus::NAME.as_ref(), place.as_os_str()]);
        let output = command.envs(self.environment.iter().cloned()).kill_on_drop(true).output();
        let Output { status, stdout, stderr } = output.await.context("cannot start cnitool")?;
        let said = String::from_utf8_lossy(&stdout).into_owned();
        let stderr = String::from_utf8_lossy(&stderr);
        ensure!(
            status.success(),
            "cnitool {verb} for the pod {}: {}{}",
            self.name,
            said.trim(),
            stderr.trim()
        );
        Ok(said)
    }
}
