//! Services with hundreds of pods, and with thousands.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::dns::{Query, Transport};
use multinet_testing::pods::Pod;
use serde_json::{Value, json};

use crate::controller::stage::{Scene, infer};

/// Largest number of endpoints that the controller puts into a slice.
const LIMIT: usize = 25;

#[tokio::test]
async fn pods_of_one_service_are_published_in_full_slices() -> Result<()> {
    // More would keep the publishers of other tests busy, which write the keys of all services.
    pods_behind_one_service(300).await
}

#[tokio::test]
#[ignore = "make soak"]
async fn soak_five_thousand_pods_of_one_service_are_published_in_full_slices() -> Result<()> {
    pods_behind_one_service(5000).await
}

/// Number of IPv4 address records that certainly fit into a message over TCP; each takes 16 bytes.
const MESSAGE: usize = 4000;

async fn pods_behind_one_service(count: u32) -> Result<()> {
    let scene = Scene::new("thousands").await?;
    scene.network("rdma-a").await?;
    let mut spec = infer();
    // The test then need not report each pod as ready.
    spec["publishNotReadyAddresses"] = json!(true);
    scene.service("infer", spec).await?;
    let address = |i: u32| format!("10.{}.{}.{}", 100 + i / 62_500, i / 250 % 250, i % 250 + 1);
    let pod = |i: u32| Pod::new(&format!("p{i}")).nic("rdma-a", &[&address(i)]);
    scene.pods.create_all((0..count).map(pod)).await?;
    scene.pods.give_sandboxes((0..count).map(|i| format!("p{i}"))).await?;

    let slices = scene.slices("infer")?;
    let mut lines: Vec<String> = (0..count).map(|i| format!("rail0 {} p{i} r--", address(i))).collect();
    slices.are(&lines).await?;
    let found = slices.list().await?;
    let sizes: Vec<usize> =
        found.iter().map(|slice| slice.data["spec"]["endpoints"].as_array().map_or(0, Vec::len)).collect();
    ensure!(sizes.iter().all(|&size| size <= LIMIT), "slices of {sizes:?}");
    // Slices are filled as pods come, as in Kubernetes, so that there may be a few more than the
    // fewest possible.
    let fewest = count as usize / LIMIT;
    ensure!((fewest..=fewest * 3 / 2).contains(&sizes.len()), "{} slices of {sizes:?}", sizes.len());
    scene.status("infer")?.counts(u64::from(count), u64::from(count)).await?;

    // DNS answers all of them over TCP.
    let domain = scene.namespace.domain("infer");
    let expected: BTreeSet<String> = (0..count).map(address).collect();
    multinet_testing::wait::eventually(
        "all addresses in one answer",
        multinet_testing::replica::BOUND,
        async || {
            let query = Query::new(&domain, "A");
            let reply = ask(scene.stage.dns.dns(), Transport::Tcp, &query).await?;
            let found: BTreeSet<String> = reply.data().into_iter().collect();
            let is_full = found.len() >= expected.len().min(MESSAGE);
            ensure!(is_full && found.is_subset(&expected), "{} addresses", found.len());
            Ok(())
        },
    )
    .await?;

    // A change of one pod writes one slice, and other services are still followed.
    let before = slices.versions().await?;
    scene.pods.run("p77").await?;
    scene.pods.ready("p77", true).await?;
    lines[77] = format!("rail0 {} p77 rs-", address(77));
    slices.are(&lines).await?;
    let after = slices.versions().await?;
    let written: Vec<_> = after.iter().filter(|(name, version)| before.get(*name) != Some(version)).collect();
    ensure!(written.len() == 1 && after.len() == before.len(), "written: {written:?}");
    scene
        .service(
            "small",
            json!({"selector": {"matchLabels": {"app": "small"}}, "networks": [{"name": "rdma-a"}]}),
        )
        .await?;
    scene.pods.start(Pod::new("small").label("app", "small").nic("rdma-a", &["10.200.0.1"])).await?;
    scene.answers("small", "A", &["10.200.0.1"]).await?;

    // Many pods are removed at once.
    for chunk in (0..count / 20).collect::<Vec<_>>().chunks(50) {
        futures::future::try_join_all(chunk.iter().map(|i| {
            let name = format!("p{i}");
            let pods = scene.pods.clone();
            async move { pods.remove(&name).await }
        }))
        .await
        .context("removing pods")?;
    }
    slices.are(&lines.split_off(count as usize / 20)).await?;
    let gone: Value = json!({"ready": count - count / 20, "total": count - count / 20});
    let status =
        scene.status("infer")?.counts(u64::from(count - count / 20), u64::from(count - count / 20)).await?;
    ensure!(status["endpoints"] == gone, "{status}");
    Ok(())
}
