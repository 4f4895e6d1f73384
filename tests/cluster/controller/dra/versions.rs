//! Clusters that serve `resource.k8s.io` in another version, or only for a part of the time that
//! the controller runs.

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, DynamicObject};
use kube::core::TypeMeta;
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::dra::Driver;
use multinet_testing::objects::Namespace;
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::slices::Slices;
use multinet_testing::status::{FINE, Status};
use serde_json::json;

use super::{class, spec, with_claim};
use crate::controller::stage::{apply_multus, infer, prepare_without_multus, service};
use crate::shared;

/// Returns the flag that makes the API server serve this version and no other.
fn serving(version: &str) -> String {
    let only = match version {
        "" => String::new(),
        version => format!(",resource.k8s.io/{version}=true"),
    };
    format!("--runtime-config=resource.k8s.io/v1=false{only}")
}

const SERVED: &str = r#"multinet_controller_api_served{group="resource.k8s.io"}"#;

/// Creates a pod with a claim whose device the driver has reported, and the driver's class and
/// ResourceSlice.
async fn publish(namespace: &Namespace, driver: &Driver, name: &str, address: &str) -> Result<()> {
    driver.class().await?;
    let attributes = json!({"dra.net/rdmaDevice": {"string": "mlx5_2"}, "dra.net/numaNode": {"int": 1}});
    driver.slice(1, &[("nic0", attributes)]).await?;
    driver.claim(name).await?;
    let pod = Pods::of(namespace).start(with_claim(name, name)).await?;
    driver.allocate(name, "nic0", &pod).await?;
    driver.report(name, "nic0", &[address]).await
}

async fn apply_service(namespace: &Namespace, driver: &Driver) -> Result<()> {
    let service = service("infer", spec(class(driver.class_name())));
    namespace.apply(serde_json::from_value::<DynamicObject>(service)?).await.map(drop)
}

async fn start(cluster: &Cluster) -> Result<Controller> {
    ControllerOptions::controller(&cluster.controller_kubeconfig(cluster.address()).await?)
        .start_ready()
        .await
}

#[tokio::test]
async fn v1beta2_is_watched_where_v1_is_not_served() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let mut controller = start(cluster).await?;
    ensure!(controller.log().contains("watching resource.k8s.io/v1beta2"), "{}", controller.log());
    controller.shows(SERVED, 1).await?;
    let namespace = cluster.temp_namespace("v1beta2").await?;
    let driver = Driver::new(&namespace, "v1beta2");
    apply_service(&namespace, &driver).await?;
    publish(&namespace, &driver, "a", "10.7.0.1/24").await?;
    let slices = Slices::of(&namespace, "infer")?;
    slices.are(&["rail0 10.7.0.1 a rs-"]).await?;
    let device = slices.only().await?.data["spec"]["endpoints"][0]["device"].clone();
    ensure!(device["rdmaDevice"] == "mlx5_2" && device["numaNode"] == 1, "{device}");
    Status::of(&namespace, "infer")?.is(&FINE).await?;
    // Releases the lease.
    controller.terminate().await.map(drop)
}

#[tokio::test]
async fn optional_apis_are_watched_while_they_are_served() -> Result<()> {
    let mut cluster = Cluster::start_with(&[&serving("")]).await?;
    prepare_without_multus(&cluster).await?;
    let controller = start(&cluster).await?;
    controller.shows("multinet_controller_api_served", 0).await?;
    let log = controller.log();
    for missing in ["none of resource.k8s.io/v1", "no k8s.cni.cncf.io/v1"] {
        ensure!(log.matches(missing).count() == 1, "{missing:?} is not logged exactly once:\n{log}");
    }
    let namespace = cluster.temp_namespace("comes").await?;
    let driver = Driver::new(&namespace, "v1beta1");
    apply_service(&namespace, &driver).await?;
    let not_served = "ResolvedRefs=False NetworkKindNotServed";
    let status = Status::of(&namespace, "infer")?;
    status.explains(not_served, &["DeviceClass", "enable dynamic resource allocation"]).await?;

    // Multus is installed. No program has to be restarted for it.
    let mut multus = infer();
    multus["selector"] = json!({"matchLabels": {"app": "train"}});
    namespace.apply(serde_json::from_value::<DynamicObject>(service("train", multus))?).await?;
    let train = Status::of(&namespace, "train")?;
    train.explains(not_served, &["NetworkAttachmentDefinition", "install Multus"]).await?;
    let objects = cluster.objects().await?;
    apply_multus(&objects).await?;
    train.is(&["ResolvedRefs=False NetworkNotFound"]).await?;
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "rdma-a"},
    });
    namespace.apply(serde_json::from_value::<DynamicObject>(network)?).await?;
    train.is(&FINE).await?;
    controller.shows("multinet_controller_api_served", 1).await?;
    let pods = Pods::of(&namespace);
    pods.start(Pod::new("m").label("app", "train").nic("rdma-a", &["10.1.0.1"])).await?;
    let of_multus = Slices::of(&namespace, "train")?;
    of_multus.are(&["rail0 10.1.0.1 m rs-"]).await?;

    // Dynamic resource allocation is enabled, in its oldest version.
    cluster.set_apiserver_flags(&[&serving("v1beta1")]);
    cluster.start_apiserver().await?;
    publish(&namespace, &driver, "a", "10.7.0.1/24").await?;
    let slices = Slices::of(&namespace, "infer")?;
    slices.are(&["rail0 10.7.0.1 a rs-"]).await?;
    status.is(&FINE).await?;
    controller.shows("multinet_controller_api_served", 2).await?;
    let device = slices.only().await?.data["spec"]["endpoints"][0]["device"].clone();
    ensure!(device["rdmaDevice"] == "mlx5_2" && device["numaNode"] == 1, "{device}");

    // Both APIs are removed. Addresses from claims are withdrawn; those from pods' annotations
    // stay.
    let types = TypeMeta {
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
    };
    let definition = "network-attachment-definitions.k8s.cni.cncf.io";
    objects.api(&types, None).await?.delete(definition, &DeleteParams::default()).await?;
    cluster.set_apiserver_flags(&[&serving("")]);
    cluster.start_apiserver().await?;
    controller.shows("multinet_controller_api_served", 0).await?;
    slices.are::<&str>(&[]).await?;
    status.explains(not_served, &["DeviceClass"]).await?;
    train.explains(not_served, &["NetworkAttachmentDefinition"]).await?;
    of_multus.are(&["rail0 10.1.0.1 m rs-"]).await?;
    pods.ready("m", false).await?;
    of_multus.are(&["rail0 10.1.0.1 m ---"]).await
}
