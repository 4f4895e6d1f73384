//! Pods behind services, equal for both sides: every pod has an address on the default network,
//! and one on a second NIC as Multus reports it.

use std::net::Ipv4Addr;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams};
use multinet_testing::manifests::SLICE;
use multinet_testing::objects::Namespace;
use multinet_testing::pods::{Nic, Pod, Pods};
use multinet_testing::slices::api;
use serde_json::{Value, json};

use super::stage::{NODES, Stage};
use crate::side::Side;

/// Concurrent requests while pods are created.
const AT_ONCE: usize = 32;

/// The network of all second NICs.
const NETWORK: &str = "rdma-a";

/// Services with equally many pods each, in a namespace of their own.
pub(crate) struct Fleet {
    pub(crate) services: usize,
    pub(crate) pods_each: usize,
    namespace: Namespace,
    pods: Pods,
    /// Distinguishes the addresses of fleets.
    number: u8,
}

/// A pod of a fleet. Other pods of the same service can replace it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) service: usize,
    pub(crate) pod: usize,
}

impl Fleet {
    /// Creates services for these sides, and no pods yet.
    pub(crate) async fn new(
        stage: &Stage,
        (name, number): (&str, u8),
        (services, pods_each): (usize, usize),
        sides: &[Side],
    ) -> Result<Self> {
        let namespace = stage.cluster.temp_namespace(name).await?;
        let network = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": NETWORK}, "spec": {"config": "{}"}});
        namespace.apply(serde_json::from_value::<DynamicObject>(network)?).await?;
        for service in 0..services {
            for &side in sides {
                let object = service_of(side, &service_name(service));
                namespace.apply(serde_json::from_value::<DynamicObject>(object)?).await?;
            }
        }
        let pods = Pods::of(&namespace);
        Ok(Self { services, pods_each, namespace, pods, number })
    }

    /// Deletes all MultiNetworkEndpointSlices.
    pub(crate) async fn delete_slices(&self) -> Result<()> {
        let slices = api(self.namespace.objects().client(), self.namespace.name(), SLICE)?;
        slices.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }

    /// Lists all pods.
    pub(crate) async fn list(&self) -> Result<()> {
        self.pods.api().list(&ListParams::default()).await?;
        Ok(())
    }

