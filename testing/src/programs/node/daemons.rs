//! containerd and kubelet, configured for machines with control groups of version 1, or without
//! some capabilities.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{ADDRESS, BOUND, NAME, ZONE};
use crate::images::PAUSE;
use crate::multus::Multus;
use crate::process::Process;
use crate::sandbox;
use crate::tools::tool;

/// Socket of containerd.
const SOCKET: &str = "/run/containerd/containerd.sock";

/// Data folder of the daemons. It is in memory, because overlayfs does not stack on every file
/// system.
const DATA: &str = "/run/multinet";

/// Address of the cluster's DNS, a Service.
pub const CLUSTER_DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// Starts containerd, and waits until it answers.
pub(super) async fn containerd(folder: &Path, networks: &Multus) -> Result<Process> {
    let configuration = folder.join("containerd.toml");
    write(&configuration, &containerd_configuration(networks)?)?;
    let mut command = Command::new("containerd");
    command.arg("--config").arg(&configuration);
    let mut process = Process::spawn(&mut command, &folder.join("containerd.log"))?;
    process.until("answer", BOUND, async || ctr(&["version"]).await).await?;
    Ok(process)
}

/// Returns the configuration. Without `restrict_oom_score_adj`, runc would fail where the process
/// lacks CAP_SYS_RESOURCE. The disabled plugins would write outside of the data folder, or are for
/// other file systems.
fn containerd_configuration(networks: &Multus) -> Result<String> {
    Ok(format!(
        r#"version = 2
root = "{DATA}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "{}"
"#,
        Multus::plugins()?.display(),
        networks.configuration().display(),
    ))
}

/// Imports an image into the containerd that kubelet uses.
pub(super) async fn import(containerd: &mut Process, archive: &Path) -> Result<()> {
    containerd.check_running()?;
    let archive = archive.to_str().context("a path that is not text")?;
    ctr(&["--namespace", "k8s.io", "images", "import", archive]).await
}

async fn ctr(args: &[&str]) -> Result<()> {
    let mut command = tokio::process::Command::new("ctr");
    let output = command.args(["--address", SOCKET]).args(args).kill_on_drop(true).output();
    let output = tokio::time::timeout(BOUND, output).await.context("ctr takes too long")??;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ctr {}: {}", args.join(" "), stderr.trim());
    Ok(())
}

/// Starts kubelet. The node is registered a little later.
pub(super) fn kubelet(folder: &Path, kubeconfig: &Path) -> Result<Process> {
    let group = sandbox::name()?;
    for path in sandbox::groups(&group)? {
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let data = PathBuf::from(DATA).join("kubelet");
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{group}"),
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": false,
        "failSwapOn": false,
        "healthzPort": 0,
        "localStorageCapacityIsolation": false,
        "podLogsDir": format!("{DATA}/logs"),
        // As often as possible, because tests wait for what kubelet notices.
        "syncFrequency": "1s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "nodeStatusUpdateFrequency": "4s",
        "volumePluginDir": data.join("plugins"),
    });
    let file = folder.join("kubelet.json");
    write(&file, &configuration.to_string())?;
    let mut command = Command::new(tool("kubelet")?);
    command
        .arg("--config")
        .arg(file)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--root-dir")
        .arg(&data)
        .arg("--cert-dir")
        .arg(data.join("pki"))
        .args(["--hostname-override", NAME, "--node-ip", ADDRESS])
        .args(["--node-labels", &format!("topology.kubernetes.io/zone={ZONE}")]);
    Process::spawn(&mut command, &folder.join("kubelet.log"))
}

fn write(path: &Path, contents: &str) -> Result<()> {
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}
