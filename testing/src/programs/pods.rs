//! Pods without a kubelet: the test writes what scheduler, kubelet and Multus would write.

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

/// Annotation in which Multus reports a pod's interfaces.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// First bytes of pods' addresses on the default network. The DNS server must never answer with one
/// of them.
pub const DEFAULT_NETWORK: [u8; 2] = [10, 244];

/// Number of concurrent requests when many pods are created.
const AT_ONCE: usize = 32;

/// Interface of a pod on a secondary network, as Multus reports it.
#[derive(Debug, Clone)]
pub struct Nic {
    network: String,
    interface: String,
    addresses: Vec<String>,
    mac: Option<String>,
    device: Option<Value>,
}

impl Nic {
    /// Creates the interface `net1` on a network: `namespace/name`, or only the name of one in the
    /// pod's namespace.
    pub fn new(network: &str, addresses: &[&str]) -> Self {
        Self {
            network: network.to_owned(),
            interface: "net1".to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            mac: None,
            device: None,
        }
    }

    /// Sets the name of the interface.
    #[must_use]
    pub fn interface(mut self, name: &str) -> Self {
        name.clone_into(&mut self.interface);
        self
    }

    /// Sets the hardware address.
    #[must_use]
    pub fn mac(mut self, mac: &str) -> Self {
        self.mac = Some(mac.to_owned());
        self
    }

    /// Sets the PCI address and the RDMA device of its virtual function.
    #[must_use]
    pub fn pci(mut self, address: &str, rdma_device: &str) -> Self {
        let pci = json!({"pci-address": address, "rdma-device": rdma_device});
        self.device = Some(json!({"type": "pci", "version": "1.1.0", "pci": pci}));
        self
    }
}

/// Returns the annotation that Multus writes for these interfaces, with that of the default network
/// first.
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

/// Returns an address on the default network that no other pod has.
fn default_address() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let [first, second] = DEFAULT_NETWORK;
    format!("{first}.{second}.{high}.{low}")
}

/// Pod to create.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: Value,
}

impl Pod {
    /// Creates a pod with the label `app=infer`, bound to the node `gpu-1`.
    pub fn new(name: &str) -> Self {
        let spec = json!({
            "nodeName": "gpu-1",
            "containers": [{"name": "main", "image": "none.invalid/none"}],
        });
        let pod = Self { name: name.to_owned(), labels: BTreeMap::new(), annotations: BTreeMap::new(), spec };
        pod.label("app", "infer")
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets the interfaces on secondary networks.
    #[must_use]
    pub fn nics(self, nics: &[Nic]) -> Self {
        self.annotation(NETWORK_STATUS, &network_status(nics))
    }

    /// Sets one interface, on one network.
    #[must_use]
    pub fn nic(self, network: &str, addresses: &[&str]) -> Self {
        self.nics(&[Nic::new(network, addresses)])
    }

    /// Sets the node.
    #[must_use]
    pub fn node(self, name: &str) -> Self {
        self.with("nodeName", json!(name))
    }

    /// Sets the hostname, and the subdomain without which Kubernetes' DNS would ignore it.
    #[must_use]
    pub fn hostname(self, name: &str) -> Self {
        self.with("hostname", json!(name)).with("subdomain", json!("headless"))
    }

    /// Sets a field of the spec.
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

/// Pods of a namespace.
#[derive(Debug, Clone)]
pub struct Pods(Api<CorePod>);

impl Pods {
    /// Returns the pods of this namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self(Api::namespaced(namespace.objects().client(), namespace.name()))
    }

    /// Returns the API.
    pub fn api(&self) -> &Api<CorePod> {
        &self.0
    }

    /// Creates a pod in the phase Pending.
    pub async fn create(&self, pod: Pod) -> Result<CorePod> {
        let name = pod.name.clone();
        let created = self.0.create(&PostParams::default(), &pod.try_into()?).await;
        created.with_context(|| format!("cannot create the pod {name}"))
    }

    /// Creates many pods in the phase Pending.
    pub async fn create_all(&self, pods: impl IntoIterator<Item = Pod>) -> Result<()> {
        stream::iter(pods)
            .map(|pod| self.create(pod))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| future::ready(Ok(())))
            .await
    }

    /// Plays the kubelet: reports sandboxes for these pods, which do not run yet.
    pub async fn give_sandboxes(&self, names: impl IntoIterator<Item = String>) -> Result<()> {
        let status = || json!({"podIP": default_address(), "podIPs": [{"ip": default_address()}]});
        stream::iter(names)
            .map(|name| async move { self.status(&name, status()).await })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| future::ready(Ok(())))
            .await
    }

    /// Plays the scheduler: binds a pod to a node.
    pub async fn bind(&self, name: &str, node: &str) -> Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node},
        });
        let bound: kube::Result<Value> =
            self.0.create_subresource("binding", name, &PostParams::default(), &binding).await;
        bound.map(drop).with_context(|| format!("cannot bind the pod {name}"))
    }

    /// Creates a pod and makes it running and ready.
    pub async fn start(&self, pod: Pod) -> Result<CorePod> {
        let created = self.create(pod).await?;
        self.run(created.metadata.name.as_deref().unwrap_or_default()).await?;
        self.ready(created.metadata.name.as_deref().unwrap_or_default(), true).await
    }

    /// Plays the kubelet: makes the pod running, with an address on the default network, but not
    /// ready.
    pub async fn run(&self, name: &str) -> Result<CorePod> {
        let address = default_address();
        // Replaces the addresses of an earlier attempt instead of merging with them.
        let addresses = json!([{"ip": address}, {"$patch": "replace"}]);
        self.status(name, json!({"phase": "Running", "podIP": address, "podIPs": addresses})).await?;
        self.ready(name, false).await
    }

    /// Plays the kubelet: reports the result of the readiness probe.
    pub async fn ready(&self, name: &str, ready: bool) -> Result<CorePod> {
        let status = if ready { "True" } else { "False" };
        let since = Timestamp::now().to_string();
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        self.status(name, json!({"conditions": [condition]})).await
    }

    /// Sets the phase of a pod.
    pub async fn phase(&self, name: &str, phase: &str) -> Result<CorePod> {
        self.status(name, json!({"phase": phase})).await
    }

    /// Merges `status` into the status of a pod.
    pub async fn status(&self, name: &str, status: Value) -> Result<CorePod> {
        let patch = Patch::Strategic(json!({ "status": status }));
        let patched = self.0.patch_status(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("cannot change the status of the pod {name}"))
    }

    /// Plays Multus: reports these interfaces.
    pub async fn report(&self, name: &str, nics: &[Nic]) -> Result<CorePod> {
        self.annotate(name, NETWORK_STATUS, Some(&network_status(nics))).await
    }

    /// Sets or removes an annotation.
    pub async fn annotate(&self, name: &str, key: &str, value: Option<&str>) -> Result<CorePod> {
        self.metadata(name, json!({"annotations": {key: value}})).await
    }

    /// Sets or removes a label.
    pub async fn label(&self, name: &str, key: &str, value: Option<&str>) -> Result<CorePod> {
        self.metadata(name, json!({"labels": {key: value}})).await
    }

    async fn metadata(&self, name: &str, metadata: Value) -> Result<CorePod> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = self.0.patch(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("cannot change the metadata of the pod {name}"))
    }

    /// Begins to delete a pod. It stays terminating, because no kubelet ends it.
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
