//! Steps of the life of a Pipeline.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use multinet_testing::numaflow::BOUND;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{EDGE, NAMESPACE, Stage, networks, pipeline, sidecar, variable};

/// Time of a quiet cluster after which it counts as settled.
const QUIET: Duration = Duration::from_secs(10);

/// Annotation in a Vertex' spec with the plan that the webhook injected.
pub(crate) const PLAN: &str = "multinetwork.numaproj.io/plan";

const TARGETS: &str = "infer.frames.vision.vertexdomain.local.:18515";

/// Fails if a pod does not request exactly these networks.
pub(crate) fn requests(wanted: Option<&'static str>) -> impl Fn(&Pod) -> Result<()> {
    move |pod| {
        ensure!(networks(pod) == wanted, "{:?} requests {:?}", pod.metadata.name, networks(pod));
        Ok(())
    }
}

/// Returns the services of a Pipeline's vertices, or of a MonoVertex.
async fn services(stage: &Stage, pipeline: &str) -> Result<Vec<DynamicObject>> {
    let kind = GroupVersionKind::gvk("multinetwork.numaproj.io", "v1alpha1", "MultiNetworkService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "multinetworkservices");
    let api = Api::<DynamicObject>::namespaced_with(stage.cluster.client().await?, NAMESPACE, &resource);
    let mut services = api.list(&ListParams::default()).await?.items;
    services.retain(|it| it.metadata.name.as_ref().is_some_and(|name| name.starts_with(pipeline)));
    Ok(services)
}

/// Returns reason and note of all events of a Pipeline that the program wrote.
async fn events(stage: &Stage, pipeline: &str) -> Result<Vec<(String, String)>> {
    let api = Api::<Event>::namespaced(stage.cluster.client().await?, NAMESPACE);
    let events = api.list(&ListParams::default()).await?.items.into_iter();
    let ours = events.filter(|event| event.reporting_controller.as_deref() == Some("multinet-numaflow"));
    let ours = ours
        .filter(|event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(pipeline));
    Ok(ours.map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default())).collect())
}