    /// Creates all pods in phase Running; `is_ready` selects the ready ones.
    pub(crate) async fn fill(&self, is_ready: impl Fn(usize) -> bool) -> Result<()> {
        let members = (0..self.services)
            .flat_map(|service| (0..self.pods_each).map(move |pod| Member { service, pod }));
        stream::iter(members)
            .map(|member| self.start(member, is_ready(member.pod)))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|()| future::ready(Ok(())))
            .await
    }

    async fn start(&self, member: Member, is_ready: bool) -> Result<()> {
        self.create(member, true).await?;
        self.run(member, is_ready).await
    }

    /// Creates a pod bound to a node; if `is_attached`, with the report of Multus.
    pub(crate) async fn create(&self, member: Member, is_attached: bool) -> Result<()> {
        let service = service_name(member.service);
        let mut pod = Pod::new(&pod_name(member))
            .label("app", &service)
            .label("pod-template-hash", "6d4b75cb6d")
            .annotation("k8s.v1.cni.cncf.io/networks", NETWORK)
            .node(&format!("gpu-{}", member.pod % NODES))
            .with("containers", containers())
            .with("volumes", json!([{"name": "models", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]))
            .with("tolerations", json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]));
        if is_attached {
            pod = pod.nics(&[nic(self.address(Side::Ours, member))]);
        }
        self.pods.create(pod).await.map(drop)
    }

    /// Reports the second NIC of a pod, as Multus does.
    pub(crate) async fn attach(&self, member: Member) -> Result<()> {
        self.readdress(member, self.address(Side::Ours, member)).await
    }

    /// Reports another address of a pod, as Multus does.
    pub(crate) async fn readdress(&self, member: Member, address: Ipv4Addr) -> Result<()> {
        self.pods.report(&pod_name(member), &[nic(address)]).await.map(drop)
    }

    /// Reports that a pod runs, as the kubelet does.
    pub(crate) async fn run(&self, member: Member, is_ready: bool) -> Result<()> {
        let address = self.address(Side::Core, member);
        let condition = |kind: &str, is_true: bool| {
            json!({"type": kind, "status": if is_true { "True" } else { "False" },
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let status = json!({
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": "10.0.0.1",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                condition("PodScheduled", true),
                condition("Initialized", true),
                condition("ContainersReady", is_ready),
                condition("Ready", is_ready),
            ],
            "containerStatuses": [{
                "name": "main", "ready": is_ready, "started": true, "restartCount": 0,
                "image": "registry.invalid/infer:1", "imageID": format!("registry.invalid/infer@sha256:{:064}", 1),
                "containerID": format!("containerd://{:064}", 1),
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }],
        });
        self.pods.status(&pod_name(member), status).await.map(drop)
    }

    /// Sets the condition Ready of a pod, as the kubelet does after a probe.
    pub(crate) async fn ready(&self, member: Member, is_ready: bool) -> Result<()> {
        self.pods.ready(&pod_name(member), is_ready).await.map(drop)
    }

    /// Deletes a pod with a grace period.
    pub(crate) async fn terminate(&self, member: Member) -> Result<()> {
        self.pods.terminate(&pod_name(member)).await
    }

    /// Deletes a pod at once.
    pub(crate) async fn remove(&self, member: Member) -> Result<()> {
        self.pods.remove(&pod_name(member)).await
    }

    /// Returns a pod's address in the answers of a side.
    pub(crate) fn address(&self, side: Side, member: Member) -> Ipv4Addr {
        self.numbered(side, member.service * self.pods_each + member.pod)
    }

    /// Returns an address that no pod of the fleet has in the beginning.
    pub(crate) fn further_address(&self, count: usize) -> Ipv4Addr {
        self.numbered(Side::Ours, 2 * self.services * self.pods_each + count)
    }

    fn numbered(&self, side: Side, count: usize) -> Ipv4Addr {
        let network = match side {
            Side::Ours => Ipv4Addr::new(10, 100 + self.number, 0, 0),
            Side::Core => Ipv4Addr::new(172, 16 + self.number, 0, 0),
        };
        Ipv4Addr::from(u32::from(network) + 1 + count as u32)
    }

    /// Returns the DNS name of a service's pod with this address. An answer over UDP is too small
    /// for all addresses of a service.
    pub(crate) fn pod_domain(&self, side: Side, service: usize, address: Ipv4Addr) -> String {
        format!("{}.{}", address.to_string().replace('.', "-"), self.domain(side, service))
    }

    /// Returns the DNS name of a service.
    pub(crate) fn domain(&self, side: Side, service: usize) -> String {
        format!("{}.{}.svc.{}", service_name(service), self.namespace.name(), side.zone())
    }
}

fn nic(address: Ipv4Addr) -> Nic {
    let [.., high, low] = address.octets();
    Nic::new(NETWORK, &[&address.to_string()])
        .mac(&format!("02:00:00:00:{high:02x}:{low:02x}"))
        .pci("0000:18:00.2", "mlx5_2")
}

fn service_name(service: usize) -> String {
    format!("s{service}")
}

fn pod_name(member: Member) -> String {
    format!("s{}-6d4b75cb6d-{:05}", member.service, member.pod)
}

fn service_of(side: Side, name: &str) -> Value {
    let ports = json!([{"name": "rdma", "port": 18515, "protocol": "TCP"}]);
    match side {
        Side::Ours => json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}, "networks": [{"name": NETWORK}], "ports": ports},
        }),
        Side::Core => json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "clusterIP": "None", "ports": ports},
        }),
    }
}

/// Returns containers like those of usual pods, so that the pods have a usual size.
fn containers() -> Value {
    let environment: Value =
        (0..8).map(|i| json!({"name": format!("SETTING_{i}"), "value": "a value of some length"})).collect();
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5});
    json!([{
        "name": "main",
        "image": "registry.invalid/infer:1",
        "args": ["--model", "/models/default", "--listen", "0.0.0.0:8080"],
        "env": environment,
        "ports": [{"name": "http", "containerPort": 8080}, {"name": "rdma", "containerPort": 18515}],
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1", "rdma/rdma_shared_device_a": "1"},
            "limits": {"memory": "64Gi", "nvidia.com/gpu": "1", "rdma/rdma_shared_device_a": "1"},
        },
        "volumeMounts": [{"name": "models", "mountPath": "/models"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }])
}
