//! Other people's hands on slices: what is ours is put right, what is not is left alone.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use multinet_testing::pods::Pod;
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{CONTROLLER, MANAGED_BY, SERVICE_NAME, Slices};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::{Scene, infer, name, slice};

fn labels(service: &str, writer: &str) -> Value {
    json!({SERVICE_NAME: service, MANAGED_BY: writer})
}

fn endpoint(address: &str) -> Value {
    json!([{"addresses": [address], "conditions": {"ready": true}}])
}

#[tokio::test]
async fn what_is_edited_by_hand_is_restored() -> Result<()> {
    let scene = Scene::with_service("edited").await?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.2"])).await?;
    let slices = scene.slices("infer")?;
    let lines = ["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b rs-"];
    slices.are(&lines).await?;
    let original = slices.only().await?;
    let name = name(&original);

    let edits = [
        json!({"spec": {"endpoints": []}}),
        json!({"spec": {"endpoints": endpoint("10.9.9.9")}}),
        json!({"spec": {"ports": []}}),
        json!({"spec": {"network": {"alias": "rail7"}}}),
        json!({"metadata": {"ownerReferences": null}}),
        json!({"metadata": {"labels": {SERVICE_NAME: null}}}),
        json!({"metadata": {"labels": {MANAGED_BY: null}}}),
        json!({"metadata": {"labels": {MANAGED_BY: "somebody-else"}}}),
        json!({"metadata": {"labels": {"team": "somebody-else"}}}),
    ];
    for edit in edits {
        slices.edit(&name, edit.clone()).await?;
        eventually(&format!("{edit} to be undone"), BOUND, async || {
            let found = slices.only().await?;
            let parts = |slice: &kube::api::DynamicObject| {
                (slice.data["spec"].clone(), slice.labels().clone(), slice.owner_references().to_vec())
            };
            ensure!(parts(&found) == parts(&original), "it is {found:#?}");
            Ok(())
        })
        .await?;
    }

    // What the controller has nothing to do with stays.
    slices.edit(&name, json!({"metadata": {"annotations": {"example.org/note": "mine"}}})).await?;
    scene.pods.ready("b", false).await?;
    slices.are(&["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b ---"]).await?;
    let annotations = slices.only().await?.annotations().clone();
    ensure!(annotations.get("example.org/note").is_some_and(|note| note == "mine"), "{annotations:?}");
    scene.pods.ready("b", true).await?;

    // Deleted, one and all.
    slices.api().delete(&name, &DeleteParams::default()).await?;
    slices.are(&lines).await?;
    let all = kube::api::ListParams::default();
    slices.api().delete_collection(&DeleteParams::default(), &all).await?;
    slices.are(&lines).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.2"]).await
}

#[tokio::test]
async fn a_slice_without_owner_is_adopted() -> Result<()> {
    let scene = Scene::new("orphan").await?;
    scene.network("rdma-a").await?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    let slices = scene.slices("infer")?;
    let service = scene.service("infer", infer()).await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    let original = name(&slices.only().await?);

    // As a restore from a backup leaves it: two slices, one of them with an endpoint that is long
    // gone.
    let second = slice("infer-restored", labels("infer", CONTROLLER), endpoint("10.1.0.77"));
    scene.apply(second).await?;
    slices.edit(&original, json!({"metadata": {"ownerReferences": null}})).await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    eventually("every slice to have its owner", BOUND, async || {
        for slice in slices.list().await? {
            let owners = slice.owner_references();
            ensure!(owners.len() == 1 && Some(&owners[0].uid) == service.metadata.uid.as_ref(), "{owners:?}");
        }
        Ok(())
    })
    .await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await
}

#[tokio::test]
async fn a_slice_of_a_service_that_does_not_exist_is_deleted() -> Result<()> {
    let scene = Scene::new("astray").await?;
    scene.apply(slice("ghost-1", labels("ghost", CONTROLLER), endpoint("10.1.0.1"))).await?;
    scene.slices("ghost")?.are_gone().await
}

#[tokio::test]
async fn what_others_write_stays_as_it_is() -> Result<()> {
    let scene = Scene::with_service("foreign").await?;
    let foreign = [
        slice("infer-a", labels("infer", "somebody-else"), endpoint("10.1.0.50")),
        slice("infer-b", json!({SERVICE_NAME: "infer"}), endpoint("10.1.0.51")),
        slice("other-a", labels("other", "somebody-else"), endpoint("10.1.0.52")),
    ];
    for slice in foreign {
        scene.apply(slice).await?;
    }
    let (all, ours) = (Slices::of(&scene.namespace, "infer")?, scene.slices("infer")?);
    let versions = async || -> Result<Vec<Option<String>>> {
        let mut versions = Vec::new();
        for name in ["infer-a", "infer-b", "other-a"] {
            versions.push(all.api().get(name).await?.resource_version());
        }
        Ok(versions)
    };
    let before = versions().await?;

    // DNS answers the union.
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    ours.are(&["rail0 10.1.0.1 a rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.50", "10.1.0.51"]).await?;
    scene.status("infer")?.counts(3, 3).await?;

    // Neither changes of pods nor of the service, nor its end, concern them.
    scene.pods.remove("a").await?;
    ours.are::<&str>(&[]).await?;
    scene.edit_service("infer", json!({"spec": {"networks": [{"name": "rdma-a", "alias": "fast"}]}})).await?;
    scene.pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.2"])).await?;
    ours.are(&["fast 10.1.0.2 b rs-"]).await?;
    scene.namespace.delete(multinet_testing::manifests::SERVICE, "infer").await?;
    ours.are_gone().await?;
    ensure!(versions().await? == before, "foreign slices were written: {:?}", versions().await?);
    Ok(())
}

#[tokio::test]
async fn a_service_without_selector_is_left_to_others() -> Result<()> {
    let scene = Scene::new("manual").await?;
    scene.network("rdma-a").await?;
    let mut spec = infer();
    spec.as_object_mut().context("an object")?.remove("selector");
    scene.service("infer", spec).await?;
    let status = scene.status("infer")?;
    let conditions =
        ["Accepted=True Accepted", "Programmed=True NoSelector", "ResolvedRefs=True ResolvedRefs"];
    status.is(&conditions).await?;
    status.is(&["EndpointsReady=False NoSlices"]).await?;
    scene.apply(slice("infer-mine", json!({SERVICE_NAME: "infer"}), endpoint("10.1.0.1"))).await?;
    status.is(&["EndpointsReady=True EndpointsReady"]).await?;
    status.counts(1, 1).await?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.2"])).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await?;

    // With a selector from now on: both.
    scene.service("infer", infer()).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.2"]).await?;
    status.is(&["Programmed=True Programmed"]).await?;
    scene.slices("infer")?.are(&["rail0 10.1.0.2 a rs-"]).await
}