fn names(pods: &[Pod]) -> BTreeSet<&str> {
    pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

/// Networks and environment arrive with the first pods, and the Pipeline stays as it was written.
pub(crate) async fn first_pods_have_everything(stage: &Stage) -> Result<()> {
    let decode = stage.pods.until(("frames", "decode"), 2, requests(Some("rdma-a"))).await?;
    let infer = stage.pods.until(("frames", "infer"), 1, requests(Some("rdma-a"))).await?;
    stage.pods.until(("frames", "in"), 1, requests(None)).await?;
    for pod in &decode {
        ensure!(variable(pod, "udf", "MULTINET_TARGETS") == Some(TARGETS), "{pod:?}");
        ensure!(variable(pod, "udf", "VERTEX_DOMAIN_TARGETS") == Some(TARGETS), "{pod:?}");
    }
    let sources = variable(&infer[0], "udsink", "MULTINET_SOURCES");
    ensure!(sources == Some("decode.frames.vision.vertexdomain.local.:18515"), "{sources:?}");
    let hostname = infer[0].spec.as_ref().and_then(|spec| spec.hostname.as_deref());
    ensure!(hostname == Some("frames-infer-0"), "{hostname:?}");

    let found = stage.api("Pipeline", "pipelines").await?.get("frames").await?;
    let is_equal = found.data["spec"] == pipeline("frames", EDGE)["spec"];
    ensure!(is_equal && found.metadata.generation == Some(1), "the Pipeline has changed: {found:?}");
    let infer = stage.vertex("infer").await?;
    ensure!(infer.data["spec"]["scale"] == json!({"min": 1}), "{}", infer.data["spec"]["scale"]);
    ensure!(stage.resets_of("infer") == 0, "it was reset");

    eventually("two services", BOUND, async || {
        let services = services(stage, "frames").await?;
        ensure!(services.len() == 2, "there are {}", services.len());
        for service in services {
            let owner = &service.metadata.owner_references.context("no owner")?[0];
            ensure!(
                owner.kind == "Vertex" && Some(&owner.name) == service.metadata.name.as_ref(),
                "{owner:?}"
            );
        }
        Ok(())
    })
    .await
}

/// Generations and pods stay the same.
pub(crate) async fn nothing_fights(stage: &Stage) -> Result<()> {
    async fn now(stage: &Stage) -> Result<Value> {
        let vertices = stage.api("Vertex", "vertices").await?.list(&ListParams::default()).await?;
        let generations: Vec<_> = vertices.items.iter().map(|vertex| vertex.metadata.generation).collect();
        let pods = Api::<Pod>::namespaced(stage.cluster.client().await?, NAMESPACE);
        let pods: BTreeSet<_> =
            pods.list(&ListParams::default()).await?.items.into_iter().map(|pod| pod.metadata.name).collect();
        Ok(json!({"generations": generations, "pods": pods}))
    }
    let before = now(stage).await?;
    sleep(QUIET).await;
    let after = now(stage).await?;
    ensure!(before == after, "{before} became {after}");
    Ok(())
}

/// A Pipeline without edges causes no write and no event.
pub(crate) async fn bystanders_are_untouched(stage: &Stage) -> Result<()> {
    let program = stage.program()?;
    let writes = program.metric("multinet_numaflow_writes_total").await?;
    let own = |vertices: &mut Value| {
        vertices[1]["metadata"] = json!({"annotations": {"k8s.v1.cni.cncf.io/networks": "storage"}});
        vertices[1]["udf"]["container"]["env"] = json!([{"name": "MULTINET_TARGETS", "value": "mine:1"}]);
        vertices[1]["udf"]["container"]["securityContext"] = json!({"runAsUser": 7});
        vertices[1]["udf"]["container"]["resources"] = json!({"limits": {"cpu": "2"}});
    };
    stage.create_pipeline_with("plain", "", own).await?;
    stage.pods.until(("plain", "decode"), 2, requests(Some("storage"))).await?;
    let vertex = stage.api("Vertex", "vertices").await?.get("plain-decode").await?;
    let managers = vertex.metadata.managed_fields.unwrap_or_default();
    let ours =
        managers.iter().any(|entry| entry.manager.as_deref().is_some_and(|it| it.contains("multinet")));
    ensure!(!ours && events(stage, "plain").await?.is_empty());
    ensure!(program.metric("multinet_numaflow_writes_total").await? == writes, "it wrote something");
    Ok(())
}

/// Each wrong edge is an event, and its neighbour works.
pub(crate) async fn wrong_edges_are_reported(stage: &Stage) -> Result<()> {
    let edges = r#"[{"from": "decode", "to": "infer", "networks": ["b"], "prot": 1},
                    {"from": "decode", "to": "infr", "networks": ["b"]},
                    {"from": "infer", "to": "decode", "networks": ["rdma-b"]}]"#;
    stage.annotate("plain", Some(edges)).await?;
    eventually("two events", BOUND, async || {
        let events = events(stage, "plain").await?;
        ensure!(events.len() == 2, "{events:?}");
        let has = |text: &str| {
            events.iter().any(|(reason, note)| reason == "DirectEdgeInvalid" && note.contains(text))
        };
        ensure!(has("direct-edges[0]") && has("unknown field `prot`") && has("no vertex infr"), "{events:?}");
        Ok(())
    })
    .await?;
    // The author's own settings win, and are merged with the edge's.
    let decode = stage.pods.until(("plain", "decode"), 2, requests(Some("storage,rdma-b"))).await?;
    ensure!(variable(&decode[0], "udf", "MULTINET_TARGETS") == Some("mine:1"), "{decode:?}");
    ensure!(variable(&decode[0], "udf", "MULTINET_NETWORK") == Some("rdma-b"), "{decode:?}");
    let container = serde_json::to_value(sidecar(&decode[0], "udf"))?;
    let security = json!({"runAsUser": 7, "capabilities": {"add": ["IPC_LOCK"]}});
    let limits = &container["resources"]["limits"];
    ensure!(container["securityContext"] == security && limits["cpu"] == "2", "{container}");

    // An annotation of almost 256 KiB, which is as many as the API server accepts.
    let edge = r#"{"from": "infer", "to": "decode", "networks": ["rdma-b"]}"#;
    let edges = format!("[{}]", vec![edge; 255 * 1024 / (edge.len() + 1)].join(","));
    stage.annotate("plain", Some(&edges)).await?;
    eventually("an event about the number of edges", BOUND, async || {
        let events = events(stage, "plain").await?;
        ensure!(events.iter().any(|(_, note)| note.contains("is one edge too many")), "{events:?}");
        Ok(())
    })
    .await?;

    // Another writer has the name of a service.
    let service = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"name": "plain-in", "namespace": NAMESPACE},
        "spec": {"networks": [{"name": "mine"}]},
    });
    let objects = stage.cluster.objects().await?;
    let mine = objects.apply_object(&serde_json::from_value(service.clone())?).await?;
    let mut taken = service;
    taken["metadata"]["name"] = json!("store");
    objects.apply_object(&serde_json::from_value(taken)?).await?;
    let mono = json!({
        "apiVersion": "numaflow.numaproj.io/v1alpha1",
        "kind": "MonoVertex",
        "metadata": {"name": "store", "namespace": NAMESPACE},
        "spec": {
            "source": {"udsource": {"container": {"image": "none.invalid/store:1"}}},
            "sink": {"log": {}},
        },
    });
    objects.apply_object(&serde_json::from_value(mono)?).await?;
    let edges = r#"[{"from": "infer", "toMonoVertex": "store", "networks": ["rdma-b"]}]"#;
    stage.annotate("plain", Some(edges)).await?;
    eventually("the event NameTaken", BOUND, async || {
        let events = events(stage, "plain").await?;
        ensure!(
            events.iter().any(|(reason, note)| reason == "NameTaken" && note.contains("store")),
            "{events:?}"
        );
        Ok(())
    })
    .await?;
    let left = services(stage, "store").await?;
    let store = left.first().context("it is gone")?;
    ensure!(store.data["spec"]["networks"] == mine.data["spec"]["networks"], "{store:?}");
    stage.annotate("plain", None).await?;
    stage.pods.until(("plain", "infer"), 1, requests(None)).await?;
    Ok(())
}

