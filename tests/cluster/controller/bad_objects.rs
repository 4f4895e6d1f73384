//! Pods with unreadable annotations: they are reported, and other pods are not affected.

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use multinet_testing::pods::{NETWORK_STATUS, Nic, Pod, network_status};

use crate::controller::stage::Scene;

/// Largest total size of an object's annotations, names and values, in bytes.
const ANNOTATIONS: usize = 256 * 1024;

const UNREADABLE: &str = "NetworkStatusUnreadable";
const REJECTED: &str = "NetworkStatusRejected";

/// Creates a service with one good pod, which has to stay in DNS whatever other pods report.
async fn with_good_pod(prefix: &str) -> Result<Scene> {
    let scene = Scene::with_service(prefix).await?;
    scene.pods.start(Pod::new("good").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.slices("infer")?.are(&[GOOD]).await?;
    Ok(scene)
}

const GOOD: &str = "rail0 10.1.0.1 good rs-";

#[tokio::test]
async fn an_unreadable_annotation_removes_only_its_own_pod() -> Result<()> {
    let scene = with_good_pod("malformed").await?;
    let slices = scene.slices("infer")?;
    scene.pods.start(Pod::new("bad").nic("rdma-a", &["10.1.0.2"])).await?;
    slices.are(&[GOOD, "rail0 10.1.0.2 bad rs-"]).await?;

    // The last readable addresses are not kept, because they may be outdated.
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
    ensure!(controller.metric("multinet_controller_unreadable_annotations").await? > 0, "not counted");

    scene.pods.report("bad", &[Nic::new("rdma-a", &["10.1.0.3"])]).await?;
    slices.are(&[GOOD, "rail0 10.1.0.3 bad rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1", "10.1.0.3"]).await
}

#[tokio::test]
async fn a_huge_annotation_results_in_short_events_and_log_lines() -> Result<()> {
    let scene = with_good_pod("large").await?;
    let slices = scene.slices("infer")?;
    let room = ANNOTATIONS - NETWORK_STATUS.len();

    // One annotation is valid, with far more interfaces than any real pod has; one ends too early;
    // one consists of control characters.
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
    ensure!(log.lines().all(|line| line.len() < 4096), "a line of the log contains the annotation");
    Ok(())
}
