//! A control plane with Numaflow and multinet-numaflow.

use std::fs;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::numaflow::{Numaflow, VertexPods};
use multinet_testing::objects::parse;
use multinet_testing::process::free_port;
use multinet_testing::tools::repository;
use serde_json::{Value, json};

/// Namespace of the Pipelines.
pub(crate) const NAMESPACE: &str = "vision";

/// Annotation with the direct edges.
pub(crate) const EDGES: &str = "multinetwork.numaproj.io/direct-edges";

/// Edge between two vertices of the Pipeline `frames`.
pub(crate) const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// Everything that runs.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) numaflow: Numaflow,
    pub(crate) pods: VertexPods,
    /// The program under test; `None` while it is down.
    pub(crate) program: Option<Controller>,
    port: u16,
}

impl Stage {
    /// Starts all programs, and creates the Pipeline `frames`.
    pub(crate) async fn start() -> Result<Self> {
        // The API server of Kubernetes 1.36 has the policies without these flags.
        let policies = [
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        ];
        let mut cluster = Cluster::start_with(&policies).await?;
        cluster.start_controller_manager("garbage-collector-controller,namespace-controller").await?;
        Numaflow::define(&cluster).await?;
        cluster.apply_crds().await?;
        let port = free_port()?;
        let objects = cluster.objects().await?;
        let folder = repository().join("deploy/kustomize");
        objects.apply_file(&folder.join("base/namespace.yaml")).await?;
        objects.apply_file(&folder.join("components/numaflow/rbac.yaml")).await?;
        for mut object in parse(&fs::read_to_string(folder.join("components/numaflow/webhook.yaml"))?)? {
            let url = format!("https://127.0.0.1:{port}/vertices");
            object.data["webhooks"][0]["clientConfig"] = json!({"url": url});
            objects.apply_object(&object).await?;
        }
        let numaflow = Numaflow::start(&cluster).await?;
        objects
            .apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}"))
            .await?;
        numaflow.serve_buffers(&cluster, NAMESPACE).await?;
        let pods = VertexPods::of(&cluster, NAMESPACE).await?;
        let mut stage = Self { cluster, numaflow, pods, program: None, port };
        stage.start_program(&[]).await?;
        stage.create_pipeline("frames", EDGE).await?;
        Ok(stage)
    }

    /// Starts the program with its shipped ServiceAccount, and waits until it leads.
    pub(crate) async fn start_program(&mut self, switches: &[&str]) -> Result<()> {
        self.program = None;
        let address = self.cluster.address();
        let account = "multinet-numaflow";
        let kubeconfig = self.cluster.service_account_kubeconfig("multinet-system", account, address).await?;
        let listen = format!("127.0.0.1:{}", self.port);
        let mut options = ControllerOptions::numaflow(&kubeconfig).flag("--listen", listen);
        options = options.flag("--identity", "numaflow-0");
        for switch in switches {
            options = options.switch(switch);
        }
        let program = options.start_ready().await?;
        program.leads(true).await?;
        self.program = Some(program);
        Ok(())
    }

    /// Kills the program.
    pub(crate) fn kill_program(&mut self) -> Result<()> {
        self.program.take().context("it does not run")?.kill()
    }

    /// Returns the API of a kind of Numaflow in the namespace.
    pub(crate) async fn api(&self, kind: &str, plural: &str) -> Result<Api<DynamicObject>> {
        let kind = GroupVersionKind::gvk("numaflow.numaproj.io", "v1alpha1", kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        Ok(Api::namespaced_with(self.cluster.client().await?, NAMESPACE, &resource))
    }

    /// Returns a Vertex of the Pipeline `frames`.
    pub(crate) async fn vertex(&self, name: &str) -> Result<DynamicObject> {
        Ok(self.api("Vertex", "vertices").await?.get(&format!("frames-{name}")).await?)
    }

    /// Creates a Pipeline of three vertices.
    pub(crate) async fn create_pipeline(&self, name: &str, edges: &str) -> Result<()> {
        self.create_pipeline_with(name, edges, |_| {}).await
    }

    /// Creates a Pipeline whose vertices `change` adapts.
    pub(crate) async fn create_pipeline_with(
        &self,
        name: &str,
        edges: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<()> {
        let container = |image: &str| json!({"container": {"image": format!("none.invalid/{image}:1")}});
        let mut pipeline = json!({
            "apiVersion": "numaflow.numaproj.io/v1alpha1",
            "kind": "Pipeline",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "vertices": [
                    {"name": "in", "source": {"generator": {"rpu": 5, "duration": "1s"}}},
                    {"name": "decode", "scale": {"min": 2, "max": 4}, "udf": container("decode")},
                    {"name": "infer", "sink": {"udsink": container("infer")}},
                ],
                "edges": [{"from": "in", "to": "decode"}, {"from": "decode", "to": "infer"}],
            },
        });
        if !edges.is_empty() {
            pipeline["metadata"]["annotations"] = json!({ EDGES: edges });
        }
        change(&mut pipeline["spec"]["vertices"]);
        // Created rather than applied, so that the object has no field that only we have.
        let pipeline: DynamicObject = serde_json::from_value(pipeline)?;
        self.api("Pipeline", "pipelines").await?.create(&Default::default(), &pipeline).await?;
        Ok(())
    }

    /// Sets the annotation of a Pipeline; `None` removes it.
    pub(crate) async fn annotate(&self, pipeline: &str, edges: Option<&str>) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {EDGES: edges}}});
        self.patch_pipeline(pipeline, &Patch::Merge(patch)).await
    }

    /// Sets the image of the vertex `decode`.
    pub(crate) async fn set_image(&self, image: &str) -> Result<()> {
        let pipeline = self.api("Pipeline", "pipelines").await?.get("frames").await?;
        let mut vertices = pipeline.data["spec"]["vertices"].clone();
        vertices[1]["udf"]["container"]["image"] = json!(image);
        self.patch_pipeline("frames", &Patch::Merge(json!({"spec": {"vertices": vertices}}))).await
    }

    async fn patch_pipeline(&self, pipeline: &str, patch: &Patch<Value>) -> Result<()> {
        self.api("Pipeline", "pipelines").await?.patch(pipeline, &PatchParams::default(), patch).await?;
        Ok(())
    }
}

/// Returns the networks that a pod requests.
pub(crate) fn networks(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get("k8s.v1.cni.cncf.io/networks").map(String::as_str)
}

/// Returns a variable of the user-defined container, which is an init container that goes on
/// running.
pub(crate) fn variable<'a>(pod: &'a Pod, container: &str, name: &str) -> Option<&'a str> {
    let containers = pod.spec.as_ref()?.init_containers.as_ref()?;
    let container = containers.iter().find(|it| it.name == container)?;
    let variables = container.env.as_ref()?;
    variables.iter().find(|variable| variable.name == name)?.value.as_deref()
}