/// The autoscaler's write passes without the webhook, and its pod has its second NIC.
pub(crate) async fn scaling_needs_no_webhook(stage: &mut Stage) -> Result<()> {
    stage.kill_replica(0)?;
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let vertices = stage.api("Vertex", "vertices").await?;
    vertices.patch("frames-decode", &PatchParams::default(), &patch).await?;
    stage.pods.until(("frames", "decode"), 3, requests(Some("rdma-a"))).await?;
    Ok(())
}

/// A vertex that changes while the webhook is down comes without its plan, and is reset once.
pub(crate) async fn a_missed_vertex_is_repaired(stage: &mut Stage) -> Result<()> {
    let image = "none.invalid/decode:2";
    stage.set_image(image).await?;
    eventually("Numaflow to write the vertex", BOUND, async || {
        let found = stage.vertex("decode").await?.data["spec"]["udf"]["container"]["image"].clone();
        ensure!(found == image, "it has {found}");
        Ok(())
    })
    .await?;
    stage.pods.until(("frames", "decode"), 3, requests(None)).await?;
    stage.start_program(&[]).await?;
    stage.pods.until(("frames", "decode"), 3, requests(Some("rdma-a"))).await?;
    let vertex = stage.vertex("decode").await?;
    ensure!(vertex.data["spec"]["replicas"] == 3, "the replicas of the autoscaler are lost");
    let resets = (stage.resets_of("decode"), stage.resets_of("infer"));
    ensure!(resets == (1, 0), "decode and infer were reset {resets:?} times");
    Ok(())
}

/// A Vertex from which its author removes what was injected is reset once.
pub(crate) async fn a_vertex_edited_by_hand_is_repaired(stage: &Stage) -> Result<()> {
    let annotations = json!({PLAN: null, "k8s.v1.cni.cncf.io/networks": null});
    let patch = Patch::Merge(json!({"spec": {"metadata": {"annotations": annotations}}}));
    let vertices = stage.api("Vertex", "vertices").await?;
    vertices.patch("frames-infer", &PatchParams::default(), &patch).await?;
    eventually("the plan to be back", BOUND, async || {
        let metadata = stage.vertex("infer").await?.data["spec"]["metadata"].clone();
        ensure!(metadata["annotations"][PLAN].is_string(), "{metadata}");
        Ok(())
    })
    .await?;
    stage.pods.until(("frames", "infer"), 1, requests(Some("rdma-a"))).await?;
    let resets = stage.resets_of("infer");
    ensure!(resets == 1, "infer was reset {resets} times");
    Ok(())
}

