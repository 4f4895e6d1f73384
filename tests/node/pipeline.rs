//! A Pipeline of Numaflow on the node: its own controller and the webhook write the vertices,
//! kubelet and Multus run their pods. A stub takes the place of Numaflow's image, so that no pod
//! becomes ready.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, PostParams};
use multinet_testing::controller::ControllerOptions;
use multinet_testing::images::{BUSYBOX, NUMAFLOW};
use multinet_testing::multus::second_addresses;
use multinet_testing::node::BOUND;
use multinet_testing::numaflow::{Numaflow, webhook};
use multinet_testing::process::free_port;
use multinet_testing::status::Status;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use serde_json::json;

use crate::stage::{SYSTEM, Stage, name_of};

const EDGES: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// The pods of an edge's vertices reach each other on second NICs, and their user-defined
/// containers have the environment that the webhook injects. The other vertex is as without
/// multinet.
pub(crate) async fn vertices_get_second_nics(stage: &Stage) -> Result<()> {
    let (cluster, objects) = (stage.node.cluster(), stage.node.objects().await?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    objects.apply_file(&repository().join("deploy/kustomize/components/numaflow/rbac.yaml")).await?;
    objects.apply_object(&webhook(address)?).await?;
    Numaflow::define(cluster).await?;
    let account = cluster.service_account_kubeconfig(SYSTEM, "multinet-numaflow", cluster.address()).await?;
    let program =
        ControllerOptions::numaflow(&account).flag("--listen", address.to_string()).start_ready().await?;
    program.leads(true).await?;
    let mut numaflow = Numaflow::start(cluster, NUMAFLOW).await?;

    let namespace = stage.node.namespace("pipelines").await?;
    let network = stage.node.networks().macvlan(namespace.name(), "rdma-a", &["192.168.112.0/24"])?;
    namespace.apply(network).await?;
    numaflow.serve_buffers(cluster, namespace.name()).await?;
    let container = json!({"container": {"image": BUSYBOX, "args": ["-c", "exec sleep 100000"]}});
    let one = json!({"min": 1, "max": 1});
    let pipeline: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "numaflow.numaproj.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "frames", "annotations": {"multinetwork.numaproj.io/direct-edges": EDGES}},
        "spec": {
            "vertices": [
                {"name": "in", "scale": one, "source": {"generator": {"rpu": 5, "duration": "1s"}}},
                {"name": "decode", "scale": one, "udf": container},
                {"name": "infer", "scale": one, "sink": {"udsink": container}},
            ],
            "edges": [{"from": "in", "to": "decode"}, {"from": "decode", "to": "infer"}],
        },
    }))?;
    let types = pipeline.types.as_ref().context("no types")?;
    objects.api(types, Some(namespace.name())).await?.create(&PostParams::default(), &pipeline).await?;

    let pod = async |vertex: &str| {
        let label = format!("app.kubernetes.io/component=vertex,numaflow.numaproj.io/vertex-name={vertex}");
        eventually(&format!("the pod of {vertex} to run"), BOUND, async || {
            let pods = stage.node.selected(namespace.name(), &label).await?;
            let pod = pods.into_iter().next().context("there is none")?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(phase == Some("Running"), "{:?}", pod.status);
            Ok(pod)
        })
        .await
    };
    let (input, decode, infer) = (pod("in").await?, pod("decode").await?, pod("infer").await?);
    ensure!(second_addresses(&input)?.is_empty(), "the vertex `in`, which is at no edge, has a second NIC");
    let [(_, from)] = &second_addresses(&decode)?[..] else { anyhow::bail!("{decode:?}") };
    let [(_, to)] = &second_addresses(&infer)?[..] else { anyhow::bail!("{infer:?}") };
    ensure!(from != to && [from, to].iter().all(|it| it.starts_with("192.168.112.")), "{from} and {to}");

    let run = async |pod: &Pod, container: &str, script: &str| {
        let command =
            ["-n", namespace.name(), "exec", name_of(pod)?, "-c", container, "--", "sh", "-c", script];
        stage.node.kubectl(&command).await
    };
    run(&decode, "udf", &format!("ping -c 1 -W 3 {to} && ip -4 address show net1 | grep -w {from}")).await?;
    let targets = run(&decode, "udf", "echo $MULTINET_TARGETS $MULTINET_POD_NAME").await?;
    let domain = format!("frames.{}.vertexdomain.local.:18515", namespace.name());
    ensure!(targets.trim() == format!("infer.{domain} {}", name_of(&decode)?), "{targets}");
    let sources = run(&infer, "udsink", "echo $MULTINET_SOURCES $MULTINET_NODE_NAME").await?;
    ensure!(sources.trim() == format!("decode.{domain} node-a"), "{sources}");

    // The shipped controller has found both pods by the services that the program wrote.
    for vertex in ["decode", "infer"] {
        Status::of(&namespace, &format!("frames-{vertex}"))?.counts(0, 1).await?;
    }
    numaflow.kill()
}
