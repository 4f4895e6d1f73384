//! Pods and services that make no sense: a clear word about it, and everything else as before.

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{NETWORK_STATUS, Nic, Pod, network_status};
use multinet_testing::status::{FINE, said};
use serde_json::json;

use crate::controller::stage::{Scene, infer};

/// How many bytes all annotations of an object may have, names and values.
const ANNOTATIONS: usize = 256 * 1024;

const UNREADABLE: &str = "NetworkStatusUnreadable";
const REJECTED: &str = "NetworkStatusRejected";

/// A service with one good pod, which has to stay in DNS whatever else there is.
async fn with_good_pod(prefix: &str) -> Result<Scene> {
    let scene = Scene::with_service(prefix).await?;
    scene.pods.start(Pod::new("good").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.slices("infer")?.are(&[GOOD]).await?;
    Ok(scene)
}

const GOOD: &str = "rail0 10.1.0.1 good rs-";

#[tokio::test]
async fn a_selector_that_matches_nothing() -> Result<()> {
    let scene = with_good_pod("nothing").await?;
    let mut spec = infer();
    spec["selector"] = json!({"matchLabels": {"app": "typo"}});
    scene.service("empty", spec).await?;
    let status = scene.status("empty")?;
    status.is(&FINE).await?;
    status
        .explains("Programmed=True Programmed", &["selector matches no pod", scene.namespace.name()])
        .await?;
    status.counts(0, 0).await?;
    scene.slices("empty")?.are::<&str>(&[]).await?;
    scene.answers("empty", "A", &[]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await
}

#[tokio::test]
async fn an_annotation_that_is_no_json() -> Result<()> {
    let scene = with_good_pod("malformed").await?;
    let slices = scene.slices("infer")?;
    scene.pods.start(Pod::new("bad").nic("rdma-a", &["10.1.0.2"])).await?;
    slices.are(&[GOOD, "rail0 10.1.0.2 bad rs-"]).await?;

    // The last readable addresses are not kept, because they may be out of date.
    let cut = r#"[{"name": "rdma-a", "interface": "net1", "ips": ["10.1.0.2"#;
    scene.pods.annotate("bad", NETWORK_STATUS, Some(cut)).await?;
    slices.are(&[GOOD]).await?;
    let note =
        scene.events.warn("Pod", "bad", UNREADABLE, &[NETWORK_STATUS, "column 58", "delete the pod"]).await?;
    let regarding = note.regarding.unwrap_or_default();
    ensure!(regarding.uid == scene.pods.api().get("bad").await?.uid(), "{regarding:?}");
    let status = scene.status("infer")?;
    status.explains("Programmed=True Programmed", &["1 of 2 pods", "cannot be read", "bad"]).await?;
    status.counts(1, 1).await?;
    let controller = &scene.stage.controller;
    ensure!(controller.metric("multinet_controller_unreadable_annotations").await? > 0, "none is counted");

    // Other shapes that are none.
    let shapes = [
        "{}",
        "true",
        r#"{"name": "rdma-a"}"#,
        r#"[{"name": 7}]"#,
        r#"[{"name": "rdma-a", "ips": {"v4": "10.1.0.2"}}]"#,
    ];
    for shape in shapes {
        scene.pods.annotate("bad", NETWORK_STATUS, Some(shape)).await?;
        scene.pods.ready("good", false).await?;
        slices.are(&["rail0 10.1.0.1 good ---"]).await?;
        scene.pods.ready("good", true).await?;
        slices.are(&[GOOD]).await?;
    }
    // Empty ones say that there is nothing, which is fine.
    scene.pods.annotate("bad", NETWORK_STATUS, Some("[]")).await?;
    status.explains("Programmed=True Programmed", &["1 of 2 pods are not attached (bad)"]).await?;
    scene.pods.report("bad", &[Nic::new("rdma-a", &["10.1.0.3"])]).await?;
    slices.are(&[GOOD, "rail0 10.1.0.3 bad rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.3"]).await
}

#[tokio::test]
async fn addresses_that_are_none() -> Result<()> {
    let scene = with_good_pod("addresses").await?;
    let rejected = [
        ("word", "rail0", "not an IP address"),
        ("octet", "10.0.0.999", "not an IP address"),
        ("mapped", "::ffff:10.1.0.9", "IPv4-mapped"),
        ("unspecified", "0.0.0.0", "unspecified"),
        ("loopback", "127.0.0.1", "loopback"),
        ("multicast", "ff02::1", "multicast"),
        ("zoned", "fd00::1%net1", "zone"),
    ];
    let mut lines = vec![GOOD.to_owned()];
    for (number, (name, address, _)) in rejected.iter().enumerate() {
        let other = format!("10.1.0.{}", number + 10);
        scene.pods.start(Pod::new(name).nic("rdma-a", &[address, &other])).await?;
        lines.push(format!("rail0 {other} {name} rs-"));
    }
    // One of each is published, the rest is told of.
    scene.slices("infer")?.are(&lines).await?;
    for (name, address, why) in rejected {
        scene.events.warn("Pod", name, REJECTED, &[address, why, "net1"]).await?;
    }
    scene.status("infer")?.is(&FINE).await?;

    // Pods without any valid address are left out. Link-local addresses are ignored without a note,
    // because every interface has one.
    scene.pods.start(Pod::new("only").nic("rdma-a", &["nonsense"])).await?;
    scene.pods.start(Pod::new("local").nic("rdma-a", &["fe80::1"])).await?;
    let said = [
        "1 of 10 pods are attached without an address (only)",
        "1 of 10 pods have a link-local address only (local)",
    ];
    scene.status("infer")?.explains("Programmed=True Programmed", &said).await?;
    scene.events.warn("Pod", "only", REJECTED, &["nonsense"]).await?;
    scene.slices("infer")?.are(&lines).await?;
    ensure!(scene.events.about("Pod", "local").await?.is_empty(), "said of a link-local address");
    Ok(())
}

#[tokio::test]
async fn addresses_that_come_twice() -> Result<()> {
    let scene = with_good_pod("twice").await?;
    let nics = [
        Nic::new("rdma-a", &["10.1.0.2", "10.1.0.2", "fd00::2", "FD00:0:0::2"]),
        Nic::new("rdma-a", &["10.1.0.2"]).interface("net2"),
    ];
    scene.pods.start(Pod::new("twice").nics(&nics)).await?;
    scene.slices("infer")?.are(&[GOOD, "rail0 10.1.0.2 twice rs-", "rail0 fd00::2 twice rs-"]).await?;
    scene.status("infer")?.is(&FINE).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.2"]).await
}

#[tokio::test]
async fn pods_that_have_no_second_nic() -> Result<()> {
    let scene = with_good_pod("none").await?;
    let slices = scene.slices("infer")?;
    // Annotations of a pod in its node's network, and of one that has ended, are history.
    let host = Pod::new("host").with("hostNetwork", json!(true)).nic("rdma-a", &["10.1.0.2"]);
    scene.pods.start(host).await?;
    for (name, phase) in [("ended", "Succeeded"), ("crashed", "Failed")] {
        scene.pods.start(Pod::new(name).nic("rdma-a", &["10.1.0.3"])).await?;
        scene.pods.phase(name, phase).await?;
    }
    scene.pods.start(Pod::new("plain")).await?;
    let status = scene.status("infer")?;
    let said =
        ["1 of 3 pods are not attached (plain)", "1 of 3 pods use their node's network (hostNetwork) (host)"];
    status.explains("Programmed=True Programmed", &said).await?;
    status.is(&FINE).await?;
    slices.are(&[GOOD]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await
}

#[tokio::test]
async fn an_annotation_of_256_kibibytes() -> Result<()> {
    let scene = with_good_pod("large").await?;
    let slices = scene.slices("infer")?;
    let room = ANNOTATIONS - NETWORK_STATUS.len();

    // A valid one, with more interfaces than anybody has; and one that ends too early.
    let nics: Vec<Nic> = (0..1800)
        .map(|i: u32| {
            Nic::new("rdma-a", &[&format!("10.2.{}.{}", i / 250, i % 250 + 1)]).mac("ae:11:22:33:44:55")
        })
        .collect();
    let mut valid = network_status(&nics);
    ensure!(valid.len() < room, "{} bytes do not fit", valid.len());
    valid.push_str(&" ".repeat(room - valid.len()));
    scene.pods.start(Pod::new("valid").annotation(NETWORK_STATUS, &valid)).await?;
    let cut = format!("[{}", r#"{"name":"rdma-a","ips":["10.3.0.1"]},"#.repeat(room))[..room].to_owned();
    scene.pods.start(Pod::new("cut").annotation(NETWORK_STATUS, &cut)).await?;
    scene.pods.start(Pod::new("garbage").annotation(NETWORK_STATUS, &"\u{7}".repeat(room))).await?;

    for name in ["cut", "garbage"] {
        let event = scene.events.warn("Pod", name, UNREADABLE, &[]).await?;
        let note = event.note.unwrap_or_default();
        ensure!(note.len() < 512 && !note.contains('\u{7}'), "a note of {} bytes: {note:?}", note.len());
    }
    scene.events.warn("Pod", "valid", REJECTED, &["1736 attachments beyond the first 64"]).await?;
    let of_valid = (0..64).map(|i| format!("rail0 10.2.0.{} valid rs-", i + 1));
    let lines: Vec<String> = [GOOD.to_owned()].into_iter().chain(of_valid).collect();
    slices.are(&lines).await?;
    scene.status("infer")?.explains("Programmed=True Programmed", &["2 of 4 pods", "cannot be read"]).await?;
    let log = scene.stage.controller.log();
    ensure!(log.lines().all(|line| line.len() < 4096), "a line of the log has the annotation in it");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_not_said_endlessly() -> Result<()> {
    let scene = with_good_pod("endless").await?;
    scene.pods.start(Pod::new("bad").annotation(NETWORK_STATUS, "[")).await?;
    scene.events.warn("Pod", "bad", UNREADABLE, &[]).await?;

    // Fifty changes that have nothing to do with it.
    for i in 0..50 {
        scene.pods.ready(if i % 4 < 2 { "good" } else { "bad" }, i % 2 == 0).await?;
    }
    scene.pods.start(Pod::new("marker").nic("rdma-a", &["10.1.0.7"])).await?;
    scene.answers("infer", "A", &["10.1.0.7"]).await?;
    let events = scene.events.about("Pod", "bad").await?;
    ensure!(events.len() == 1 && events[0].series.is_none(), "said again: {:#?}", said(&events));

    // Fifty changes between good and bad, as from two writers that fight.
    let good = network_status(&[Nic::new("rdma-a", &["10.1.0.2"])]);
    for _ in 0..25 {
        scene.pods.annotate("bad", NETWORK_STATUS, Some(&good)).await?;
        scene.pods.annotate("bad", NETWORK_STATUS, Some("[")).await?;
    }
    scene.pods.remove("marker").await?;
    scene.slices("infer")?.are(&["rail0 10.1.0.1 good ---"]).await?;
    let events = scene.events.about("Pod", "bad").await?;
    ensure!(events.len() == 1, "{} events: {:#?}", events.len(), said(&events));
    ensure!(scene.events.count("Pod", "bad", UNREADABLE).await? <= 26, "{:#?}", said(&events));
    ensure!(scene.events.about(SERVICE, "infer").await?.is_empty(), "said of the service, too");
    Ok(())
}
