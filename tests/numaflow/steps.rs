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

use crate::stage::{EDGE, NAMESPACE, Stage, networks, variable};

/// Time of a quiet cluster after which it counts as settled.
const QUIET: Duration = Duration::from_secs(10);

/// Annotation of a Vertex with the plan that it was reset for.
const RESET: &str = "multinetwork.numaproj.io/reset";

const TARGETS: &str = "infer.frames.vision.vertexdomain.local.:18515";

/// Fails if a pod does not request exactly these networks.
fn requests(wanted: Option<&'static str>) -> impl Fn(&Pod) -> Result<()> {
    move |pod| {
        ensure!(networks(pod) == wanted, "{:?} requests {:?}", pod.metadata.name, networks(pod));
        Ok(())
    }
}

async fn services(stage: &Stage) -> Result<Vec<DynamicObject>> {
    let kind = GroupVersionKind::gvk("multinetwork.numaproj.io", "v1alpha1", "MultiNetworkService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "multinetworkservices");
    let api = Api::<DynamicObject>::namespaced_with(stage.cluster.client().await?, NAMESPACE, &resource);
    Ok(api.list(&ListParams::default()).await?.items)
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

fn annotation<'a>(object: &'a DynamicObject, key: &str) -> &'a str {
    object.metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
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

    let pipeline = stage.api("Pipeline", "pipelines").await?.get("frames").await?;
    ensure!(pipeline.metadata.generation == Some(1), "the Pipeline has changed: {pipeline:?}");
    let infer = stage.vertex("infer").await?;
    ensure!(infer.data["spec"]["scale"] == json!({"min": 1}), "{}", infer.data["spec"]["scale"]);
    ensure!(annotation(&infer, RESET).is_empty(), "it was reset");

    eventually("two services", BOUND, async || {
        let services = services(stage).await?;
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
    let program = stage.program.as_ref().context("it runs")?;
    let writes = program.metric("multinet_numaflow_writes_total").await?;
    stage.create_pipeline("plain", "").await?;
    stage.pods.until(("plain", "decode"), 2, requests(None)).await?;
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
    stage.pods.until(("plain", "decode"), 2, requests(Some("rdma-b"))).await?;

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
    let left = services(stage).await?;
    let store = left.iter().find(|it| it.metadata.name.as_deref() == Some("store")).context("it is gone")?;
    ensure!(store.data["spec"]["networks"] == mine.data["spec"]["networks"], "{store:?}");
    stage.annotate("plain", None).await?;
    stage.pods.until(("plain", "infer"), 1, requests(None)).await?;
    Ok(())
}

/// The autoscaler's write passes without the webhook, and its pod has its second NIC.
pub(crate) async fn scaling_needs_no_webhook(stage: &mut Stage) -> Result<()> {
    stage.kill_program()?;
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
    // The program removes this note after a while.
    ensure!(annotation(&vertex, RESET).ends_with(" 1"), "{:?}", vertex.metadata.annotations);
    ensure!(vertex.data["spec"]["replicas"] == 3, "the replicas of the autoscaler are lost");
    ensure!(annotation(&stage.vertex("infer").await?, RESET).is_empty(), "infer was reset");
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
        for service in services(stage).await? {
            let network = &service.data["spec"]["networks"][0]["name"];
            ensure!(network == "rdma-b" || network == "mine", "{network}");
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
    stage.kill_program()?;
    stage.set_image("none.invalid/decode:3").await?;
    let pipelines = stage.api("Pipeline", "pipelines").await?;
    eventually("the Pipeline to say why it waits", BOUND, async || {
        let message = pipelines.get("frames").await?.data["status"]["message"].to_string();
        ensure!(message.contains("failed calling webhook"), "{message}");
        Ok(())
    })
    .await?;
    let image = stage.vertex("decode").await?.data["spec"]["udf"]["container"]["image"].clone();
    ensure!(image == "none.invalid/decode:2", "{image}");
    stage.start_program(&[]).await?;
    let rolled = |pod: &Pod| {
        ensure!(image_of(pod) == Some("none.invalid/decode:3"), "{:?}", image_of(pod));
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
    eventually("the note about the reset to go", BOUND, async || {
        let annotations = stage.vertex("decode").await?.metadata.annotations.unwrap_or_default();
        ensure!(annotations.keys().eq(["numaflow.numaproj.io/hash"]), "{annotations:?}");
        Ok(())
    })
    .await?;
    eventually("the services to go", BOUND, async || {
        let services = services(stage).await?;
        let ours = services.iter().filter(|service| service.metadata.owner_references.is_some()).count();
        ensure!(ours == 0, "{ours} are left");
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
        let services = services(stage).await?;
        let ours = services.iter().filter(|service| service.metadata.owner_references.is_some()).count();
        let vertices = stage.api("Vertex", "vertices").await?.list(&ListParams::default()).await?.items;
        let vertices = vertices
            .iter()
            .filter(|vertex| vertex.metadata.name.as_ref().is_some_and(|it| it.starts_with("frames")));
        ensure!((ours, vertices.count()) == (0, 0), "{ours} services are left");
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
    let program = stage.program.as_ref().context("it runs")?;
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
        let services = services(stage).await?;
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
fn image_of(pod: &Pod) -> Option<&str> {
    let mut containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    containers.find(|it| it.name == "udf")?.image.as_deref()
}

/// However often the program dies while a vertex changes, the vertex ends up with its plan.
pub(crate) async fn outages_end_in_the_plan(stage: &mut Stage, outages: usize) -> Result<()> {
    let mut image = String::new();
    for outage in 0..outages {
        image = format!("none.invalid/decode:{outage}");
        // Half of the outages begin before Numaflow has written the vertex.
        let is_late = fastrand::bool();
        if is_late {
            stage.set_image(&image).await?;
            sleep(Duration::from_millis(fastrand::u64(..500))).await;
        }
        stage.kill_program()?;
        if !is_late {
            stage.set_image(&image).await?;
        }
        stage.pods.run().await?;
        sleep(Duration::from_millis(fastrand::u64(..1000))).await;
        stage.start_program(&[]).await?;
        let resets = annotation(&stage.vertex("decode").await?, RESET).to_owned();
        eprintln!("outage {outage}: {resets:?}");
    }
    eventually("the plan in all pods", 5 * BOUND, async || {
        stage.pods.run().await?;
        let pods = stage.pods.list("frames", "decode").await?;
        ensure!(pods.len() == 2, "there are {} pods", pods.len());
        for pod in &pods {
            requests(Some("rdma-a"))(pod)?;
            ensure!(image_of(pod) == Some(&image), "{:?}", image_of(pod));
        }
        Ok(())
    })
    .await
}
