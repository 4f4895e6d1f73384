//! Every kind of change to pods and services, one after the other.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{NETWORK_STATUS, Nic, Pod};
use multinet_testing::replica::BOUND;
use multinet_testing::status::FINE;
use multinet_testing::wait::eventually;
use serde_json::json;

use crate::controller::stage::{Scene, infer, node};

#[tokio::test]
async fn every_change_of_a_pod_reaches_slices_and_dns() -> Result<()> {
    let scene = Scene::with_service("pods").await?;
    let (pods, slices) = (&scene.pods, scene.slices("infer")?);
    pods.start(Pod::new("stays").nic("rdma-a", &["10.1.0.100"])).await?;
    let stays = "rail0 10.1.0.100 stays rs-";

    // It runs before it is ready.
    pods.create(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    pods.run("a").await?;
    slices.are(&[stays, "rail0 10.1.0.1 a ---"]).await?;
    pods.ready("a", true).await?;
    slices.are(&[stays, "rail0 10.1.0.1 a rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.100"]).await?;

    // The probe fails, and succeeds again.
    pods.ready("a", false).await?;
    slices.are(&[stays, "rail0 10.1.0.1 a ---"]).await?;
    scene.answers("infer", "A", &["10.1.0.100"]).await?;
    pods.ready("a", true).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.100"]).await?;

    // Another address; none; one again.
    pods.report("a", &[Nic::new("rdma-a", &["10.1.0.2"])]).await?;
    slices.are(&[stays, "rail0 10.1.0.2 a rs-"]).await?;
    pods.annotate("a", NETWORK_STATUS, None).await?;
    slices.are(&[stays]).await?;
    scene
        .status("infer")?
        .explains("Programmed=True Programmed", &["1 of 2 pods are not attached (a)"])
        .await?;
    pods.report("a", &[Nic::new("rdma-a", &["10.1.0.3"])]).await?;
    slices.are(&[stays, "rail0 10.1.0.3 a rs-"]).await?;

    // Its label goes, and comes back.
    pods.label("a", "app", None).await?;
    slices.are(&[stays]).await?;
    pods.label("a", "app", Some("infer")).await?;
    slices.are(&[stays, "rail0 10.1.0.3 a rs-"]).await?;

    // It is deleted while it serves, and a pod of the same name takes its place.
    let first = pods.api().get("a").await?.uid();
    pods.terminate("a").await?;
    slices.are(&[stays, "rail0 10.1.0.3 a -st"]).await?;
    scene.answers("infer", "A", &["10.1.0.100"]).await?;
    pods.remove("a").await?;
    let second = pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.3"])).await?.uid();
    ensure!(first != second, "not another pod");
    slices.are(&[stays, "rail0 10.1.0.3 a rs-"]).await?;
    eventually("the slice to name the new pod", BOUND, async || {
        let slice = json!(slices.only().await?.data);
        ensure!(slice.to_string().contains(second.as_deref().context("no uid")?), "{slice:#}");
        Ok(())
    })
    .await?;

    // Its work is done: the annotation outlives the interface.
    pods.phase("a", "Succeeded").await?;
    slices.are(&[stays]).await?;
    scene.status("infer")?.counts(1, 1).await?;
    pods.remove("stays").await?;
    slices.are::<&str>(&[]).await?;
    scene.answers("infer", "A", &[]).await
}

#[tokio::test]
async fn every_change_of_a_service_reaches_slices_and_dns() -> Result<()> {
    let scene = Scene::with_service("spec").await?;
    scene.network("rdma-b").await?;
    let slices = scene.slices("infer")?;
    let nics = [Nic::new("rdma-a", &["10.1.0.1"]), Nic::new("rdma-b", &["10.2.0.1"]).interface("net2")];
    scene.pods.start(Pod::new("a").nics(&nics)).await?;
    scene.pods.create(Pod::new("b").label("app", "train").nic("rdma-a", &["10.1.0.2"])).await?;
    scene.pods.run("b").await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;

    // The ports are written into the slices that there are.
    let names = slices.versions().await?.into_keys().collect::<Vec<_>>();
    scene.edit_service("infer", json!({"spec": {"ports": [{"name": "rdma", "port": 4791}]}})).await?;
    eventually("the slices to have the new port", BOUND, async || {
        let found = slices.list().await?;
        for slice in &found {
            let ports = &slice.data["spec"]["ports"];
            ensure!(*ports == json!([{"name": "rdma", "port": 4791, "protocol": "TCP"}]), "{ports}");
        }
        ensure!(
            found.iter().map(kube::ResourceExt::name_any).eq(names.clone()),
            "other slices than {names:?}"
        );
        Ok(())
    })
    .await?;

    scene.edit_service("infer", json!({"spec": {"networks": [{"name": "rdma-a", "alias": "fast"}]}})).await?;
    slices.are(&["fast 10.1.0.1 a rs-"]).await?;
    scene.answers("fast._net.infer", "A", &["10.1.0.1"]).await?;
    scene.answers("rail0._net.infer", "A", &[]).await?;

    let both = json!([{"name": "rdma-a", "alias": "fast"}, {"name": "rdma-b"}]);
    scene.edit_service("infer", json!({"spec": {"networks": both}})).await?;
    slices.are(&["fast 10.1.0.1 a rs-", "rdma-b 10.2.0.1 a rs-"]).await?;
    scene.edit_service("infer", json!({"spec": {"networks": [{"name": "rdma-b"}]}})).await?;
    slices.are(&["rdma-b 10.2.0.1 a rs-"]).await?;

    // Other pods, on the first network again; then those that are not ready, too.
    let spec = json!({"selector": {"matchLabels": {"app": "train"}}, "networks": [{"name": "rdma-a"}]});
    scene.edit_service("infer", json!({ "spec": spec })).await?;
    slices.are(&["rdma-a 10.1.0.2 b ---"]).await?;
    scene.answers("infer", "A", &[]).await?;
    scene.edit_service("infer", json!({"spec": {"publishNotReadyAddresses": true}})).await?;
    slices.are(&["rdma-a 10.1.0.2 b r--"]).await?;
    scene.answers("infer", "A", &["10.1.0.2"]).await?;
    scene.status("infer")?.counts(1, 1).await?;

    // Its labels are its slices', except for those that are ours.
    let labels = json!({"team": "vision", "multinetwork.numaproj.io/managed-by": "me"});
    scene.edit_service("infer", json!({"metadata": {"labels": labels}})).await?;
    eventually("the slices to have the label", BOUND, async || {
        for slice in slices.list().await? {
            ensure!(slice.labels().get("team").is_some_and(|team| team == "vision"), "{:?}", slice.labels());
        }
        Ok(())
    })
    .await?;
    slices.are(&["rdma-a 10.1.0.2 b r--"]).await?;

    // Without a selector the slices are not ours.
    scene.edit_service("infer", json!({"spec": {"selector": null}})).await?;
    scene.status("infer")?.is(&["Accepted=True Accepted", "Programmed=True NoSelector"]).await?;
    slices.are_gone().await
}

#[tokio::test]
async fn slices_are_deleted_with_their_service() -> Result<()> {
    let scene = Scene::with_service("gone").await?;
    let slices = scene.slices("infer")?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1", "fd00::1"])).await?;
    slices.are(&["rail0 10.1.0.1 a rs-", "rail0 fd00::1 a rs-"]).await?;
    let old = slices.list().await?;

    scene.namespace.delete(SERVICE, "infer").await?;
    slices.are_gone().await?;
    scene.answers("infer", "A", &[]).await?;

    // A service of the same name is another one.
    let new = scene.service("infer", infer()).await?;
    slices.are(&["rail0 10.1.0.1 a rs-", "rail0 fd00::1 a rs-"]).await?;
    for slice in slices.list().await? {
        ensure!(slice.owner_references()[0].uid == new.uid().context("no uid")?, "{:?}", slice.metadata);
        ensure!(old.iter().all(|old| old.uid() != slice.uid()), "{} was not deleted", slice.name_any());
    }
    scene.status("infer")?.is(&FINE).await?;

    // Deleted and made again at once.
    scene.namespace.delete(SERVICE, "infer").await?;
    let newest = scene.service("infer", infer()).await?.uid();
    eventually("the slices to belong to the newest service", BOUND, async || {
        let found = slices.list().await?;
        ensure!(
            found.len() == 2
                && found.iter().all(|slice| slice
                    .owner_references()
                    .iter()
                    .map(|owner| &owner.uid)
                    .eq(&newest)),
            "they are {:?}",
            found.iter().map(|slice| &slice.metadata).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await?;
    slices.are(&["rail0 10.1.0.1 a rs-", "rail0 fd00::1 a rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await
}

#[tokio::test]
async fn a_service_being_deleted_still_drops_unready_endpoints() -> Result<()> {
    let scene = Scene::with_service("finalizer").await?;
    let slices = scene.slices("infer")?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    scene.edit_service("infer", json!({"metadata": {"finalizers": ["example.org/wait"]}})).await?;
    scene.namespace.delete(SERVICE, "infer").await?;
    let service = scene.status("infer")?.service().await?;
    ensure!(service.metadata.deletion_timestamp.is_some(), "it is not being deleted");
    // A finalizer may take hours. Until then, a pod that does not serve must not be answered.
    scene.pods.ready("a", false).await?;
    slices.are(&["rail0 10.1.0.1 a ---"]).await?;
    scene.answers("infer", "A", &[]).await?;
    scene.edit_service("infer", json!({"metadata": {"finalizers": null}})).await?;
    slices.are_gone().await
}

#[tokio::test]
async fn a_changed_zone_of_a_node_reaches_its_endpoints() -> Result<()> {
    let scene = Scene::with_service("zone").await?;
    let objects = scene.namespace.objects();
    // The pod comes before its node.
    let name = format!("node-{}", scene.namespace.name());
    scene.pods.start(Pod::new("a").node(&name).nic("rdma-a", &["10.1.0.1"])).await?;
    let slices = scene.slices("infer")?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    let is_in = async |zone: Option<&str>| {
        eventually(&format!("the endpoint to be in zone {zone:?}"), BOUND, async || {
            let slice = slices.only().await?;
            let endpoint = &slice.data["spec"]["endpoints"][0];
            ensure!(endpoint["nodeName"] == name && endpoint["zone"].as_str() == zone, "{endpoint}");
            Ok(())
        })
        .await
    };
    is_in(None).await?;
    node(objects, &name, Some("a")).await?;
    is_in(Some("a")).await?;
    node(objects, &name, Some("b")).await?;
    is_in(Some("b")).await?;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(objects.client());
    nodes.delete(&name, &DeleteParams::default()).await?;
    is_in(None).await
}
