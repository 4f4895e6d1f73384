//! Plays Kubernetes' scheduler and a DRA driver, which write claims and devices. The driver is
//! DRANET: it reports by server-side apply, under its own name.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::TypeMeta;
use serde_json::{Map, Value, json};

use crate::objects::{Namespace, Objects};

/// Name of the driver, which is also its field manager.
const DRIVER: &str = "dra.net";

/// DRA driver with a pool and a DeviceClass of its own, in a cluster that serves one version of
/// `resource.k8s.io`.
pub struct Driver {
    namespace: String,
    objects: Objects,
    version: &'static str,
    /// Name of the DeviceClass and of the pool. It is unique, because neither has a namespace.
    class: String,
}

impl Driver {
    /// Returns a driver for the claims in a namespace.
    pub fn new(namespace: &Namespace, version: &'static str) -> Self {
        Self {
            namespace: namespace.name().to_owned(),
            objects: namespace.objects().clone(),
            version,
            class: format!("rdma-{}", namespace.name()),
        }
    }

    /// Returns the name of its DeviceClass.
    pub fn class_name(&self) -> &str {
        &self.class
    }

    /// Creates its DeviceClass.
    pub async fn class(&self) -> Result<()> {
        let selector = json!({"cel": {"expression": format!("device.driver == {DRIVER:?}")}});
        self.apply("DeviceClass", &self.class, json!({"spec": {"selectors": [selector]}})).await
    }

    /// Creates a ResourceClaimTemplate with one request, `nic`.
    pub async fn template(&self, name: &str) -> Result<()> {
        self.apply("ResourceClaimTemplate", name, json!({"spec": {"spec": self.claim_spec()}})).await
    }

    /// Creates a claim with one request, `nic`.
    pub async fn claim(&self, name: &str) -> Result<()> {
        self.apply("ResourceClaim", name, json!({"spec": self.claim_spec()})).await
    }

    fn claim_spec(&self) -> Value {
        let request = match self.version {
            "v1beta1" => json!({"name": "nic", "deviceClassName": self.class}),
            _ => json!({"name": "nic", "exactly": {"deviceClassName": self.class}}),
        };
        json!({"devices": {"requests": [request]}})
    }

    /// Publishes the devices with their attributes, as this generation of the pool.
    pub async fn slice(&self, generation: u64, devices: &[(&str, Value)]) -> Result<()> {
        let device = |(name, attributes): &(&str, Value)| match self.version {
            "v1beta1" => json!({"name": name, "basic": {"attributes": attributes}}),
            _ => json!({"name": name, "attributes": attributes}),
        };
        let spec = json!({
            "driver": DRIVER,
            "nodeName": "gpu-1",
            "pool": {"name": self.class, "generation": generation, "resourceSliceCount": 1},
            "devices": devices.iter().map(device).collect::<Vec<_>>(),
        });
        self.apply("ResourceSlice", &self.class, json!({ "spec": spec })).await
    }

    /// Allocates a device and reserves the claim for a pod, as the scheduler does.
    pub async fn allocate(&self, claim: &str, device: &str, pod: &Pod) -> Result<()> {
        let result = json!({"request": "nic", "driver": DRIVER, "pool": self.class, "device": device});
        let consumer = json!({"resource": "pods", "name": pod.name_any(), "uid": pod.uid()});
        let status = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]});
        let claims = self.api("ResourceClaim").await?;
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = claims.patch_status(claim, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("cannot allocate the claim {claim}"))
    }

    /// Reports a ready device as the pod's interface `net1`, with these addresses.
    pub async fn report(&self, claim: &str, device: &str, addresses: &[&str]) -> Result<()> {
        let conditions = ["Ready", "NetworkReady", "RDMALinkReady"].map(met);
        let device = json!({
            "driver": DRIVER,
            "pool": self.class,
            "device": device,
            "conditions": conditions,
            "networkData": {
                "interfaceName": "net1",
                "hardwareAddress": "ae:11:22:33:44:55",
                "ips": addresses,
            },
        });
        let object = self.object("ResourceClaim", claim, json!({"status": {"devices": [device]}}))?;
        let params = PatchParams::apply(DRIVER).force();
        let claims = self.api("ResourceClaim").await?;
        let applied = claims.patch_status(claim, &params, &Patch::Apply(&object)).await;
        applied.map(drop).with_context(|| format!("cannot report the device of the claim {claim}"))
    }

    /// Deletes an object.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let api = self.api(kind).await?;
        api.delete(name, &DeleteParams::default()).await.map(drop).with_context(|| format!("{kind} {name}"))
    }

    fn types(&self, kind: &str) -> TypeMeta {
        TypeMeta { api_version: format!("resource.k8s.io/{}", self.version), kind: kind.to_owned() }
    }

    async fn api(&self, kind: &str) -> Result<kube::Api<DynamicObject>> {
        self.objects.api(&self.types(kind), Some(&self.namespace)).await
    }

    fn object(&self, kind: &str, name: &str, body: Value) -> Result<DynamicObject> {
        let is_namespaced = kind.starts_with("ResourceClaim");
        let mut metadata = json!({ "name": name });
        if is_namespaced {
            metadata["namespace"] = json!(self.namespace);
        }
        let types = self.types(kind);
        let mut object = json!({"apiVersion": types.api_version, "kind": kind, "metadata": metadata});
        if let (Some(object), Value::Object(body)) = (object.as_object_mut(), body) {
            object.extend::<Map<String, Value>>(body);
        }
        serde_json::from_value(object).context("not a Kubernetes object")
    }

    async fn apply(&self, kind: &str, name: &str, body: Value) -> Result<()> {
        self.objects.apply_object(&self.object(kind, name, body)?).await.map(drop)
    }
}

/// Returns a condition that is true.
fn met(kind: &str) -> Value {
    json!({
        "type": kind,
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-11-21T09:00:00Z",
    })
}