/// A changed annotation rolls the vertices of the edge, and no other.
pub(crate) async fn a_changed_edge_rolls_its_vertices(stage: &Stage) -> Result<()> {
    let before = stage.pods.list("frames", "in").await?;
    stage.annotate("frames", Some(&EDGE.replace("rdma-a", "rdma-b"))).await?;
    stage.pods.until(("frames", "decode"), 3, requests(Some("rdma-b"))).await?;
    stage.pods.until(("frames", "infer"), 1, requests(Some("rdma-b"))).await?;
    let after = stage.pods.list("frames", "in").await?;
    ensure!(names(&before) == names(&after), "the pods of `in` were replaced");
    eventually("the services to follow", BOUND, async || {
        for service in services(stage, "frames").await? {
            let network = &service.data["spec"]["networks"][0]["name"];
            ensure!(network == "rdma-b", "{network}");
        }
        Ok(())
    })
    .await
}

/// A lost Secret is written anew, and the webhook goes on.
pub(crate) async fn the_certificate_is_replaced(stage: &Stage) -> Result<()> {
    let secrets = Api::<Secret>::namespaced(stage.cluster.client().await?, "multinet-system");
    let uid = secrets.get("multinet-numaflow").await?.metadata.uid;
    secrets.delete("multinet-numaflow", &DeleteParams::default()).await?;
    eventually("another Secret", BOUND, async || {
        let now = secrets.get("multinet-numaflow").await?.metadata.uid;
        ensure!(now != uid, "it is the same");
        Ok(())
    })
    .await?;
    stage.annotate("frames", Some(EDGE)).await?;
    stage.pods.until(("frames", "infer"), 1, requests(Some("rdma-a"))).await?;
    stage.pods.until(("frames", "decode"), 3, requests(Some("rdma-a"))).await?;
    Ok(())
}

/// With --fail-closed, a changed vertex waits for the webhook, and the Pipeline's status says why.
pub(crate) async fn fail_closed_waits(stage: &mut Stage) -> Result<()> {
    stage.start_program(&["--fail-closed"]).await?;
    let configurations =
        "kubectl get mutatingwebhookconfiguration multinet-numaflow -o jsonpath={.webhooks[0].failurePolicy}";
    eventually("the failure policy", BOUND, async || {
        let policy = multinet_testing::kubectl::shell(&stage.cluster, configurations)?;
        ensure!(policy == "Fail", "it is {policy}");
        Ok(())
    })
    .await?;
    stage.kill_replica(0)?;
    let image =
        async || anyhow::Ok(stage.vertex("decode").await?.data["spec"]["udf"]["container"]["image"].clone());
    let before = image().await?;
    stage.set_image("none.invalid/decode:closed").await?;
    eventually("kubectl get pl to say why it waits", BOUND, async || {
        let printed = multinet_testing::kubectl::shell(
            &stage.cluster,
            &format!("kubectl get pl frames -n {NAMESPACE}"),
        )?;
        ensure!(printed.contains("failed calling webhook"), "{printed}");
        Ok(())
    })
    .await?;
    ensure!(image().await? == before, "the vertex has changed");
    stage.start_program(&[]).await?;
    let rolled = |pod: &Pod| {
        ensure!(image_of(pod) == Some("none.invalid/decode:closed"), "{:?}", image_of(pod));
        requests(Some("rdma-a"))(pod)
    };
    stage.pods.until(("frames", "decode"), 3, rolled).await?;
    Ok(())
}

