//! Pods without a kubelet: the test says what scheduler, kubelet and Multus would.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use k8s_openapi::api::core::v1::Pod as CorePod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::objects::Namespace;

/// The annotation by which Multus says what it has done.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The first bytes of the addresses that pods have on their default network. None of them may ever be answered.
pub const DEFAULT_NETWORK: [u8; 2] = [10, 244];

/// How many requests are under way at once when there are many pods to make.
const AT_ONCE: usize = 32;

/// An interface of a pod on a second network, as Multus reports it.
#[derive(Debug, Clone)]
pub struct Nic {
    network: String,
    interface: String,
    addresses: Vec<String>,
    mac: Option<String>,
    device: Option<Value>,
}

impl Nic {
    /// The interface `net1` on a network: `namespace/name`, or only the name of one in the pod's own namespace.
    pub fn new(network: &str, addresses: &[&str]) -> Self {
        Self {
            network: network.to_owned(),
            interface: "net1".to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            mac: None,
            device: None,
        }
    }

    /// Under another name.
    #[must_use]
    pub fn interface(mut self, name: &str) -> Self {
        name.clone_into(&mut self.interface);
        self
    }

    /// With a hardware address.
    #[must_use]
    pub fn mac(mut self, mac: &str) -> Self {
        self.mac = Some(mac.to_owned());
        self
    }

    /// On a virtual function with this PCI address and RDMA device.
    #[must_use]
    pub fn pci(mut self, address: &str, rdma_device: &str) -> Self {
        let pci = json!({"pci-address": address, "rdma-device": rdma_device});
        self.device = Some(json!({"type": "pci", "version": "1.1.0", "pci": pci}));
        self
    }
}

/// What Multus writes for these interfaces. It puts the default network's first.
pub fn network_status(nics: &[Nic]) -> String {
    let default = json!({
        "name": "pods",
        "interface": "eth0",
        "ips": [default_address()],
        "mac": "0a:58:0a:f4:00:05",
        "default": true,
        "dns": {},
    });
    let further = nics.iter().map(|nic| {
        let mut entry =
            json!({"name": nic.network, "interface": nic.interface, "ips": nic.addresses, "dns": {}});
        if let Some(mac) = &nic.mac {
            entry["mac"] = json!(mac);
        }
        if let Some(device) = &nic.device {
            entry["device-info"] = device.clone();
        }
        entry
    });
    Value::from_iter([default].into_iter().chain(further)).to_string()
}

/// An address on the default network that no other pod has.
fn default_address() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [first, second] = DEFAULT_NETWORK;
    format!("{first}.{second}.{high}.{low}")
}

/// A pod that is to be made.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: Value,
}

impl Pod {
    /// A pod with the label `app=infer`, bound to the node `gpu-1`.
    pub fn new(name: &str) -> Self {
        let spec = json!({
            "nodeName": "gpu-1",
            "containers": [{"name": "main", "image": "none.invalid/none"}],
        });
        let pod = Self { name: name.to_owned(), labels: BTreeMap::new(), annotations: BTreeMap::new(), spec };
        pod.label("app", "infer")
    }

    /// With a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With these interfaces on second networks.
    #[must_use]
    pub fn nics(self, nics: &[Nic]) -> Self {
        self.annotation(NETWORK_STATUS, &network_status(nics))
    }

    /// With one interface, on one network.
    #[must_use]
    pub fn nic(self, network: &str, addresses: &[&str]) -> Self {
        self.nics(&[Nic::new(network, addresses)])
    }

    /// On another node.
    #[must_use]
    pub fn node(self, name: &str) -> Self {
        self.with("nodeName", json!(name))
    }

    /// With a hostname, and the subdomain without which it would not be one in DNS.
    #[must_use]
    pub fn hostname(self, name: &str) -> Self {
        self.with("hostname", json!(name)).with("subdomain", json!("headless"))
    }

    /// With a field of the spec.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }
}

impl TryFrom<Pod> for CorePod {
    type Error = anyhow::Error;

