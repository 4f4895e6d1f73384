//! The way of labelled pods with Multus' annotation into slices, status and answers.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use multinet_testing::pods::{Nic, Pod};
use multinet_testing::status::FINE;
use serde_json::json;

use crate::controller::stage::{Scene, infer, service};

#[tokio::test]
async fn a_slice_contains_all_details_of_a_pod() -> Result<()> {
    let scene = Scene::new("known").await?;
    scene.network("rdma-a").await?;
    let mut manifest = service("infer", infer());
    manifest["metadata"]["labels"] = json!({"team": "vision"});
    let applied = scene.apply(manifest).await?;
    let network = format!("{}/rdma-a", scene.namespace.name());
    let nic = Nic::new(&network, &["192.168.131.5"]).mac("AE:11:22:33:44:55").pci("0000:18:00.2", "mlx5_2");
    let before = Timestamp::now();
    let pod = scene.pods.start(Pod::new("infer-x2v5k").hostname("infer-0").nics(&[nic])).await?;

    let slices = scene.slices("infer")?;
    slices.are(&["rail0 192.168.131.5 infer-x2v5k rs-"]).await?;
    let slice = slices.only().await?;
    let uid = pod.uid().context("a pod without uid")?;
    let expected = json!({
        "addressType": "IPv4",
        "network": {
            "kind": "NetworkAttachmentDefinition",
            "name": "rdma-a",
            "namespace": scene.namespace.name(),
            "alias": "rail0",
        },
        "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP", "appProtocol": "multinet-rdma"}],
        "endpoints": [{
            "addresses": ["192.168.131.5"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "infer-0",
            "nodeName": "gpu-1",
            "zone": "a",
            "targetRef": {
                "kind": "Pod",
                "namespace": scene.namespace.name(),
                "name": "infer-x2v5k",
                "uid": uid,
            },
            "device": {
                "interface": "net1",
                "mac": "ae:11:22:33:44:55",
                "rdmaDevice": "mlx5_2",
                "pciAddress": "0000:18:00.2",
            },
        }],
    });
    ensure!(slice.data["spec"] == expected, "the slice is {:#}", slice.data["spec"]);
    let labels = json!({
        "multinetwork.numaproj.io/service-name": "infer",
        "multinetwork.numaproj.io/managed-by": "multinet-controller",
        "team": "vision",
    });
    ensure!(json!(slice.labels()) == labels, "labels {:?}", slice.labels());
    let owner = json!([{
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "name": "infer",
        "uid": applied.uid(),
        "controller": true,
    }]);
    ensure!(json!(slice.owner_references()) == owner, "owners {:?}", slice.owner_references());
    ensure!(slice.finalizers().is_empty(), "finalizers {:?}", slice.finalizers());

    let trigger = slice.annotations().get("multinetwork.numaproj.io/last-change-trigger-time");
    let trigger: Timestamp = trigger.context("no annotation of the trigger time")?.parse()?;
    // The API server keeps times of transitions in whole seconds.
    let second = SignedDuration::from_secs(1);
    ensure!(
        (before - second..=Timestamp::now()).contains(&trigger),
        "the trigger time is {trigger}, but the pod was created after {before}"
    );

    // The controller's updates ask the API server not to keep managedFields.
    scene.pods.ready("infer-x2v5k", false).await?;
    slices.are(&["rail0 192.168.131.5 infer-x2v5k ---"]).await?;
    let managed = slices.only().await?.managed_fields().to_vec();
    ensure!(managed.is_empty(), "managedFields {managed:?}");
    Ok(())
}

#[tokio::test]
async fn endpoints_in_slices_are_answered_and_counted() -> Result<()> {
    let scene = Scene::with_service("answered").await?;
    let nic =
        |last: u8| Nic::new("rdma-a", &[&format!("192.168.131.{last}"), &format!("fd00:111::{last:x}")]);
    scene.pods.start(Pod::new("a").hostname("infer-0").nics(&[nic(1).pci("0000:18:00.2", "mlx5_2")])).await?;
    scene.pods.start(Pod::new("b").nics(&[nic(2)]).node("gpu-2")).await?;
    scene.pods.create(Pod::new("c").nics(&[nic(3)])).await?;
    scene.pods.run("c").await?;

    let status = scene.status("infer")?.counts(2, 3).await?;
    let rails = json!([{"alias": "rail0", "ready": 2, "total": 3, "missing": 0}]);
    ensure!(status["networks"] == rails, "networks {}", status["networks"]);
    scene.status("infer")?.is(&["EndpointsReady=True EndpointsReady"]).await?;
    let domain = scene.namespace.domain("infer");
    ensure!(status["hostname"] == domain.as_str(), "hostname {}", status["hostname"]);
    scene.status("infer")?.is(&FINE).await?;
    scene.answers("infer", "A", &["192.168.131.1", "192.168.131.2"]).await?;
    scene.answers("infer", "AAAA", &["fd00:111::1", "fd00:111::2"]).await?;
    scene.answers("infer-0.infer", "A", &["192.168.131.1"]).await?;
    scene.answers("rail0._net.infer", "A", &["192.168.131.1", "192.168.131.2"]).await?;
    scene.answers("192-168-131-2.infer", "A", &["192.168.131.2"]).await?;
    scene.answers("192-168-131-3.infer", "A", &[]).await?;
    let dns = &scene.stage.dns;
    let reply = dns.ask(&format!("_rdma._tcp.{domain}"), "SRV").await?;
    let targets = reply.data();
    ensure!(
        targets.iter().any(|data| data.ends_with(&format!(" 18515 infer-0.{domain}."))),
        "{}",
        reply.text("")
    );
    let text = dns.ask(&format!("infer-0.{domain}"), "TXT").await?.data().join("\n");
    for pair in ["rdma=mlx5_2", "pci=0000:18:00.2", "if=net1", "node=gpu-1", "zone=a"] {
        ensure!(text.contains(pair), "no {pair} in\n{text}");
    }
    // This counter of the shared controller also includes the writes for other tests.
    let controller = &scene.stage.controller;
    let created =
        r#"multinet_controller_writes_total{kind="MultiNetworkEndpointSlice",verb="create",result="ok"}"#;
    ensure!(controller.metric(created).await? >= 2, "the metric counts fewer than two created slices");
    Ok(())
}
