//! A node with the shipped manifests, CoreDNS, and a user's namespace.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use multinet_testing::ask::ask_udp;
use multinet_testing::dns::Reply;
use multinet_testing::multus::{DEFAULT_NETWORK, second_addresses};
use multinet_testing::node::pods::is_ready;
use multinet_testing::node::{BOUND, CLUSTER_DNS, Node};
use multinet_testing::objects::Namespace;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;

/// Label of the user's pods.
pub(crate) const LABEL: &str = "app=infer";

/// Second network of the user's pods.
pub(crate) const NETWORK: &str = "rdma-net";

/// Names of our two Deployments and of their programs.
pub(crate) const OURS: [&str; 2] = ["multinet-dns", "multinet-controller"];

/// Namespace of the shipped objects.
pub(crate) const SYSTEM: &str = "multinet-system";

const COREDNS: &str = include_str!("coredns.yaml");
const USER: &str = include_str!("user.yaml");

/// Node and namespaces of the test.
pub(crate) struct Stage {
    pub(crate) node: Node,
    /// Namespace of the user.
    pub(crate) namespace: Namespace,
}

impl Stage {
    /// Starts all programs, and creates the user's service and Deployment, but not the network that
    /// they name.
    pub(crate) async fn start() -> Result<Self> {
        let node = Node::start().await?;
        node.apply_kustomization(&repository().join("deploy/kustomize/base")).await?;
        // As in docs/install.md, CoreDNS forwards the zone to the address of the Service.
        let services: Api<Service> = Api::namespaced(node.cluster().client().await?, SYSTEM);
        let spec = services.get("multinet-dns").await?.spec.context("a Service without spec")?;
        let address = spec.cluster_ip.context("a Service without address")?;
        let coredns =
            COREDNS.replace("MULTINET_DNS", &address).replace("CLUSTER_DNS", &CLUSTER_DNS.to_string());
        node.objects().await?.apply(&coredns).await?;
        let namespace = node.namespace("vision").await?;
        node.objects().await?.apply(&USER.replace("NAMESPACE", namespace.name())).await?;
        for deployment in OURS {
            node.rolled_out(SYSTEM, deployment).await?;
        }
        node.rolled_out("kube-system", "coredns").await?;
        let stage = Self { node, namespace };
        eventually("the cluster's DNS to answer", BOUND, async || stage.answer(&stage.name()).await).await?;
        Ok(stage)
    }

    /// Returns the DNS name of the user's service.
    pub(crate) fn name(&self) -> String {
        self.namespace.domain("infer")
    }

    /// Returns the address of the cluster's DNS.
    pub(crate) fn dns(&self) -> SocketAddr {
        (CLUSTER_DNS, 53).into()
    }

    /// Sends a query to the cluster's DNS. Fails if the answer has an address of the default
    /// network.
    pub(crate) async fn ask(&self, name: &str, rtype: &str) -> Result<Reply> {
        let reply = ask_udp(self.dns(), name, rtype).await?;
        let default = reply.data().into_iter().find(|data| data.contains(DEFAULT_NETWORK));
        ensure!(default.is_none(), "an address of the default network:\n{}", reply.text(""));
        Ok(reply)
    }

    /// Returns the user's pods, except those being deleted.
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        self.node.selected(self.namespace.name(), LABEL).await
    }

    /// Waits until all three pods of the Deployment are ready. Returns them.
    pub(crate) async fn three_ready(&self) -> Result<Vec<Pod>> {
        self.node.rolled_out(self.namespace.name(), "infer").await?;
        let pods = self.pods().await?;
        ensure!(pods.len() == 3 && pods.iter().all(is_ready), "{} pods", pods.len());
        Ok(pods)
    }

    /// Waits until DNS answers exactly the second addresses of the ready pods, and TXT records with
    /// their uids, which distinguish a pod from an earlier one at the same address. Returns the
    /// addresses.
    pub(crate) async fn dns_follows(&self) -> Result<BTreeSet<String>> {
        eventually("DNS to match the pods", BOUND, async || {
            let ready: Vec<_> = self.pods().await?.into_iter().filter(is_ready).collect();
            let mut expected = BTreeSet::new();
            for pod in &ready {
                expected.extend(second_addresses(pod)?.into_iter().map(|(_, address)| address));
            }
            let found = self.answer(&self.name()).await?;
            ensure!(found == expected, "the pods have {expected:?}, DNS answers {found:?}");
            for pod in &ready {
                self.describes(pod).await?;
            }
            Ok(expected)
        })
        .await
    }

    /// Returns the addresses of a name; none if it does not exist.
    pub(crate) async fn answer(&self, name: &str) -> Result<BTreeSet<String>> {
        let reply = self.ask(name, "A").await?;
        let rcode = if reply.data().is_empty() { "NXDOMAIN" } else { "NOERROR" };
        ensure!(reply.rcode() == rcode, "{}", reply.text(""));
        let addresses = reply.data();
        let set = BTreeSet::from_iter(addresses.iter().cloned());
        ensure!(set.len() == addresses.len(), "a repeated address:\n{}", reply.text(""));
        Ok(set)
    }

    /// Fails unless the TXT records of a pod's addresses describe this pod.
    async fn describes(&self, pod: &Pod) -> Result<()> {
        let name = pod.metadata.name.as_deref().context("a pod without name")?;
        let uid = pod.metadata.uid.as_deref().context("a pod without uid")?;
        for (interface, address) in second_addresses(pod)? {
            let hostname = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
            let host = hostname.unwrap_or_else(|| address.replace('.', "-"));
            let host = format!("{host}.{}", self.name());
            let text = self.ask(&host, "TXT").await?.data().join(" ");
            let namespace = self.namespace.name();
            for part in [
                format!("\"addr={address}\""),
                format!("\"if={interface}\""),
                format!("\"pod={namespace}/{name}\""),
                format!("\"uid={uid}\""),
                "\"node=node-a\"".to_owned(),
                "\"zone=zone-a\"".to_owned(),
            ] {
                ensure!(text.contains(&part), "no {part} in the TXT record of {host}: {text}");
            }
        }
        Ok(())
    }
}

/// Returns the name of a pod.
pub(crate) fn name_of(pod: &Pod) -> Result<&str> {
    pod.metadata.name.as_deref().context("a pod without name")
}
