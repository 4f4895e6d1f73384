//! The webhook of `multinet-numaflow` adds to the time of a Vertex' write.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use multinet_testing::controller::ControllerOptions;
use multinet_testing::numaflow::{define_without_schema, webhook};
use multinet_testing::objects::{Namespace, parse};
use multinet_testing::process::free_port;
use multinet_testing::replica::BOUND;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use serde_json::json;

use super::stage::Stage;

/// Annotation whose change makes the API server call the webhook.
const HASH: &str = "numaflow.numaproj.io/hash";

/// Objects that Numaflow's controller wrote, as in the tests of `multinet-numaflow`.
const VERTICES: &str = include_str!("../../../numaflow/tests/fixtures/vertices.yaml");
const PIPELINES: &str = include_str!("../../../numaflow/tests/fixtures/pipelines.yaml");

/// Times of writes, without and with the webhook.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) without: Vec<Duration>,
    pub(crate) with: Vec<Duration>,
}

/// Measures writes of a Vertex in a namespace that the webhook leaves out, and in one where it
/// injects. They take turns.
pub(crate) async fn measure(stage: &Stage, writes: usize) -> Result<Figures> {
    define_without_schema(&stage.objects).await?;
    let roles = repository().join("deploy/kustomize/components/numaflow/rbac.yaml");
    stage.objects.apply_file(&roles).await?;
    let [without, with] =
        [stage.cluster.temp_namespace("without").await?, stage.cluster.temp_namespace("with").await?];
    let port = free_port()?;
    let mut configuration = webhook((Ipv4Addr::LOCALHOST, port).into())?;
    configuration.data["webhooks"][0]["namespaceSelector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": with.name()}});
    stage.objects.apply_object(&configuration).await?;
    let mut vertices = [Vertex::create(&without).await?, Vertex::create(&with).await?];
    let (account, address) = ("multinet-numaflow", stage.cluster.address());
    let account = stage.cluster.service_account_kubeconfig("multinet-system", account, address).await?;
    let options = ControllerOptions::numaflow(&account).flag("--listen", format!("127.0.0.1:{port}"));
    let program = options.start_ready().await?;
    program.leads(true).await?;
    eventually("the webhook to inject", BOUND, async || {
        // The program may have reset it.
        vertices[1].read().await?;
        vertices[1].write().await?;
        ensure!(vertices[1].is_injected, "it does not");
        Ok(())
    })
    .await?;
    let mut figures = Figures { without: Vec::new(), with: Vec::new() };
    for _ in 0..writes {
        figures.without.push(vertices[0].write().await?);
        figures.with.push(vertices[1].write().await?);
        ensure!(
            !vertices[0].is_injected && vertices[1].is_injected,
            "the webhook is called for the wrong one"
        );
    }
    Ok(figures)
}

/// Vertex that is written as Numaflow does: its whole clean spec, with another hash.
struct Vertex {
    api: Api<DynamicObject>,
    clean: DynamicObject,
    hash: usize,
    is_injected: bool,
}

impl Vertex {
    async fn create(namespace: &Namespace) -> Result<Self> {
        let mut pipeline = first(PIPELINES)?;
        let edges = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;
        let edges = ("multinetwork.numaproj.io/direct-edges".to_owned(), edges.to_owned());
        pipeline.metadata.annotations = Some([edges].into());
        namespace.apply(pipeline).await?;
        let mut vertex = first(VERTICES)?;
        vertex.metadata.namespace = Some(namespace.name().to_owned());
        let types = vertex.types.as_ref().context("a Vertex without types")?;
        let api = namespace.objects().api(types, Some(namespace.name())).await?;
        api.create(&PostParams::default(), &vertex).await?;
        let mut vertex = Self { api, clean: vertex, hash: 0, is_injected: false };
        vertex.read().await?;
        Ok(vertex)
    }

    /// Reads its version, which a write has to name.
    async fn read(&mut self) -> Result<()> {
        let name = self.clean.metadata.name.clone().context("a Vertex without name")?;
        self.clean.metadata.resource_version = self.api.get(&name).await?.metadata.resource_version;
        Ok(())
    }

    /// Writes it, and returns the time that this has taken.
    async fn write(&mut self) -> Result<Duration> {
        self.hash += 1;
        self.clean
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(HASH.to_owned(), self.hash.to_string());
        let name = self.clean.metadata.name.clone().context("a Vertex without name")?;
        let begun = Instant::now();
        let written = self.api.replace(&name, &PostParams::default(), &self.clean).await?;
        let took = begun.elapsed();
        self.clean.metadata.resource_version = written.metadata.resource_version;
        self.is_injected = written.data["spec"].to_string().contains("MULTINET_POD_NAME");
        Ok(took)
    }
}

/// Returns the Vertex `decode`, or the only Pipeline, of a list.
fn first(list: &str) -> Result<DynamicObject> {
    let list = parse(list)?.pop().context("no list")?;
    let items = list.data["items"].as_array().context("no items")?;
    let decode = |item: &&serde_json::Value| item["kind"] == "Pipeline" || item["spec"]["name"] == "decode";
    let mut object: DynamicObject =
        serde_json::from_value(items.iter().find(decode).context("no such object")?.clone())?;
    let ObjectMeta { name, labels, .. } = std::mem::take(&mut object.metadata);
    object.metadata = ObjectMeta { name, labels, ..ObjectMeta::default() };
    Ok(object)
}
