//! The whole chain: an annotation, services, pods with second NICs, slices, names, and frames that
//! arrive in the next vertex' pods by the environment that was injected.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use multinet_testing::ask::ask_udp;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::coredns::CoreDns;
use multinet_testing::dra::Driver;
use multinet_testing::etcd::Etcd;
use multinet_testing::multus::{self, Multus, ip};
use multinet_testing::netns::LightPod;
use multinet_testing::numaflow::BOUND;
use multinet_testing::objects::Namespace;
use multinet_testing::pods::Pods;
use multinet_testing::process::{Process, workspace_binary};
use multinet_testing::publish::{Publisher, PublisherOptions};
use multinet_testing::replica::{Options, Replica};
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::stage::{NAMESPACE, Stage, sidecar};

const VERTEX_ZONE: &str = "vertexdomain.local";

/// Bridge of the pods' default network, as `multus` configures it.
const BRIDGE: &str = "pods";

/// Address of the CoreDNS with the plugin etcd. The other one is at the bridge's address.
const STOCK: &str = "10.245.0.53";

/// Everything between the pods' status and the names of the pods.
pub(crate) struct Chain {
    /// A CoreDNS that forwards to `multinet-dns`, and a stock one, which reads etcd.
    servers: [CoreDns; 2],
    _dns: Replica,
    _controller: Controller,
    _publisher: Publisher,
    _etcd: Etcd,
    multus: Multus,
    namespace: Namespace,
}

