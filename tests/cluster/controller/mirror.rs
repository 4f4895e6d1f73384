//! Mirrors: the ready addresses of a service at a core Service, which the cluster's own DNS serves.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service as CoreService;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use multinet_testing::ask::ask_udp;
use multinet_testing::coredns::CoreDns;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{CORE_MANAGED_BY, CORE_SERVICE_NAME, SERVICE_NAME, Slices};
use multinet_testing::status::FINE;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::{Scene, infer};

const UNUSABLE: &str = "ResolvedRefs=False MirrorNotUsable";

/// Returns a core Service.
fn core(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Returns a headless core Service without a selector, to which slices can be mirrored.
fn headless(name: &str) -> Value {
    core(name, json!({"clusterIP": "None", "ports": [{"name": "rdma", "port": 18515}]}))
}

/// Creates a namespace with the networks `rdma-a` and `rdma-b`, and the service `infer` on both,
/// mirrored to `infer-fast`, or one network of it.
async fn scene_with_mirror(prefix: &str, network: Option<&str>) -> Result<Scene> {
    let scene = Scene::new(prefix).await?;
    scene.network("rdma-a").await?;
    scene.network("rdma-b").await?;
    let mut spec = infer();
    spec["networks"] = json!([{"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-b", "alias": "rail1"}]);
    spec["mirror"] = json!({"serviceName": "infer-fast"});
    if let Some(network) = network {
        spec["mirror"]["network"] = json!(network);
    }
    scene.service("infer", spec).await?;
    Ok(scene)
}

async fn edit_core(scene: &Scene, name: &str, patch: Value) -> Result<()> {
    let services: Api<CoreService> =
        Api::namespaced(scene.namespace.objects().client(), scene.namespace.name());
    services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn nics(last: u8) -> [Nic; 2] {
    [
        Nic::new("rdma-a", &[&format!("10.1.0.{last}"), &format!("fd00:1::{last:x}")]),
        Nic::new("rdma-b", &[&format!("10.2.0.{last}")]).interface("net2"),
    ]
}

#[tokio::test]
async fn a_stock_coredns_answers_with_mirrored_addresses() -> Result<()> {
    let scene = scene_with_mirror("mirror", None).await?;
    scene.apply(headless("infer-fast")).await?;
    scene.pods.start(Pod::new("a").hostname("infer-0").nics(&nics(1))).await?;
    scene.pods.start(Pod::new("b").nics(&nics(2))).await?;
    scene.pods.create(Pod::new("c").nics(&nics(3))).await?;
    scene.pods.run("c").await?;

    let mirrors = scene.mirrors("infer-fast");
    let of = |pod: &str, last: u8| {
        ["10.1.0.", "10.2.0.", "fd00:1::"].map(|network| format!("{network}{last} {pod} rs-"))
    };
    mirrors.are(&[of("a", 1), of("b", 2)].concat()).await?;
    scene.status("infer")?.is(&FINE).await?;
    for slice in mirrors.list().await? {
        let owner = &slice.owner_references()[0];
        ensure!((owner.kind.as_str(), owner.name.as_str()) == (SERVICE, "infer"), "{owner:?}");
        let ports =
            json!([{"name": "rdma", "port": 18515, "protocol": "TCP", "appProtocol": "multinet-rdma"}]);
        ensure!(json!(slice.ports) == ports, "{:?}", slice.ports);
    }

    let kubeconfig = scene.stage.cluster.admin_kubeconfig();
    let plugins = format!("kubernetes cluster.local {{\n    kubeconfig {} test\n  }}", kubeconfig.display());
    let coredns = CoreDns::start(&[("cluster.local", &plugins)]).await?;
    let name = format!("infer-fast.{}.svc.cluster.local", scene.namespace.name());
    let answers = async |name: &str, rtype: &str, data: &[&str]| {
        eventually(&format!("CoreDNS to answer {name} {rtype} with {data:?}"), BOUND, async || {
            let reply = ask_udp(coredns.address(), name, rtype).await?;
            ensure!(reply.data() == data, "{}", reply.text(""));
            Ok(())
        })
        .await
    };
    answers(&name, "A", &["10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2"]).await?;
    answers(&name, "AAAA", &["fd00:1::1", "fd00:1::2"]).await?;
    answers(&format!("infer-0.{name}"), "A", &["10.1.0.1", "10.2.0.1"]).await?;
    scene.pods.ready("b", false).await?;
    answers(&name, "A", &["10.1.0.1", "10.2.0.1"]).await?;
    scene.pods.ready("c", true).await?;
    answers(&name, "A", &["10.1.0.1", "10.1.0.3", "10.2.0.1", "10.2.0.3"]).await?;
    scene.pods.terminate("a").await?;
    answers(&name, "A", &["10.1.0.3", "10.2.0.3"]).await?;
    // Both DNS servers give the same answer.
    scene.answers("infer", "A", &["10.1.0.3", "10.2.0.3"]).await
}

/// The API server rejects a whole core slice if one address is link-local.
#[tokio::test]
async fn link_local_addresses_stay_out_of_core_slices() -> Result<()> {
    let scene = scene_with_mirror("local", Some("rail0")).await?;
    scene.apply(headless("infer-fast")).await?;
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1", "169.254.7.1", "fe80::1"])).await?;
    let (mirrors, status) = (scene.mirrors("infer-fast"), scene.status("infer")?);
    let slices = scene.slices("infer")?;
    slices.are(&["rail0 10.1.0.1 a rs-", "rail0 169.254.7.1 a rs-"]).await?;
    mirrors.are(&["10.1.0.1 a rs-"]).await?;
    status.is(&FINE).await?;
    let why = ["the mirror leaves out 169.254.7.1", "no link-local addresses"];
    status.explains("Programmed=True Programmed", &why).await?;
    scene.answers("infer", "A", &["10.1.0.1", "169.254.7.1"]).await?;

    // Other addresses are still mirrored.
    scene.pods.report("a", &[Nic::new("rdma-a", &["169.254.7.1"])]).await?;
    scene.pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.2"])).await?;
    mirrors.are(&["10.1.0.2 b rs-"]).await?;
    slices.are(&["rail0 10.1.0.2 b rs-", "rail0 169.254.7.1 a rs-"]).await
}

#[tokio::test]
async fn a_mirror_follows_the_service_that_the_spec_names() -> Result<()> {
    let scene = scene_with_mirror("moves", Some("rail0")).await?;
    scene.pods.start(Pod::new("a").nics(&nics(1))).await?;
    let status = scene.status("infer")?;
    // The Service is created last.
    status.explains("ResolvedRefs=False MirrorNotFound", &["infer-fast", "clusterIP: None"]).await?;
    scene.events.warn(SERVICE, "infer", "MirrorNotFound", &["infer-fast"]).await?;
    let lines = ["10.1.0.1 a rs-", "fd00:1::1 a rs-"];
    scene
        .slices("infer")?
        .are(&["rail0 10.1.0.1 a rs-", "rail0 fd00:1::1 a rs-", "rail1 10.2.0.1 a rs-"])
        .await?;
    scene.apply(headless("infer-fast")).await?;
    scene.mirrors("infer-fast").are(&lines).await?;
    status.is(&FINE).await?;

    // Another writer's slice of the same Service must stay as it is.
    let foreign = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "by-hand", "labels": {CORE_SERVICE_NAME: "infer-fast", CORE_MANAGED_BY: "me"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"]}],
    });
    let version = scene.apply(foreign).await?.resource_version();

    // The mirror moves to another Service, whose slices a user edits, and is then removed.
    scene.apply(headless("infer-other")).await?;
    scene.edit_service("infer", json!({"spec": {"mirror": {"serviceName": "infer-other"}}})).await?;
    let mirrors = scene.mirrors("infer-other");
    mirrors.are(&lines).await?;
    scene.mirrors("infer-fast").are_gone().await?;
    let edited = mirrors.list().await?[0].name_any();
    mirrors.edit(&edited, json!({"endpoints": []})).await?;
    mirrors.are(&lines).await?;
    let labels = mirrors.api().get(&edited).await?.labels().clone();
    for label in [SERVICE_NAME, CORE_MANAGED_BY] {
        mirrors.edit(&edited, json!({"metadata": {"labels": {label: null}}})).await?;
        eventually(&format!("{label} to be back"), BOUND, async || {
            let found = mirrors.api().get(&edited).await?.labels().clone();
            ensure!(found == labels, "{found:?}");
            Ok(())
        })
        .await?;
    }
    mirrors.are(&lines).await?;
    mirrors.api().delete(&edited, &Default::default()).await?;
    mirrors.are(&lines).await?;
    scene.edit_service("infer", json!({"spec": {"mirror": null}})).await?;
    mirrors.are_gone().await?;

    scene.edit_service("infer", json!({"spec": {"mirror": {"serviceName": "infer-fast"}}})).await?;
    scene.mirrors("infer-fast").are(&["10.1.0.1 a rs-", "10.2.0.1 a rs-", "fd00:1::1 a rs-"]).await?;
    scene.namespace.delete(SERVICE, "infer").await?;
    scene.mirrors("infer-fast").are_gone().await?;
    let left = Slices::of_core(&scene.namespace, "infer-fast").only().await?;
    ensure!(left.resource_version() == version, "the other writer's slice was written: {left:?}");
    Ok(())
}

#[tokio::test]
async fn a_service_that_cannot_be_mirrored_to_is_refused() -> Result<()> {
    let scene = scene_with_mirror("refused", Some("rail0")).await?;
    scene.pods.start(Pod::new("a").nics(&nics(1))).await?;
    scene.apply(headless("infer-fast")).await?;
    let (status, mirrors) = (scene.status("infer")?, scene.mirrors("infer-fast"));
    let lines = ["10.1.0.1 a rs-", "fd00:1::1 a rs-"];
    mirrors.are(&lines).await?;

    // The Service gets a selector, so that Kubernetes' own controller writes its slices.
    let selecting =
        json!({"selector": {"app": "infer"}, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]});
    edit_core(&scene, "infer-fast", json!({ "spec": selecting })).await?;
    status.explains(UNUSABLE, &["infer-fast", "selector"]).await?;
    scene.events.warn(SERVICE, "infer", "MirrorNotUsable", &["selector"]).await?;
    mirrors.are_gone().await?;
    let own = Slices::of_core(&scene.namespace, "infer-fast")
        .with_label(CORE_MANAGED_BY, "endpointslice-controller.k8s.io");
    eventually("the slices of Kubernetes' own controller", BOUND, async || {
        let lines = own.endpoints().await?;
        ensure!(lines.len() == 1 && lines[0].starts_with("10.244."), "{lines:?}");
        Ok(())
    })
    .await?;
    // The answers of multinet-dns do not change.
    scene.answers("infer", "A", &["10.1.0.1", "10.2.0.1"]).await?;
    edit_core(&scene, "infer-fast", json!({"spec": {"selector": null}})).await?;
    status.is(&FINE).await?;
    mirrors.are(&lines).await?;

    let others = [
        ("with-ip", json!({"ports": [{"port": 80}]}), "cluster IP"),
        ("external", json!({"type": "ExternalName", "externalName": "example.org"}), "ExternalName"),
    ];
    for (name, spec, why) in others {
        scene.apply(core(name, spec)).await?;
        scene.edit_service("infer", json!({"spec": {"mirror": {"serviceName": name}}})).await?;
        status.explains(UNUSABLE, &[name, why]).await?;
        scene.mirrors(name).are_gone().await?;
        mirrors.are_gone().await?;
    }
    Ok(())
}
