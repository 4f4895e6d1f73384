//! Networks of pods, made by real CNI plugins: Multus calls bridge and host-local for a pod's
//! default network, and macvlan and whereabouts for its secondary ones. Only for use in a
//! [sandbox](crate::sandbox).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::pods::NETWORK_STATUS;
use crate::process::run;
use crate::tools::{files_in, tool};

/// Name of the CNI network by which runtimes call Multus.
pub const NAME: &str = "multus";

/// Common beginning of the addresses of the default network.
pub const DEFAULT_NETWORK: &str = "10.244.0.";

/// Interface of the node that carries all secondary networks.
pub const MASTER: &str = "rail";

/// Multus, configured for one cluster.
#[derive(Debug)]
pub struct Multus {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Multus {
    /// Writes the configuration, applies the CRDs, and creates the interface that carries secondary
    /// networks.
    pub async fn set_up(cluster: &Cluster) -> Result<Self> {
        let folder = cluster.folder().join("cni");
        let multus = Self { folder, kubeconfig: cluster.admin_kubeconfig().to_owned() };
        fs::create_dir_all(multus.configuration())?;
        multus.write("conf/10-multus.conf", &multus.multus_configuration()?)?;
        let whereabouts = json!({
            "datastore": "kubernetes",
            "kubernetes": {"kubeconfig": multus.kubeconfig},
            "log_file": multus.folder.join("whereabouts.log"),
            "log_level": "debug",
        });
        multus.write("whereabouts.json", &whereabouts)?;
        multus.apply_crds(cluster).await?;
        make_master()?;
        Ok(multus)
    }

    /// Returns the folder of the plugins.
    pub fn plugins() -> Result<PathBuf> {
        Ok(tool("multus")?.parent().context("a tool has a folder")?.to_owned())
    }

    /// Returns the folder of the configuration for runtimes that call Multus.
    pub fn configuration(&self) -> PathBuf {
        self.folder.join("conf")
    }

    /// Returns the log of the plugins.
    pub fn log(&self) -> PathBuf {
        self.folder.join("multus.log")
    }

    fn multus_configuration(&self) -> Result<Value> {
        let default = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "bridge",
            "bridge": "pods",
            "isDefaultGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": format!("{DEFAULT_NETWORK}0/24")}]],
            },
        });
        Ok(json!({
            "cniVersion": "1.0.0",
            "name": NAME,
            "type": "multus",
            "kubeconfig": self.kubeconfig,
            "binDir": Self::plugins()?,
            "logFile": self.log(),
            "logLevel": "verbose",
            "delegates": [default],
        }))
    }

    async fn apply_crds(&self, cluster: &Cluster) -> Result<()> {
        cluster.objects().await?.define(files_in("testing/src/programs/node/crds")?).await
    }

    /// Returns a NetworkAttachmentDefinition of a macvlan network, whose pods get an address from
    /// each of the `ranges`.
    pub fn macvlan(&self, namespace: &str, name: &str, ranges: &[&str]) -> Result<DynamicObject> {
        let ranges: Vec<_> = ranges.iter().map(|range| json!({"range": range})).collect();
        let config = json!({
            "cniVersion": "1.0.0",
            "type": "macvlan",
            "master": MASTER,
            "mode": "bridge",
            "ipam": {
                "type": "whereabouts",
                "ipRanges": ranges,
                "configuration_path": self.folder.join("whereabouts.json"),
            },
        });
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"config": config.to_string()},
        });
        Ok(serde_json::from_value(object)?)
    }

    fn write(&self, name: &str, contents: &Value) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, contents.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Creates a virtual cable with both its ends on this machine.
fn make_master() -> Result<()> {
    let end = format!("{MASTER}-end");
    ip(&["link", "add", MASTER, "type", "veth", "peer", "name", &end])?;
    ip(&["link", "set", MASTER, "up"])?;
    ip(&["link", "set", &end, "up"])
}

/// Runs `ip`, which must not fail.
pub fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args)).map(drop)
}

/// Returns the addresses of a pod on secondary networks, as reported by Multus: pairs of interface
/// and address.
pub fn second_addresses(pod: &Pod) -> Result<Vec<(String, String)>> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
    let networks: Vec<Value> = serde_json::from_str(annotation.context("Multus has reported nothing")?)?;
    let mut found = Vec::new();
    for network in networks.iter().filter(|network| network["default"] != true) {
        let interface = network["interface"].as_str().context("a network without interface")?;
        for address in network["ips"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            found.push((interface.to_owned(), address.to_owned()));
        }
    }
    Ok(found)
}
