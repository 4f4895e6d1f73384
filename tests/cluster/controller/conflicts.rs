//! Two pods of one network with the same address.

use anyhow::{Result, ensure};
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod};
use multinet_testing::status::{FINE, said};
use serde_json::json;

use crate::controller::stage::{Scene, infer};

const CONFLICT: &str = "AddressConflict=True DuplicateAddress";

#[tokio::test]
async fn the_ready_pod_holds_the_address_and_keeps_it_until_it_leaves() -> Result<()> {
    let scene = Scene::with_service("conflict").await?;
    let (slices, status) = (scene.slices("infer")?, scene.status("infer")?);
    // The names are in the wrong order on purpose.
    scene.pods.start(Pod::new("second").nic("rdma-a", &["10.1.0.1"])).await?;
    slices.are(&["rail0 10.1.0.1 second rs-"]).await?;
    status.is(&FINE).await?;
    scene.pods.start(Pod::new("first").nic("rdma-a", &["10.1.0.1", "fd00::2"])).await?;
    let said_of = |name: &str| format!("{}/{name}", scene.namespace.name());
    let (kept, left_out) = (said_of("second"), said_of("first"));
    status.explains(CONFLICT, &["10.1.0.1", "is published for pod", &kept, "and not for", &left_out]).await?;
    // Only the address is left out, not the pod.
    slices.are(&["rail0 10.1.0.1 second rs-", "rail0 fd00::2 first rs-"]).await?;
    scene.events.warn(SERVICE, "infer", "DuplicateAddress", &["10.1.0.1", &kept, &left_out]).await?;

    // The other pod takes over, and keeps the address when this one is ready again; and nothing is
    // said again.
    for ready in [false, true].into_iter().cycle().take(20) {
        scene.pods.ready("second", ready).await?;
    }
    slices.are(&["rail0 10.1.0.1 first rs-", "rail0 fd00::2 first rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await?;
    let events = scene.events.about(SERVICE, "infer").await?;
    ensure!(events.len() == 1 && events[0].series.is_none(), "said more than once: {:#?}", said(&events));

    // It begins to leave: the address is handed over.
    scene.pods.terminate("first").await?;
    slices.are(&["rail0 10.1.0.1 second rs-", "rail0 fd00::2 first -st"]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await?;
    status.is(&FINE).await?;
    scene.pods.remove("first").await?;
    slices.are(&["rail0 10.1.0.1 second rs-"]).await
}

#[tokio::test]
async fn a_conflict_that_grows_is_one_event() -> Result<()> {
    let scene = Scene::with_service("grows").await?;
    let status = scene.status("infer")?;
    for (name, address) in [("a", "10.1.0.2"), ("b", "10.1.0.2"), ("c", "10.1.0.2"), ("d", "10.1.0.1")] {
        scene.pods.start(Pod::new(name).nic("rdma-a", &[address])).await?;
        if name == "b" {
            status.is(&[CONFLICT]).await?;
        }
    }
    scene.pods.start(Pod::new("e").nic("rdma-a", &["10.1.0.1"])).await?;
    status.explains(CONFLICT, &["10.1.0.1", "/d", "/e", "10.1.0.2", "/a", "/b", "/c"]).await?;
    scene.events.warn(SERVICE, "infer", "DuplicateAddress", &["10.1.0.2", "/a", "/b"]).await?;
    let said_so = scene.events.count(SERVICE, "infer", "DuplicateAddress").await?;
    ensure!(said_so == 1, "said {said_so} times");
    Ok(())
}

#[tokio::test]
async fn a_conflict_ends_by_another_address_or_phase() -> Result<()> {
    let scene = Scene::with_service("resolved").await?;
    let (slices, status) = (scene.slices("infer")?, scene.status("infer")?);
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    scene.pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.1"])).await?;
    status.is(&[CONFLICT]).await?;
    scene.pods.report("a", &[Nic::new("rdma-a", &["10.1.0.2"])]).await?;
    slices.are(&["rail0 10.1.0.1 b rs-", "rail0 10.1.0.2 a rs-"]).await?;
    status.is(&FINE).await?;

    scene.pods.report("a", &[Nic::new("rdma-a", &["10.1.0.1"])]).await?;
    status.is(&[CONFLICT]).await?;
    slices.are(&["rail0 10.1.0.1 b rs-"]).await?;
    scene.pods.phase("b", "Failed").await?;
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    status.is(&FINE).await.map(drop)
}

/// A restore from a backup brings pods back with the annotation that they had. They are not what it
/// says before Multus has written it.
#[tokio::test]
async fn a_pod_without_sandbox_has_no_address() -> Result<()> {
    let scene = Scene::new("restored").await?;
    scene.network("rdma-a").await?;
    let mut spec = infer();
    spec["publishNotReadyAddresses"] = json!(true);
    scene.service("infer", spec).await?;
    let (slices, status) = (scene.slices("infer")?, scene.status("infer")?);
    let waits = |name: &str| Pod::new(name).nic("rdma-a", &["10.1.0.1"]);
    scene.pods.create(waits("old")).await?;
    scene.pods.create(waits("queued").with("nodeName", json!(null))).await?;
    let said = ["1 of 2 pods are not scheduled yet (queued)", "1 of 2 pods wait for their network", "(old)"];
    status.explains("Programmed=True Programmed", &said).await?;
    status.is(&["EndpointsReady=False NoAddresses"]).await?;
    scene.pods.start(Pod::new("new").nic("rdma-a", &["10.1.0.1"])).await?;
    slices.are(&["rail0 10.1.0.1 new rs-"]).await?;
    status.is(&FINE).await?;

    scene.pods.run("old").await?;
    status.is(&[CONFLICT]).await?;
    scene.pods.report("old", &[Nic::new("rdma-a", &["10.1.0.2"])]).await?;
    slices.are(&["rail0 10.1.0.1 new rs-", "rail0 10.1.0.2 old r--"]).await?;
    status.is(&FINE).await.map(drop)
}

/// Tenant b lists the whole network of tenant a in the annotation of a pod of its own.
#[tokio::test]
async fn a_pod_of_another_namespace_takes_no_address_away_and_is_not_named() -> Result<()> {
    let (tenant, squatter) = (Scene::with_service("tenant").await?, Scene::new("squatter").await?);
    let network = format!("{}/rdma-a", tenant.namespace.name());
    let addresses: Vec<String> = (0..16).map(|number| format!("10.1.0.{number}")).collect();
    let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
    squatter.pods.create(Pod::new("squat").nic(&network, &all)).await?;
    tenant.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    let (slices, status) = (tenant.slices("infer")?, tenant.status("infer")?);
    slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
    status.is(&FINE).await?;

    for is_ready in [false, true] {
        squatter.pods.run("squat").await?;
        squatter.pods.ready("squat", is_ready).await?;
        let message =
            status.explains("AddressConflict=True OtherNamespace", &["10.1.0.1"]).await?.to_string();
        ensure!(!message.contains("squat"), "{message}");
        slices.are(&["rail0 10.1.0.1 a rs-"]).await?;
        tenant.answers("infer", "A", &["10.1.0.1"]).await?;
    }
    squatter.pods.remove("squat").await?;
    status.is(&FINE).await.map(drop)
}

#[tokio::test]
async fn services_share_a_conflict_and_networks_do_not() -> Result<()> {
    let scene = Scene::with_service("shared").await?;
    scene.network("rdma-b").await?;
    let mut spec = infer();
    spec["selector"] = json!({"matchLabels": {"app": "train"}});
    scene.service("train", spec).await?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.slices("infer")?.are(&["rail0 10.1.0.1 a rs-"]).await?;
    // A pod of another service has the address of this one's, and one of its own on another
    // network.
    let nics = [Nic::new("rdma-a", &["10.1.0.1"]), Nic::new("rdma-b", &["10.1.0.1"]).interface("net2")];
    scene.pods.start(Pod::new("b").label("app", "train").nics(&nics)).await?;
    scene.status("infer")?.is(&[CONFLICT]).await?;
    scene.status("train")?.is(&[CONFLICT]).await?;
    scene.slices("train")?.are::<&str>(&[]).await?;
    let rails = json!([{"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-b", "alias": "rail1"}]);
    scene.edit_service("train", json!({"spec": {"networks": rails}})).await?;
    scene.slices("train")?.are(&["rail1 10.1.0.1 b rs-"]).await?;
    scene.pods.remove("a").await?;
    scene.slices("train")?.are(&["rail0 10.1.0.1 b rs-", "rail1 10.1.0.1 b rs-"]).await?;
    scene.status("infer")?.is(&FINE).await?;
    scene.status("train")?.is(&FINE).await.map(drop)
}