impl Chain {
    /// Starts all programs with their shipped ServiceAccounts.
    pub(crate) async fn start(stage: &Stage) -> Result<Self> {
        let (cluster, objects) = (&stage.cluster, stage.cluster.objects().await?);
        cluster.apply_rbac().await?;
        objects
            .apply_file(&repository().join("deploy/kustomize/components/publish/publish-rbac.yaml"))
            .await?;
        let multus = Multus::set_up(cluster).await?;
        let namespace = Namespace::existing(objects, NAMESPACE);
        namespace.apply(multus.macvlan(NAMESPACE, "rdma-a", &["192.168.111.0/24"])?).await?;

        let address = cluster.address();
        let controller = ControllerOptions::controller(&cluster.controller_kubeconfig(address).await?)
            .start_ready()
            .await?;
        let dns = Options::new(&cluster.dns_server_kubeconfig(address).await?);
        let dns = dns.flag("--vertex-zone", VERTEX_ZONE).start_ready().await?;
        let etcd = Etcd::start().await?;
        let account =
            cluster.service_account_kubeconfig("multinet-system", "multinet-publish", address).await?;
        let publisher = PublisherOptions::publisher(&account)
            .flag("--etcd", etcd.url())
            .flag("--vertex-zone", VERTEX_ZONE)
            .start_ready()
            .await?;

        // The CNI plugin would create the bridge for the first pod.
        ip(&["link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge"])?;
        let gateway = format!("{}1", multus::DEFAULT_NETWORK);
        ip(&["address", "add", &format!("{gateway}/24"), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        ip(&["address", "add", &format!("{STOCK}/32"), "dev", "lo"])?;
        let forward = format!("forward . {}", dns.dns());
        let plugin = format!("etcd {{\n    path /skydns\n    endpoint {}\n  }}", etcd.url());
        let mut servers = Vec::new();
        for (address, plugins) in [(gateway.as_str(), &forward), (STOCK, &plugin)] {
            let blocks = [("multinet.cluster.local", plugins.as_str()), (VERTEX_ZONE, plugins)];
            servers.push(CoreDns::start_at(SocketAddr::new(address.parse()?, 53), &blocks).await?);
        }
        let servers = servers.try_into().ok().context("two servers")?;
        let (_dns, _controller, _publisher, _etcd) = (dns, controller, publisher, etcd);
        Ok(Self { servers, _dns, _controller, _publisher, _etcd, multus, namespace })
    }

    /// Lets Multus attach the pods of a vertex of the Pipeline `frames`, by the annotation that the
    /// webhook has injected.
    async fn attach(&self, stage: &Stage, vertex: &str) -> Result<Vec<LightPod>> {
        let mut attached = Vec::new();
        for pod in stage.pods.list("frames", vertex).await? {
            let name = pod.metadata.name.clone().context("a pod without name")?;
            let mut pod = LightPod::of(&self.multus, &self.namespace, pod)?;
            pod.attach().await?;
            Pods::of(&self.namespace).ready(&name, true).await?;
            attached.push(pod);
        }
        Ok(attached)
    }

    /// Waits until both servers answer these addresses for the vertex, and for its service.
    async fn names_are(&self, pipeline: &str, vertex: &str, addresses: &BTreeSet<String>) -> Result<()> {
        for name in [
            format!("{vertex}.{pipeline}.{NAMESPACE}.{VERTEX_ZONE}"),
            format!("{pipeline}-{vertex}.{NAMESPACE}.svc.multinet.cluster.local"),
        ] {
            for server in &self.servers {
                eventually(&format!("{} to answer {name}", server.address()), BOUND, async || {
                    let reply = ask_udp(server.address(), &name, "A").await?;
                    let found: BTreeSet<_> = reply.data().into_iter().collect();
                    ensure!(found == *addresses, "{}", reply.text(""));
                    Ok(())
                })
                .await?;
            }
        }
        Ok(())
    }
}

/// Pods of both ends of an edge get second NICs from Multus and names, and frames reach the
/// receiver by the environment in its pods' specs, whichever DNS server the sender asks.
pub(crate) async fn frames_reach_the_next_vertex(stage: &Stage, chain: &Chain) -> Result<()> {
    let (decode, infer) = (chain.attach(stage, "decode").await?, chain.attach(stage, "infer").await?);
    for (vertex, pods, count) in [("decode", &decode, 2), ("infer", &infer, 1)] {
        let mut addresses = BTreeSet::new();
        for pod in pods {
            addresses.extend(pod.addresses().await?.into_iter().map(|(_, address)| address));
        }
        ensure!(addresses.len() == count, "{vertex} has {addresses:?}");
        chain.names_are("frames", vertex, &addresses).await?;
    }
    let (sender, receiver) = (&decode[0], &infer[0]);
    for server in &chain.servers {
        sender.resolv_conf(&format!("nameserver {}\noptions ndots:5\n", server.address().ip()))?;
        send(sender, receiver).await.with_context(|| format!("by {}", server.address()))?;
    }
    Ok(())
}

/// Sends a file from one pod to the other, with the environment of their containers.
async fn send(sender: &LightPod, receiver: &LightPod) -> Result<()> {
    let folder = TempDir::new()?;
    let (source, output) = (folder.path().join("source"), folder.path().join("output"));
    let contents: Vec<u8> = (0..3 << 20).map(|place: usize| (place % 251) as u8).collect();
    fs::write(&source, &contents)?;
    let program = workspace_binary("multinet", "MULTINET_BIN")?;
    let mut command = receiver.command(&program);
    command.arg("recv").arg("--output").arg(&output).envs(environment(&receiver.object().await?, "udsink")?);
    let mut recv = Process::spawn(&mut command, &folder.path().join("recv.log"))?;
    recv.logged("listening on", BOUND).await?;
    // A container has only its environment to know where to send.
    let script = r#"exec "$0" send "${MULTINET_TARGETS%:*}" "${MULTINET_TARGETS##*:}" "$1""#;
    let mut command: Command = sender.command("sh");
    command.args(["-c", script]).arg(&program).arg(&source);
    command.envs(environment(&sender.object().await?, "udf")?);
    let mut send = Process::spawn(&mut command, &folder.path().join("send.log"))?;
    for process in [&mut send, &mut recv] {
        let status = process.exited(BOUND).await?;
        ensure!(status.success(), "{status}: {}", process.log());
    }
    ensure!(fs::read(output)? == contents, "something else has arrived");
    Ok(())
}

/// Returns the environment of a container, as a kubelet makes it from the pod.
fn environment(pod: &Pod, container: &str) -> Result<Vec<(String, String)>> {
    let variables = sidecar(pod, container).context("no such container")?.env.iter().flatten();
    let ours = variables.filter(|variable| variable.name.starts_with("MULTINET_"));
    let value = |variable: &EnvVar| {
        if let Some(value) = &variable.value {
            return Some(value.clone());
        }
        let path = &variable.value_from.as_ref()?.field_ref.as_ref()?.field_path;
        let metadata = &pod.metadata;
        match path.as_str() {
            "metadata.name" => metadata.name.clone(),
            "metadata.uid" => metadata.uid.clone(),
            "spec.nodeName" => Some(pod.spec.as_ref()?.node_name.clone().unwrap_or_default()),
            "metadata.labels['topology.kubernetes.io/zone']" => Some(
                metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned().unwrap_or_default(),
            ),
            _ => None,
        }
    };
    ours.map(|variable| {
        let value = value(variable).with_context(|| format!("{variable:?}"))?;
        Ok((variable.name.clone(), value))
    })
    .collect()
}

/// Pods get claims from the edge's template. What a driver reports in the claims' status becomes
/// names as well.
pub(crate) async fn claims_become_names(stage: &Stage, chain: &Chain) -> Result<()> {
    let driver = Driver::new(&chain.namespace, "v1");
    driver.class().await?;
    driver.template("rails").await?;
    let network = r#"{"kind": "ResourceClaimTemplate", "name": "rails"}"#;
    let edge = format!(r#"[{{"from": "decode", "to": "infer", "networks": [{network}]}}]"#);
    stage.create_pipeline("claims", &edge).await?;
    let mut last = 0;
    for (vertex, container, count) in [("decode", "udf", 2), ("infer", "udsink", 1)] {
        let has_claim = |pod: &Pod| {
            let claims = sidecar(pod, container).and_then(|it| it.resources.as_ref()?.claims.as_ref());
            ensure!(claims.is_some_and(|claims| claims[0].name == "rails"), "{claims:?}");
            claim(pod).map(drop)
        };
        let mut addresses = BTreeSet::new();
        for pod in stage.pods.until(("claims", vertex), count, has_claim).await? {
            last += 1;
            let (claim, device, address) = (claim(&pod)?, format!("nic{last}"), format!("10.7.0.{last}"));
            driver.allocate(claim, &device, &pod).await?;
            driver.report(claim, &device, &[&format!("{address}/24")]).await?;
            Pods::of(&chain.namespace).ready(pod.metadata.name.as_deref().unwrap_or_default(), true).await?;
            addresses.insert(address);
        }
        chain.names_are("claims", vertex, &addresses).await?;
    }
    Ok(())
}

/// Returns the name of the claim that Kubernetes has made for a pod.
fn claim(pod: &Pod) -> Result<&str> {
    let claims = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let claim = claims.and_then(|claims| claims.first()?.resource_claim_name.as_deref());
    claim.context("the pod has no claim")
}
