//! Plays Kubernetes' scheduler and a DRA driver, which write claims and devices. The driver is
//! DRANET: it reports by server-side apply, under its own name.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::TypeMeta;
use multinet_testing::objects::{Namespace, Objects};
use serde_json::{Map, Value, json};

/// The name of the driver, and that under which it writes.
const DRIVER: &str = "dra.net";

/// A driver with a pool and a DeviceClass of its own, in a cluster that serves a version of
/// `resource.k8s.io`.
pub(super) struct Driver {
    namespace: String,
    objects: Objects,
    version: &'static str,
    /// Also the name of the pool: neither has a namespace.
    class: String,
}

impl Driver {
    pub(super) fn new(namespace: &Namespace, version: &'static str) -> Self {
        Self {
            namespace: namespace.name().to_owned(),
            objects: namespace.objects().clone(),
            version,
            class: format!("rdma-{}", namespace.name()),
        }
    }

    /// The name of its DeviceClass.
    pub(super) fn class_name(&self) -> &str {
        &self.class
    }

    /// Makes its DeviceClass.
    pub(super) async fn class(&self) -> Result<()> {
        let selector = json!({"cel": {"expression": format!("device.driver == {DRIVER:?}")}});
        self.apply("DeviceClass", &self.class, json!({"spec": {"selectors": [selector]}})).await
    }

    /// Makes a ResourceClaimTemplate with one request, `nic`.
    pub(super) async fn template(&self, name: &str) -> Result<()> {
        let spec = self.claim_spec(&["nic"]);
        self.apply("ResourceClaimTemplate", name, json!({"spec": {"spec": spec}})).await
    }

    /// Makes a claim with one request, `nic`.
    pub(super) async fn claim(&self, name: &str) -> Result<()> {
        self.claim_for(name, &["nic"]).await
    }

    /// Makes a claim with these requests.
    pub(super) async fn claim_for(&self, name: &str, requests: &[&str]) -> Result<()> {
        self.apply("ResourceClaim", name, json!({"spec": self.claim_spec(requests)})).await
    }

    fn claim_spec(&self, requests: &[&str]) -> Value {
        let request = |name: &&str| match self.version {
            "v1beta1" => json!({"name": name, "deviceClassName": self.class}),
            _ => json!({"name": name, "exactly": {"deviceClassName": self.class}}),
        };
        json!({"devices": {"requests": requests.iter().map(request).collect::<Vec<_>>()}})
    }

    /// Publishes its devices with their attributes, as generation so and so of its pool.
    pub(super) async fn slice(&self, generation: u64, devices: &[(&str, Value)]) -> Result<()> {
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

    /// Allocates devices, by request, and reserves the claim for a pod, as the scheduler does.
    pub(super) async fn allocate(&self, claim: &str, devices: &[(&str, &str)], pod: &Pod) -> Result<()> {
        let result = |&(request, device): &(&str, &str)| {
            let pool = &self.class;
            json!({"request": request, "driver": DRIVER, "pool": pool, "device": device})
        };
        let results: Vec<Value> = devices.iter().map(result).collect();
        let consumer = json!({"resource": "pods", "name": pod.name_any(), "uid": pod.uid()});
        let status = json!({"allocation": {"devices": {"results": results}}, "reservedFor": [consumer]});
        let claims = self.api("ResourceClaim").await?;
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = claims.patch_status(claim, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("cannot allocate the claim {claim}"))
    }

    /// Reports devices with the interface and the addresses that they have in the pod.
    pub(super) async fn report(&self, claim: &str, devices: &[(&str, &str, &[&str])]) -> Result<()> {
        self.report_with(claim, devices, &[]).await
    }

    /// The same, with these conditions False.
    pub(super) async fn report_with(
        &self,
        claim: &str,
        devices: &[(&str, &str, &[&str])],
        failing: &[&str],
    ) -> Result<()> {
        let conditions: Vec<Value> = ["Ready", "NetworkReady", "RDMALinkReady"]
            .iter()
            .map(|kind| condition(kind, !failing.contains(kind)))
            .collect();
        let device = |(device, interface, addresses): &(&str, &str, &[&str])| {
            json!({
                "driver": DRIVER,
                "pool": self.class,
                "device": device,
                "conditions": conditions,
                "networkData": {
                    "interfaceName": interface,
                    "hardwareAddress": "ae:11:22:33:44:55",
                    "ips": addresses,
                },
            })
        };
        self.write(claim, devices.iter().map(device).collect()).await
    }

    /// Reports a device that has no IP address.
    pub(super) async fn report_infiniband(&self, claim: &str, device: &str) -> Result<()> {
        let conditions = [condition("Ready", true), condition("RDMAOnlyDeviceReady", true)];
        self.write(
            claim,
            json!([{"driver": DRIVER, "pool": self.class, "device": device, "conditions": conditions}]),
        )
        .await
    }

    async fn write(&self, claim: &str, devices: Value) -> Result<()> {
        let object = self.object("ResourceClaim", claim, json!({"status": {"devices": devices}}))?;
        let params = PatchParams::apply(DRIVER).force();
        let claims = self.api("ResourceClaim").await?;
        let applied = claims.patch_status(claim, &params, &Patch::Apply(&object)).await;
        applied.map(drop).with_context(|| format!("cannot report the devices of the claim {claim}"))
    }

    /// Deletes an object.
    pub(super) async fn delete(&self, kind: &str, name: &str) -> Result<()> {
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
        serde_json::from_value(object).context("not an object")
    }

    async fn apply(&self, kind: &str, name: &str, body: Value) -> Result<()> {
        self.objects.apply_object(&self.object(kind, name, body)?).await.map(drop)
    }
}

fn condition(kind: &str, is_true: bool) -> Value {
    json!({
        "type": kind,
        "status": if is_true { "True" } else { "False" },
        "reason": if is_true { "Done" } else { "Failed" },
        "message": "",
        "lastTransitionTime": "2026-11-21T09:00:00Z",
    })
}
