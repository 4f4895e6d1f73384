//! From labelled pods with Multus' annotation to slices, status and answers.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use multinet_testing::pods::{NETWORK_STATUS, Nic, Pod};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::versions;
use multinet_testing::status::FINE;
use multinet_testing::wait::eventually;
use serde_json::json;

use crate::controller::stage::{Scene, infer, service};

#[tokio::test]
async fn a_slice_says_all_that_is_known_of_a_pod() -> Result<()> {
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
        "triggered at {trigger}, made after {before}"
    );

    // Once it has changed, the API server keeps no books of its fields.
    scene.pods.ready("infer-x2v5k", false).await?;
    slices.are(&["rail0 192.168.131.5 infer-x2v5k ---"]).await?;
    let books = slices.only().await?.managed_fields().to_vec();
    ensure!(books.is_empty(), "managedFields {books:?}");
    Ok(())
}

#[tokio::test]
async fn what_slices_say_is_answered_and_counted() -> Result<()> {
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
    for said in ["rdma=mlx5_2", "pci=0000:18:00.2", "if=net1", "node=gpu-1", "zone=a"] {
        ensure!(text.contains(said), "no {said} in\n{text}");
    }
    // The writer's own count, to which other tests add.
    let controller = &scene.stage.controller;
    let created =
        r#"multinet_controller_writes_total{kind="MultiNetworkEndpointSlice",verb="create",result="ok"}"#;
    ensure!(controller.metric(created).await? >= 2, "two slices were not created");
    Ok(())
}

#[tokio::test]
async fn every_way_to_report_an_interface_is_understood() -> Result<()> {
    let scene = Scene::new("reports").await?;
    for network in ["rdma-a", "rdma-b"] {
        scene.network(network).await?;
    }
    let mut spec = infer();
    spec["networks"] = json!([{"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-b", "alias": "rail1"}]);
    scene.service("infer", spec).await?;
    let full = format!("{}/rdma-b", scene.namespace.name());
    // A bare name and a full one; one network twice; a network that the service does not have; dual
    // stack.
    let nics = [
        Nic::new("rdma-a", &["10.1.0.1", "fd00:1::1"]),
        Nic::new("rdma-a", &["10.1.0.2"]).interface("net2"),
        Nic::new(&full, &["10.2.0.1"]).interface("net3"),
        Nic::new("elsewhere/rdma-b", &["10.3.0.1"]).interface("net4"),
    ];
    scene.pods.start(Pod::new("a").nics(&nics)).await?;
    // What Multus wrote until 2020.
    let old = json!([{"name": "rdma-a", "interface": "net1", "ips": ["10.1.0.9"]}]).to_string();
    scene.pods.start(Pod::new("old").annotation("k8s.v1.cni.cncf.io/networks-status", &old)).await?;
    let slices = scene.slices("infer")?;
    let a = ["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 a rs-", "rail0 fd00:1::1 a rs-", "rail1 10.2.0.1 a rs-"];
    slices.are(&[a.as_slice(), &["rail0 10.1.0.9 old rs-"]].concat()).await?;
    scene.answers("rail1._net.infer", "A", &["10.2.0.1"]).await?;

    // The new annotation comes beside the old one, and counts.
    scene.pods.report("old", &[Nic::new("rdma-a", &["10.1.0.8"])]).await?;
    slices.are(&[a.as_slice(), &["rail0 10.1.0.8 old rs-"]].concat()).await?;
    scene.pods.annotate("old", NETWORK_STATUS, None).await?;
    slices.are(&[a.as_slice(), &["rail0 10.1.0.9 old rs-"]].concat()).await?;

    // One family is not wanted any more.
    scene.edit_service("infer", json!({"spec": {"ipFamilies": ["IPv6"]}})).await?;
    slices.are(&["rail0 fd00:1::1 a rs-"]).await?;
    scene.answers("infer", "AAAA", &["fd00:1::1"]).await
}