/// Without the annotation, the vertices are as Numaflow writes them.
pub(crate) async fn a_removed_edge_leaves_nothing(stage: &Stage) -> Result<()> {
    stage.annotate("frames", None).await?;
    stage.pods.until(("frames", "decode"), 3, requests(None)).await?;
    stage.pods.until(("frames", "infer"), 1, requests(None)).await?;
    let decode = stage.vertex("decode").await?;
    let container = &decode.data["spec"]["udf"]["container"];
    ensure!(container.get("env").is_none() && container.get("securityContext").is_none(), "{container}");
    ensure!(decode.data["spec"]["replicas"] == 3, "{}", decode.data["spec"]["replicas"]);
    let annotations = decode.metadata.annotations.unwrap_or_default();
    ensure!(annotations.keys().eq(["numaflow.numaproj.io/hash"]), "{annotations:?}");
    eventually("the services to go", BOUND, async || {
        let services = services(stage, "frames").await?;
        ensure!(services.is_empty(), "{services:?}");
        Ok(())
    })
    .await
}

/// Vertices and services go with their Pipeline.
pub(crate) async fn deletion_takes_everything(stage: &Stage) -> Result<()> {
    stage.annotate("frames", Some(EDGE)).await?;
    stage.pods.until(("frames", "infer"), 1, requests(Some("rdma-a"))).await?;
    let pipelines = stage.api("Pipeline", "pipelines").await?;
    pipelines.delete("frames", &DeleteParams::default()).await?;
    // Numaflow first tries to drain it.
    eventually("everything to be gone", 3 * BOUND, async || {
        let services = services(stage, "frames").await?;
        let vertices = stage.api("Vertex", "vertices").await?.list(&ListParams::default()).await?.items;
        let vertices = vertices
            .iter()
            .filter(|vertex| vertex.metadata.name.as_ref().is_some_and(|it| it.starts_with("frames")));
        ensure!((services.len(), vertices.count()) == (0, 0), "{services:?}");
        Ok(())
    })
    .await
}

/// The policy reads what vertices declare for themselves. The program makes their services.
pub(crate) async fn a_policy_injects_without_webhook(stage: &Stage) -> Result<()> {
    let shell = |line: &str| multinet_testing::kubectl::shell(&stage.cluster, line);
    shell("kubectl delete mutatingwebhookconfiguration multinet-numaflow")?;
    shell("kubectl apply -f deploy/kustomize/components/numaflow-policy/policy.yaml")?;
    // API servers notice policies and configurations a moment later.
    sleep(QUIET / 5).await;
    let program = stage.program()?;
    let resets = program.metric("multinet_numaflow_writes_total{write=\"reset\"").await?;
    let change = |vertices: &mut Value| {
        let networks = json!({"annotations": {"multinetwork.numaproj.io/networks": "rdma-a"}});
        vertices[1]["metadata"] = networks.clone();
        vertices[1]["metadata"]["annotations"]["multinetwork.numaproj.io/direct-to"] = json!("infer");
        vertices[1]["udf"]["container"]["env"] = json!([{"name": "MULTINET_NODE_NAME", "value": "mine"}]);
        vertices[2]["metadata"] = networks;
    };
    stage.create_pipeline_with("cel", "", change).await?;
    let decode = stage.pods.until(("cel", "decode"), 2, requests(Some("rdma-a"))).await?;
    stage.pods.until(("cel", "infer"), 1, requests(Some("rdma-a"))).await?;
    stage.pods.until(("cel", "in"), 1, requests(None)).await?;
    let targets = variable(&decode[0], "udf", "MULTINET_TARGETS");
    ensure!(targets == Some("infer.cel.vision.vertexdomain.local.:18515"), "{targets:?}");
    ensure!(variable(&decode[0], "udf", "MULTINET_NODE_NAME") == Some("mine"));
    eventually("the services of both ends", BOUND, async || {
        let services = services(stage, "cel").await?;
        let names: BTreeSet<_> = services.iter().filter_map(|it| it.metadata.name.as_deref()).collect();
        ensure!(names.contains("cel-decode") && names.contains("cel-infer"), "{names:?}");
        Ok(())
    })
    .await?;
    ensure!(
        program.metric("multinet_numaflow_writes_total{write=\"reset\"").await? == resets,
        "it reset a Vertex"
    );
    Ok(())
}

/// Returns the image of a function.
pub(crate) fn image_of(pod: &Pod) -> Option<&str> {
    let mut containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    containers.find(|it| it.name == "udf")?.image.as_deref()
}
