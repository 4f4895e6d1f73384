//! More of everything than is usual.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::dns::{Query, Transport};
use multinet_testing::pods::{Nic, Pod};
use multinet_testing::status::FINE;
use serde_json::{Value, json};

use crate::controller::stage::{Scene, infer};

/// How many endpoints the controller puts into a slice.
const LIMIT: usize = 25;

#[tokio::test]
async fn a_service_of_sixteen_networks() -> Result<()> {
    let scene = Scene::new("sixteen").await?;
    for i in 0..16 {
        scene.network(&format!("rdma-{i}")).await?;
    }
    let mut spec = infer();
    let networks = (0..16).map(|i| json!({"name": format!("rdma-{i}"), "alias": format!("rail{i}")}));
    spec["networks"] = networks.collect();
    scene.service("infer", spec).await?;
    let nics = |last: u8| -> Vec<Nic> {
        let nic = |i: u8| {
            let addresses = [format!("10.{i}.0.{last}"), format!("fd01:{:x}::{last:x}", i + 1)];
            Nic::new(&format!("rdma-{i}"), &addresses.each_ref().map(String::as_str))
                .interface(&format!("net{i}"))
        };
        (0..16).map(nic).collect()
    };
    for (name, last) in [("a", 1), ("b", 2), ("c", 3)] {
        scene.pods.start(Pod::new(name).hostname(name).nics(&nics(last))).await?;
    }
    let slices = scene.slices("infer")?;
    let mut lines = Vec::new();
    for i in 0..16 {
        for (name, last) in [("a", 1), ("b", 2), ("c", 3)] {
            lines.push(format!("rail{i} 10.{i}.0.{last} {name} rs-"));
            lines.push(format!("rail{i} fd01:{:x}::{last:x} {name} rs-", i + 1));
        }
    }
    slices.are(&lines).await?;
    scene.status("infer")?.is(&FINE).await?;
    scene.status("infer")?.counts(3, 3).await?;
    scene.answers("rail15._net.infer", "A", &["10.15.0.1", "10.15.0.2", "10.15.0.3"]).await?;
    scene.answers("b.rail7._net.infer", "AAAA", &["fd01:8::2"]).await?;

    scene.pods.terminate("b").await?;
    scene.answers("rail3._net.infer", "A", &["10.3.0.1", "10.3.0.3"]).await?;
    scene.pods.remove("b").await?;
    lines.retain(|line| !line.contains(" b "));
    slices.are(&lines).await
}

#[tokio::test]
async fn a_thousand_pods_behind_one_service() -> Result<()> {
    pods_behind_one_service(1000).await
}

#[tokio::test]
#[ignore = "make soak"]
async fn soak_five_thousand_pods_behind_one_service() -> Result<()> {
    pods_behind_one_service(5000).await
}

/// How many addresses fit into a message, of 16 bytes each.
const MESSAGE: usize = 4000;

async fn pods_behind_one_service(count: u32) -> Result<()> {
    let scene = Scene::new("thousands").await?;
    scene.network("rdma-a").await?;
    let mut spec = infer();
    // So that the pods need not be told to be ready, one by one.
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
    // Core fills slices as they come, too: a few more than the fewest possible are no fault.
    let fewest = count as usize / LIMIT;
    ensure!((fewest..=fewest * 3 / 2).contains(&sizes.len()), "{} slices of {sizes:?}", sizes.len());
    scene.status("infer")?.counts(u64::from(count), u64::from(count)).await?;

    // All of them are answered, over TCP at once.
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

    // One change writes one slice of many; another service is as quick as ever.
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

    // Some go at once.
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