#[tokio::test]
async fn services_select_as_kubernetes_does() -> Result<()> {
    let scene = Scene::new("select").await?;
    scene.network("rdma-a").await?;
    let expression = |key, operator, values: &[&str]| {
        let mut expression = json!({"key": key, "operator": operator});
        if !values.is_empty() {
            expression["values"] = json!(values);
        }
        json!({"matchExpressions": [expression]})
    };
    let selectors = [
        ("all", json!({}), ["a", "b", "c"].as_slice()),
        ("in", expression("tier", "In", &["front", "back"]), &["a", "b"]),
        ("not-in", expression("tier", "NotIn", &["front"]), &["b", "c"]),
        ("exists", expression("tier", "Exists", &[]), &["a", "b"]),
        ("exists-not", expression("tier", "DoesNotExist", &[]), &["c"]),
        ("label", json!({"matchLabels": {"tier": "front"}}), &["a"]),
    ];
    for (name, selector, _) in &selectors {
        let mut spec = infer();
        spec["selector"] = selector.clone();
        scene.service(name, spec).await?;
    }
    scene.pods.start(Pod::new("a").label("tier", "front").nic("rdma-a", &["10.1.0.1"])).await?;
    scene.pods.start(Pod::new("b").label("tier", "back").nic("rdma-a", &["10.1.0.2"])).await?;
    scene.pods.start(Pod::new("c").nic("rdma-a", &["10.1.0.3"])).await?;
    for (name, _, pods) in selectors {
        let line = |pod: &&str| format!("rail0 10.1.0.{} {pod} rs-", pod.as_bytes()[0] - b'a' + 1);
        let lines: Vec<String> = pods.iter().map(line).collect();
        scene.slices(name)?.are(&lines).await.with_context(|| format!("service {name}"))?;
    }
    // A pod of another namespace is not selected.
    let other = Scene::new("select-other").await?;
    other.pods.start(Pod::new("d").nic(&format!("{}/rdma-a", scene.namespace.name()), &["10.1.0.4"])).await?;
    scene.pods.label("c", "tier", Some("front")).await?;
    scene.slices("label")?.are(&["rail0 10.1.0.1 a rs-", "rail0 10.1.0.3 c rs-"]).await?;
    scene.slices("all")?.are(&["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b rs-", "rail0 10.1.0.3 c rs-"]).await
}

#[tokio::test]
async fn a_change_of_one_endpoint_writes_one_slice() -> Result<()> {
    const PODS: u8 = 130;
    let scene = Scene::with_service("one").await?;
    let pod = |i: u8| {
        Pod::new(&format!("p{i}")).nic("rdma-a", &[&format!("10.1.0.{i}"), &format!("fd00:1::{i:x}")])
    };
    scene.pods.create_all((1..=PODS).map(pod)).await?;
    scene.pods.give_sandboxes((1..=PODS).map(|i| format!("p{i}"))).await?;
    let slices = scene.slices("infer")?;
    let lines = |ready: &[u8]| -> Vec<String> {
        let each = |i: u8| {
            let flags = if ready.contains(&i) { "rs-" } else { "---" };
            [format!("rail0 10.1.0.{i} p{i} {flags}"), format!("rail0 fd00:1::{i:x} p{i} {flags}")]
        };
        (1..=PODS).flat_map(each).collect()
    };
    slices.are(&lines(&[])).await?;
    let mut before = slices.versions().await?;
    ensure!(before.len() >= 4, "all in {} slices", before.len());

    for (i, ready) in [(1, true), (2, true), (1, false), (3, true), (2, false), (1, true)] {
        // Nothing more came of the change before.
        ensure!(slices.versions().await? == before, "written once more, later");
        scene.pods.ready(&format!("p{i}"), ready).await?;
        let flags = if ready { "rs-" } else { "---" };
        let expected =
            [format!("rail0 10.1.0.{i} p{i} {flags}"), format!("rail0 fd00:1::{i:x} p{i} {flags}")];
        let after = eventually("both endpoints of the pod to change", BOUND, async || {
            let found = slices.list().await?;
            let lines = slices.lines(&found);
            ensure!(expected.iter().all(|line| lines.contains(line)), "not yet");
            versions(&found)
        })
        .await?;
        let written = after.iter().filter(|(name, version)| before.get(*name) != Some(version)).count();
        ensure!(
            after.len() == before.len() && written == 2,
            "{written} slices instead of one for each family"
        );
        before = after;
    }
    Ok(())
}
