//! Addresses that DRA drivers report: claims whose status is written as DRANET writes it.

mod versions;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dra::Driver;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod};
use multinet_testing::replica::BOUND;
use multinet_testing::status::FINE;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::Scene;

/// Returns the spec of a service for the pods with `app=infer`, on one network.
fn spec(network: Value) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "infer"}},
        "networks": [network],
        "ports": [{"name": "rdma", "port": 18515}],
    })
}

fn template(name: &str) -> Value {
    json!({"kind": "ResourceClaimTemplate", "name": name, "alias": "rail0"})
}

fn class(name: &str) -> Value {
    json!({"kind": "DeviceClass", "name": name, "alias": "rail0"})
}

/// Creates a namespace with a driver, its class, the template `rails`, and the service `infer` on
/// the claims from that template.
async fn scene_with_driver(prefix: &str) -> Result<(Scene, Driver)> {
    let scene = Scene::new(prefix).await?;
    let driver = Driver::new(&scene.namespace, "v1");
    driver.class().await?;
    driver.template("rails").await?;
    scene.service("infer", spec(template("rails"))).await?;
    Ok((scene, driver))
}

/// Returns a pod that asks for a claim from the template `rails`.
fn from_template(name: &str) -> Pod {
    Pod::new(name).with("resourceClaims", json!([{"name": "nic", "resourceClaimTemplateName": "rails"}]))
}

/// Returns a pod that names its claim.
fn with_claim(name: &str, claim: &str) -> Pod {
    Pod::new(name).with("resourceClaims", json!([{"name": "nic", "resourceClaimName": claim}]))
}

/// Starts a pod with a claim from the template, and allocates a device to the claim. The driver has
/// not reported the device yet. Returns the name of the claim.
async fn start(scene: &Scene, driver: &Driver, name: &str, device: &str) -> Result<String> {
    let pod = scene.pods.create(from_template(name)).await?;
    let claim = claim_of(scene, name).await?;
    driver.allocate(&claim, device, &pod).await?;
    scene.pods.run(name).await?;
    scene.pods.ready(name, true).await?;
    Ok(claim)
}

/// Waits for the claim that kube-controller-manager creates for a pod. Returns its name.
async fn claim_of(scene: &Scene, pod: &str) -> Result<String> {
    eventually(&format!("a claim for the pod {pod}"), BOUND, async || {
        let status = scene.pods.api().get(pod).await?.status.unwrap_or_default();
        let claims = status.resource_claim_statuses.unwrap_or_default();
        claims.first().and_then(|status| status.resource_claim_name.clone()).context("the pod has none")
    })
    .await
}

#[tokio::test]
async fn a_claim_from_a_template_publishes_its_device() -> Result<()> {
    let (scene, driver) = scene_with_driver("template").await?;
    let attributes = json!({
        "dra.net/rdma": {"bool": true},
        "dra.net/rdmaDevice": {"string": "mlx5_2"},
        "dra.net/numaNode": {"int": 1},
        "dra.net/pciAddress": {"string": "0000:18:00.2"},
        "dra.net/ifName": {"string": "eth1"},
    });
    driver.slice(1, &[("nic0", attributes.clone()), ("nic1", json!({}))]).await?;
    let claim = start(&scene, &driver, "a", "nic0").await?;
    driver.report(&claim, "nic0", &["10.7.0.1/24", "fd00:7::1/64"]).await?;
    let slices = scene.slices("infer")?;
    slices.are(&["rail0 10.7.0.1 a rs-", "rail0 fd00:7::1 a rs-"]).await?;
    scene.status("infer")?.is(&FINE).await?;
    for slice in slices.list().await? {
        let device = json!({
            "interface": "net1",
            "mac": "ae:11:22:33:44:55",
            "rdmaDevice": "mlx5_2",
            "pciAddress": "0000:18:00.2",
            "numaNode": 1,
        });
        let spec = &slice.data["spec"];
        ensure!(spec["endpoints"][0]["device"] == device, "{:#}", spec["endpoints"]);
        let network = json!({
            "kind": "ResourceClaimTemplate",
            "name": "rails",
            "namespace": scene.namespace.name(),
            "alias": "rail0",
        });
        ensure!(spec["network"] == network, "{:#}", spec["network"]);
    }
    scene.answers("infer", "A", &["10.7.0.1"]).await?;
    scene.answers("infer", "AAAA", &["fd00:7::1"]).await?;
    let name = scene.namespace.domain("10-7-0-1.infer");
    let text = scene.stage.dns.ask(&name, "TXT").await?.data().join("\n");
    ensure!(text.contains("rdma=mlx5_2") && text.contains("numa=1"), "{text}");

    // The driver publishes its devices anew. Attributes that are not in the claim follow.
    let mut renamed = attributes;
    renamed["dra.net/rdmaDevice"]["string"] = json!("mlx5_7");
    driver.slice(2, &[("nic0", renamed), ("nic1", json!({}))]).await?;
    eventually("the slices to have the new RDMA device", BOUND, async || {
        for slice in slices.list().await? {
            let device = &slice.data["spec"]["endpoints"][0]["device"];
            ensure!(device["rdmaDevice"] == "mlx5_7", "{device}");
        }
        Ok(())
    })
    .await?;

    // The pod drains and is removed, and the claim with it.
    scene.pods.terminate("a").await?;
    slices.are(&["rail0 10.7.0.1 a -st", "rail0 fd00:7::1 a -st"]).await?;
    scene.pods.remove("a").await?;
    slices.are::<&str>(&[]).await
}

