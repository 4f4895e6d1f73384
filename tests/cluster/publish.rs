//! `multinet-publish` with a real etcd, and behind it a real CoreDNS with its plugin etcd.

mod answers;
mod owner;
mod restarts;
mod rights;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::cluster::Cluster;
use multinet_testing::etcd::Etcd;
use multinet_testing::objects::{Namespace, parse};
use multinet_testing::publish::{Publisher, PublisherOptions};
use multinet_testing::wait::eventually;

use crate::shared;

/// Time limit for the keys to follow the objects.
const BOUND: std::time::Duration = std::time::Duration::from_secs(60);

/// A namespace of the shared control plane, and an etcd of the test's own.
struct Stage {
    cluster: &'static Cluster,
    namespace: Namespace,
    etcd: Etcd,
}

impl Stage {
    async fn start() -> Result<Self> {
        let cluster = shared::cluster().await?;
        Ok(Self { cluster, namespace: cluster.temp_namespace("publish").await?, etcd: Etcd::start().await? })
    }

    /// Returns the options of a publisher for this stage. Its Lease is in the test's namespace.
    fn publisher(&self) -> PublisherOptions {
        self.publisher_to(&self.etcd.url(), "multinet-publish")
    }

    fn publisher_to(&self, etcd: &str, lease: &str) -> PublisherOptions {
        PublisherOptions::publisher(self.cluster.admin_kubeconfig())
            .flag("--etcd", etcd)
            .flag("--vertex-zone", "vertexdomain.local")
            .flag("--lease-namespace", self.namespace.name())
            .flag("--lease-name", lease)
            .flag("--lease-duration", "15s")
    }

    /// Applies manifests in the namespace.
    async fn apply(&self, yaml: &str) -> Result<()> {
        for object in parse(yaml)? {
            self.namespace.apply(object).await?;
        }
        Ok(())
    }

    /// Returns the keys of the namespace's services and vertices. Other tests have services, too.
    async fn keys(&self, etcd: &Etcd) -> Result<BTreeMap<String, String>> {
        let namespace = self.namespace.name();
        let mut keys = etcd.keys(&format!("/skydns/local/cluster/multinet/svc/{namespace}/")).await?;
        keys.extend(etcd.keys(&format!("/skydns/local/vertexdomain/{namespace}/")).await?);
        Ok(keys)
    }

    /// Waits until the keys are those that a fresh publisher writes into a fresh etcd.
    async fn is_up_to_date(&self) -> Result<()> {
        let fresh = Etcd::start().await?;
        let mut publisher = self
            .publisher_to(&fresh.url(), "multinet-publish-fresh")
            .flag("--identity", "fresh")
            .start_ready()
            .await?;
        settled(&publisher).await?;
        let expected = self.keys(&fresh).await?;
        publisher.kill()?;
        ensure!(!expected.is_empty(), "no key");
        eventually("the keys to be those of a fresh publisher", BOUND, async || {
            let found = self.keys(&self.etcd).await?;
            let differ = |one: &BTreeMap<String, String>, two: &BTreeMap<String, String>| -> Vec<String> {
                one.iter()
                    .filter(|(key, value)| two.get(*key) != Some(value))
                    .map(|(key, _)| key.clone())
                    .collect()
            };
            ensure!(
                found == expected,
                "surplus {:?}\nmissing {:?}",
                differ(&found, &expected),
                differ(&expected, &found)
            );
            Ok(())
        })
        .await
    }
}

/// Waits until a publisher leads and has written all keys.
async fn settled(publisher: &Publisher) -> Result<()> {
    publisher.leads(true).await?;
    publisher.shows("multinet_publish_etcd_connected", 1).await
}

/// A service with two networks, two ports and addresses of both families, which is the vertex
/// `infer` of the pipeline `frames`, and its slices. Tests use other nets, since an address has one
/// reverse name.
fn infer(net: u8) -> String {
    let slice = |name: &str, network: &str, alias: &str, family: &str, endpoints: &str| {
        format!(
            "---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: {name}
  labels:
    multinetwork.numaproj.io/service-name: infer
    numaflow.numaproj.io/pipeline-name: frames
    numaflow.numaproj.io/vertex-name: infer
spec:
  addressType: {family}
  network: {{kind: NetworkAttachmentDefinition, name: {network}, namespace: default, alias: {alias}}}
  ports: [{{name: multinet, port: 18515}}, {{name: http, port: 80}}]
  endpoints: {endpoints}
"
        )
    };
    let device = "device: {interface: net1, rdmaDevice: mlx5_2, pciAddress: '0000:18:00.2', numaNode: 1}";
    let pod = "targetRef: {kind: Pod, namespace: vision, name: frames-infer-0, uid: 11111111-2222-3333-4444-555555555555}";
    [
        "apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: infer}
spec: {networks: [{name: rdma-a, alias: rail0}, {name: rdma-b, alias: rail1}], ports: [{name: multinet, port: 18515}, {name: http, port: 80}]}
"
        .to_owned(),
        slice(
            "infer-a",
            "rdma-a",
            "rail0",
            "IPv4",
            &format!(
                "[{{addresses: [10.{net}.0.1], hostname: a, nodeName: gpu-1, zone: z1, {device}, {pod}}}, {{addresses: [10.{net}.0.2], hostname: b}}, {{addresses: [10.{net}.0.3]}}, {{addresses: [10.{net}.0.4], hostname: c, conditions: {{ready: false}}}}]"
            ),
        ),
        slice("infer-a6", "rdma-a", "rail0", "IPv6", &format!("[{{addresses: ['fd00:{net}::1'], hostname: a}}]")),
        slice("infer-b", "rdma-b", "rail1", "IPv4", &format!("[{{addresses: [10.{net}.9.1], hostname: a}}]")),
    ]
    .concat()
}

/// A service without ports, with its own time to live.
const PLAIN: &str = "apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: plain}
spec: {networks: [{name: rdma-a, alias: rail0}], ttlSeconds: 30}
---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata: {name: plain-a, labels: {multinetwork.numaproj.io/service-name: plain}}
spec:
  addressType: IPv4
  network: {kind: NetworkAttachmentDefinition, name: rdma-a, namespace: default, alias: rail0}
  endpoints: [{addresses: [10.170.0.1], hostname: x}]
";

/// Returns another slice of the service `infer` with these hosts, each with an address of its own.
fn moving(net: u8, hosts: &[usize]) -> Result<DynamicObject> {
    let endpoints: Vec<String> = hosts
        .iter()
        .map(|host| {
            format!("{{addresses: [10.{net}.{}.{}], hostname: h{host}}}", 100 + host / 250, host % 250 + 1)
        })
        .collect();
    let yaml = format!(
        "apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata: {{name: infer-moving, labels: {{multinetwork.numaproj.io/service-name: infer}}}}
spec:
  addressType: IPv4
  network: {{kind: NetworkAttachmentDefinition, name: rdma-a, namespace: default, alias: rail0}}
  ports: [{{name: multinet, port: 18515}}]
  endpoints: [{}]
",
        endpoints.join(", ")
    );
    parse(&yaml)?.pop().ok_or_else(|| anyhow::anyhow!("no object"))
}
