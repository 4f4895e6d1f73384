//! The chain from the API server to DNS answers: API server, controller, `multinet-dns` and
//! CoreDNS. Pods are network namespaces with a second NIC.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::coredns::CoreDns;
use multinet_testing::multus::{self, Multus};
use multinet_testing::netns::{LightPod, NETWORKS};
use multinet_testing::objects::Namespace;
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::process::{free_port, run};
use multinet_testing::replica::{Options, Replica};
use serde_json::json;

/// Network of the second NICs.
const NETWORK: &str = "rail";

/// Addresses of that network.
const SUBNET: &str = "192.168.111.0/24";

/// Bridge of the pods' default network, as `multus` configures it.
const BRIDGE: &str = "pods";

/// Name of the service.
const SERVICE: &str = "infer";

pub(super) struct Stage {
    // The programs come before the cluster that they use, so that they are dropped first.
    _controller: Controller,
    dns: Replica,
    dns_options: Options,
    _coredns: CoreDns,
    pub(super) namespace: Namespace,
    multus: Multus,
    _cluster: Cluster,
}

impl Stage {
    pub(super) async fn start() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.apply_crds().await?;
        cluster.apply_rbac().await?;
        let multus = Multus::set_up(&cluster).await?;
        let namespace = cluster.temp_namespace("chain").await?;
        namespace.apply(multus.macvlan(namespace.name(), NETWORK, &[SUBNET])?).await?;
        namespace.apply(service()?).await?;
        let address = cluster.address();
        let controller = ControllerOptions::controller(&cluster.controller_kubeconfig(address).await?);
        let controller = controller.start_ready().await?;
        let dns_options = Options::new(&cluster.dns_server_kubeconfig(address).await?).port(free_port()?);
        let dns = dns_options.start_ready().await?;
        let coredns = coredns(&cluster, dns.dns()).await?;
        count_strays()?;
        Ok(Self {
            _controller: controller,
            dns,
            dns_options,
            _coredns: coredns,
            namespace,
            multus,
            _cluster: cluster,
        })
    }

    /// Returns the short name of the service, which a pod's search path completes.
    pub(super) fn service(&self) -> String {
        format!("{SERVICE}.{}.svc.multinet", self.namespace.name())
    }

    /// Starts a pod with a second NIC, which runs but is not ready.
    pub(super) async fn pod(&self, name: &str, app: &str) -> Result<LightPod> {
        let pod = Pod::new(name).label("app", app).annotation(NETWORKS, NETWORK);
        let mut pod = LightPod::create(&self.multus, &self.namespace, pod).await?;
        pod.attach().await?;
        pod.resolv_conf(&format!(
            "search {}.svc.cluster.local svc.cluster.local cluster.local\nnameserver {}\noptions ndots:5\n",
            self.namespace.name(),
            gateway(),
        ))?;
        Ok(pod)
    }

    /// Plays the kubelet: reports a pod as ready.
    pub(super) async fn ready(&self, name: &str) -> Result<()> {
        Pods::of(&self.namespace).ready(name, true).await.map(drop)
    }

    /// Kills `multinet-dns`. CoreDNS still runs, and answers SERVFAIL.
    pub(super) fn kill_dns(&mut self) -> Result<()> {
        self.dns.kill()
    }

    /// Starts `multinet-dns` again at the same address.
    pub(super) async fn start_dns(&mut self) -> Result<()> {
        self.dns = self.dns_options.start_ready().await?;
        Ok(())
    }
}

fn service() -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"name": SERVICE},
        "spec": {
            "selector": {"matchLabels": {"app": SERVICE}},
            "networks": [{"name": NETWORK}],
            "ports": [{"name": "rdma", "port": 18515}],
            "ttlSeconds": 1,
        },
    }))?)
}

/// Returns the node's address on the pods' default network.
fn gateway() -> String {
    format!("{}1", multus::DEFAULT_NETWORK)
}

/// Starts the cluster's CoreDNS, which forwards our zone, at an address on the pods' default
/// network.
async fn coredns(cluster: &Cluster, upstream: SocketAddr) -> Result<CoreDns> {
    // The CNI plugin would create the bridge for the first pod. The bridge needs a fixed hardware
    // address. Otherwise it takes over the address of a pod, which changes as pods come and go.
    multus::ip(&["link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge"])?;
    multus::ip(&["address", "add", &format!("{}/24", gateway()), "dev", BRIDGE])?;
    multus::ip(&["link", "set", BRIDGE, "up"])?;
    let ours = format!("forward . {upstream}");
    let own =
        format!("kubernetes cluster.local {{\n    kubeconfig {}\n  }}", cluster.admin_kubeconfig().display());
    let address = format!("{}:53", gateway()).parse()?;
    CoreDns::start_at(address, &[("multinet.cluster.local", &ours), ("cluster.local", &own)]).await
}

/// Counts the packets that leave a pod by its default network but are meant for the second one. RST
/// and SYN-ACK are not counted: the kernel itself sends them by the default network in the moment
/// when a new interface has its address but not yet its route.
fn count_strays() -> Result<()> {
    let from_pods = ["-t", "raw", "-A", "PREROUTING", "-i", BRIDGE, "-d", SUBNET];
    for rule in [
        &["-p", "tcp", "--tcp-flags", "RST", "RST", "-j", "RETURN"][..],
        &["-p", "tcp", "--tcp-flags", "SYN,ACK", "SYN,ACK", "-j", "RETURN"],
        // This rule only counts.
        &[],
    ] {
        iptables(&[&from_pods[..], rule].concat())?;
    }
    Ok(())
}

/// Returns the number of counted packets.
pub(super) fn strays() -> Result<u64> {
    let rules = iptables(&["-t", "raw", "-nvxL", "PREROUTING"])?;
    let counter = rules.lines().last().and_then(|rule| rule.split_whitespace().next());
    counter.and_then(|packets| packets.parse().ok()).with_context(|| format!("no counter in\n{rules}"))
}

fn iptables(args: &[&str]) -> Result<String> {
    run(Command::new("iptables").arg("--wait").args(args))
}

/// Returns the only address of a pod on its second NIC.
pub(super) async fn second_address(pod: &LightPod) -> Result<String> {
    let addresses = pod.addresses().await?;
    ensure!(addresses.len() == 1, "{addresses:?}");
    Ok(addresses.into_iter().next().context("no address")?.1)
}