#[tokio::test]
async fn a_claim_named_by_a_pod_publishes_its_device() -> Result<()> {
    let scene = Scene::new("direct").await?;
    let driver = Driver::new(&scene.namespace, "v1");
    driver.class().await?;
    driver.claim("mine").await?;
    scene.service("infer", spec(class(driver.class_name()))).await?;
    let pod = scene.pods.create(with_claim("a", "mine")).await?;
    driver.allocate("mine", "nic0", &pod).await?;
    driver.report("mine", "nic0", &["10.7.0.1/24"]).await?;
    scene.pods.run("a").await?;
    let slices = scene.slices("infer")?;
    slices.are(&["rail0 10.7.0.1 a ---"]).await?;
    scene.pods.ready("a", true).await?;
    slices.are(&["rail0 10.7.0.1 a rs-"]).await?;
    scene.status("infer")?.is(&FINE).await?;

    // Pod b waits for the claim and has no address from it yet. Pod c shares the claim, and so
    // reports an address that is already published for another pod.
    scene.pods.create(with_claim("b", "mine").with("nodeName", Value::Null)).await?;
    let status = scene.status("infer")?;
    status.explains("Programmed=True Programmed", &["1 of 2 pods are not scheduled yet (b)"]).await?;
    scene.pods.start(with_claim("c", "mine")).await?;
    status.explains("AddressConflict=True DuplicateAddress", &["10.7.0.1", "/a", "/c"]).await?;
    slices.are(&["rail0 10.7.0.1 a rs-"]).await?;
    scene.pods.remove("b").await?;
    scene.pods.remove("c").await?;
    status.is(&FINE).await?;

    // The claim gets another address, none, one again, and is deleted.
    driver.report("mine", "nic0", &["10.7.0.2/24"]).await?;
    slices.are(&["rail0 10.7.0.2 a rs-"]).await?;
    driver.report("mine", "nic0", &[]).await?;
    slices.are::<&str>(&[]).await?;
    driver.report("mine", "nic0", &["10.7.0.3/24"]).await?;
    slices.are(&["rail0 10.7.0.3 a rs-"]).await?;
    driver.delete("ResourceClaim", "mine").await?;
    slices.are::<&str>(&[]).await
}

#[tokio::test]
async fn classes_and_templates_are_networks() -> Result<()> {
    let (scene, driver) = scene_with_driver("kinds").await?;
    scene.network("rdma-a").await?;
    let by_class = driver.class_name();
    scene.service("by-class", spec(class(by_class))).await?;
    let mut both = spec(class(by_class));
    both["networks"] = json!([
        {"kind": "DeviceClass", "name": by_class, "alias": "rail0"},
        {"name": "rdma-a", "alias": "rail1"},
        {"kind": "DeviceClass", "name": "no-such-class", "alias": "rail2"},
    ]);
    scene.service("both", both).await?;
    scene.service("nowhere", spec(template("no-such-template"))).await?;
    let mut elsewhere = spec(template("no-such-template"));
    elsewhere["networks"][0]["namespace"] = json!("default");
    scene.service("elsewhere", elsewhere).await?;

    let pod = from_template("a").nics(&[Nic::new("rdma-a", &["10.1.0.1"]).interface("net2")]);
    let pod = scene.pods.start(pod).await?;
    let claim = claim_of(&scene, "a").await?;
    driver.allocate(&claim, "nic0", &pod).await?;
    driver.report(&claim, "nic0", &["10.7.0.1/24"]).await?;
    driver.claim("mine").await?;
    let pod = scene.pods.start(with_claim("b", "mine")).await?;
    driver.allocate("mine", "nic1", &pod).await?;
    driver.report("mine", "nic1", &["10.7.0.2/24"]).await?;

    scene.slices("infer")?.are(&["rail0 10.7.0.1 a rs-"]).await?;
    scene.slices("by-class")?.are(&["rail0 10.7.0.1 a rs-", "rail0 10.7.0.2 b rs-"]).await?;
    let all = ["rail0 10.7.0.1 a rs-", "rail0 10.7.0.2 b rs-", "rail1 10.1.0.1 a rs-"];
    scene.slices("both")?.are(&all).await?;
    scene.slices("nowhere")?.are::<&str>(&[]).await?;
    for (service, missing) in [("both", "DeviceClass no-such-class"), ("nowhere", "no-such-template")] {
        let missing = [missing, "does not exist"];
        scene.status(service)?.explains("ResolvedRefs=False NetworkNotFound", &missing).await?;
        scene.events.warn(SERVICE, service, "NetworkNotFound", &missing).await?;
    }
    let unusable = ["ResourceClaimTemplate default/no-such-template", "remove the namespace"];
    scene.status("elsewhere")?.explains("ResolvedRefs=False NetworkNotUsable", &unusable).await?;
    scene.events.warn(SERVICE, "elsewhere", "NetworkNotUsable", &unusable).await?;
    scene.status("by-class")?.is(&FINE).await?;
    driver.template("no-such-template").await?;
    scene.status("nowhere")?.is(&FINE).await.map(drop)
}