    fn try_from(pod: Pod) -> Result<Self> {
        let metadata = json!({"name": pod.name, "labels": pod.labels, "annotations": pod.annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": pod.spec})).context("not a pod")
    }
}

/// The pods of a namespace.
#[derive(Debug, Clone)]
pub struct Pods(Api<CorePod>);

impl Pods {
    /// The pods of this namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self(Api::namespaced(namespace.objects().client(), namespace.name()))
    }

    /// The API below.
    pub fn api(&self) -> &Api<CorePod> {
        &self.0
    }

    /// Makes a pod. It is Pending.
    pub async fn create(&self, pod: Pod) -> Result<CorePod> {
        let name = pod.name.clone();
        let created = self.0.create(&PostParams::default(), &pod.try_into()?).await;
        created.with_context(|| format!("cannot create the pod {name}"))
    }

    /// Makes many pods. They are Pending.
    pub async fn create_all(&self, pods: impl IntoIterator<Item = Pod>) -> Result<()> {
        stream::iter(pods)
            .map(|pod| self.create(pod))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| future::ready(Ok(())))
            .await
    }

    /// The kubelet has made sandboxes for these pods, which do not run yet.
    pub async fn give_sandboxes(&self, names: impl IntoIterator<Item = String>) -> Result<()> {
        let status = || json!({"podIP": default_address(), "podIPs": [{"ip": default_address()}]});
        stream::iter(names)
            .map(|name| async move { self.status(&name, status()).await })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| future::ready(Ok(())))
            .await
    }

    /// The scheduler has found a node for a pod.
    pub async fn bind(&self, name: &str, node: &str) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node},
        });
        let bound: kube::Result<Value> =
            self.0.create_subresource("binding", name, &PostParams::default(), &binding).await;
        bound.map(drop).with_context(|| format!("cannot bind the pod {name}"))
    }

    /// Makes a pod that runs and is ready.
    pub async fn start(&self, pod: Pod) -> Result<CorePod> {
        let created = self.create(pod).await?;
        self.run(created.metadata.name.as_deref().unwrap_or_default()).await?;
        self.ready(created.metadata.name.as_deref().unwrap_or_default(), true).await
    }

    /// The pod runs, with an address on the default network. It is not ready yet.
    pub async fn run(&self, name: &str) -> Result<CorePod> {
        let address = default_address();
        // Not merged with what an earlier attempt may have written.
        let addresses = json!([{"ip": address}, {"$patch": "replace"}]);
        self.status(name, json!({"phase": "Running", "podIP": address, "podIPs": addresses})).await?;
        self.ready(name, false).await
    }

    /// The probe says that the pod is ready, or that it is not.
    pub async fn ready(&self, name: &str, ready: bool) -> Result<CorePod> {
        let status = if ready { "True" } else { "False" };
        let since = Timestamp::now().to_string();
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        self.status(name, json!({"conditions": [condition]})).await
    }

    /// The pod is in another phase.
    pub async fn phase(&self, name: &str, phase: &str) -> Result<CorePod> {
        self.status(name, json!({"phase": phase})).await
    }

    /// Merges this into the pod's status.
    pub async fn status(&self, name: &str, status: Value) -> Result<CorePod> {
        let patch = Patch::Strategic(json!({ "status": status }));
        let patched = self.0.patch_status(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("cannot change the status of the pod {name}"))
    }

    /// Multus reports these interfaces.
    pub async fn report(&self, name: &str, nics: &[Nic]) -> Result<CorePod> {
        self.annotate(name, NETWORK_STATUS, Some(&network_status(nics))).await
    }

    /// Sets an annotation, or takes it away.
    pub async fn annotate(&self, name: &str, key: &str, value: Option<&str>) -> Result<CorePod> {
        self.metadata(name, json!({"annotations": {key: value}})).await
    }

    /// Sets a label, or takes it away.
    pub async fn label(&self, name: &str, key: &str, value: Option<&str>) -> Result<CorePod> {
        self.metadata(name, json!({"labels": {key: value}})).await
    }

    async fn metadata(&self, name: &str, metadata: Value) -> Result<CorePod> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = self.0.patch(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("cannot change the metadata of the pod {name}"))
    }

    /// Begins to delete a pod. It stays, terminating, as there is no kubelet to end it.
    pub async fn terminate(&self, name: &str) -> Result<()> {
        self.delete(name, 3600).await
    }

    /// Deletes a pod at once.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.delete(name, 0).await
    }

    async fn delete(&self, name: &str, grace: u32) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        let deleted = self.0.delete(name, &params).await;
        deleted.map(drop).with_context(|| format!("cannot delete the pod {name}"))
    }
}
