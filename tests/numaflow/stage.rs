//! A control plane with Numaflow and multinet-numaflow.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::{Controller, ControllerOptions};
use multinet_testing::numaflow::{BOUND, Numaflow, VertexPods, webhook};
use multinet_testing::process::free_port;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::balancer::Balancer;

/// Namespace of the Pipelines.
pub(crate) const NAMESPACE: &str = "vision";

/// Annotation with the direct edges.
pub(crate) const EDGES: &str = "multinetwork.numaproj.io/direct-edges";

/// Edge between two vertices of the Pipeline `frames`.
pub(crate) const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// Image of Numaflow's containers, which no kubelet runs here.
const IMAGE: &str = "none.invalid/numaflow";

/// Controllers of Kubernetes that Pipelines need.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller,resourceclaim-controller";

/// Everything that runs.
pub(crate) struct Stage {
    /// Replicas of the program under test; `None` while one is down.
    replicas: [Option<Controller>; 2],
    /// Ports of their webhooks.
    pub(crate) ports: [u16; 2],
    /// Resets of each Vertex, by replicas that were stopped.
    resets: BTreeMap<String, usize>,
    pub(crate) numaflow: Numaflow,
    pub(crate) pods: VertexPods,
    _balancer: Balancer,
    pub(crate) cluster: Cluster,
}

impl Stage {
    /// Starts all programs, Numaflow after the program under test, and creates the Pipeline
    /// `frames`.
    pub(crate) async fn start() -> Result<Self> {
        // The API server of Kubernetes 1.36 has the policies without these flags.
        let policies = [
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        ];
        let mut cluster = Cluster::start_with(&policies).await?;
        cluster.start_controller_manager(CONTROLLERS).await?;
        cluster.apply_crds().await?;
        let ports = [free_port()?, free_port()?];
        let balancer = Balancer::start(ports).await?;
        let objects = cluster.objects().await?;
        let folder = repository().join("deploy/kustomize");
        objects.apply_file(&folder.join("base/namespace.yaml")).await?;
        objects.apply_file(&folder.join("components/numaflow/rbac.yaml")).await?;
        objects.apply_object(&webhook(balancer.address())?).await?;
        objects
            .apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}"))
            .await?;
        let program = start(&cluster, ports, 0, &[]).await?;
        program.leads(true).await?;
        // It is ready without Numaflow, says so, and notices when it comes.
        let says = async |text: &str| {
            eventually(&format!("the log to say {text:?}"), BOUND, async || {
                let log = program.log();
                ensure!(log.contains(text), "{log}");
                Ok(())
            })
            .await
        };
        says("install Numaflow; until then there is nothing to do").await?;
        Numaflow::define(&cluster).await?;
        let numaflow = Numaflow::start(&cluster, IMAGE).await?;
        says("everything has been listed").await?;
        numaflow.serve_buffers(&cluster, NAMESPACE).await?;
        let pods = VertexPods::of(&cluster, NAMESPACE).await?;
        let replicas = [Some(program), None];
        let resets = BTreeMap::new();
        let stage = Self { replicas, ports, resets, numaflow, pods, _balancer: balancer, cluster };
        stage.create_pipeline("frames", EDGE).await?;
        Ok(stage)
    }

    /// Starts the first replica again, alone, and waits until it leads.
    pub(crate) async fn start_program(&mut self, switches: &[&str]) -> Result<()> {
        for replica in 0..self.replicas.len() {
            self.kill_replica(replica)?;
        }
        self.start_replica(0, switches).await?;
        self.program()?.leads(true).await
    }

    /// Returns the first replica.
    pub(crate) fn program(&self) -> Result<&Controller> {
        self.replica(0)
    }

    /// Returns a replica.
    pub(crate) fn replica(&self, replica: usize) -> Result<&Controller> {
        self.replicas[replica].as_ref().context("it does not run")
    }

    /// Starts a replica, and waits until it is ready.
    pub(crate) async fn start_replica(&mut self, replica: usize, switches: &[&str]) -> Result<()> {
        self.kill_replica(replica)?;
        self.replicas[replica] = Some(start(&self.cluster, self.ports, replica, switches).await?);
        Ok(())
    }

    /// Kills a replica, unless it is down.
    pub(crate) fn kill_replica(&mut self, replica: usize) -> Result<()> {
        let Some(mut program) = self.replicas[replica].take() else { return Ok(()) };
        program.kill()?;
        let log = program.log();
        ensure!(!log.contains("panicked"), "{log}");
        count_resets(&log, &mut self.resets);
        Ok(())
    }

    /// Returns the position of the replica that leads.
    pub(crate) async fn leader(&self) -> Result<usize> {
        eventually("a replica to lead", BOUND, async || {
            for (position, replica) in self.replicas.iter().enumerate() {
                if let Some(replica) = replica
                    && replica.is_leader().await?
                {
                    return Ok(position);
                }
            }
            anyhow::bail!("none of them does")
        })
        .await
    }

    /// Returns how often a Vertex of the Pipeline `frames` has been reset.
    pub(crate) fn resets_of(&self, vertex: &str) -> usize {
        let mut resets = self.resets.clone();
        self.replicas.iter().flatten().for_each(|replica| count_resets(&replica.log(), &mut resets));
        resets.get(&format!("{NAMESPACE}/frames-{vertex}")).copied().unwrap_or(0)
    }

    /// Returns what Kubernetes and Numaflow say about the Pipeline `frames`.
    pub(crate) fn describe(&self) -> Result<String> {
        let objects = format!(
            "kubectl get -n {NAMESPACE} pl,vtx,pods; kubectl get -n {NAMESPACE} vtx frames-decode frames-infer -o yaml"
        );
        let objects = multinet_testing::kubectl::shell(&self.cluster, &objects)?;
        let log = self.numaflow.log();
        let lines = log.lines().filter(|line| line.contains("frames") && !line.contains("autoscaler"));
        Ok(format!("{objects}\n{}", lines.collect::<Vec<_>>().join("\n")))
    }

    /// Kills Numaflow's controller, and starts it again.
    pub(crate) async fn restart_numaflow(&mut self) -> Result<()> {
        self.numaflow.kill()?;
        self.numaflow = Numaflow::start(&self.cluster, IMAGE).await?;
        Ok(())
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
        let mut pipeline = pipeline(name, edges);
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

/// Returns a Pipeline of three vertices.
pub(crate) fn pipeline(name: &str, edges: &str) -> Value {
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
    pipeline
}

/// Starts a replica of the program with its shipped ServiceAccount, and waits until it is ready.
async fn start(cluster: &Cluster, ports: [u16; 2], replica: usize, switches: &[&str]) -> Result<Controller> {
    let (address, account) = (cluster.address(), "multinet-numaflow");
    let kubeconfig = cluster.service_account_kubeconfig("multinet-system", account, address).await?;
    let mut options = ControllerOptions::numaflow(&kubeconfig)
        .flag("--listen", format!("127.0.0.1:{}", ports[replica]))
        .flag("--identity", format!("numaflow-{replica}"))
        .flag("--lease-duration", "3s");
    for switch in switches {
        options = options.switch(switch);
    }
    options.start_ready().await
}

/// Adds the resets that a replica has logged, by namespace and name of the Vertex.
fn count_resets(log: &str, resets: &mut BTreeMap<String, usize>) {
    for line in log.lines() {
        if let Some((vertex, _)) = line.split_once("reset Vertex ").and_then(|(_, rest)| rest.split_once(','))
        {
            *resets.entry(vertex.to_owned()).or_default() += 1;
        }
    }
}

/// Returns the networks that a pod requests.
pub(crate) fn networks(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get("k8s.v1.cni.cncf.io/networks").map(String::as_str)
}

/// Returns the user-defined container of a pod, which is a native sidecar: an init container that
/// goes on running.
pub(crate) fn sidecar<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let containers = pod.spec.as_ref()?.init_containers.as_ref()?;
    containers.iter().find(|it| it.name == name && it.restart_policy.as_deref() == Some("Always"))
}

/// Returns a variable of the user-defined container.
pub(crate) fn variable<'a>(pod: &'a Pod, container: &str, name: &str) -> Option<&'a str> {
    let variables = sidecar(pod, container)?.env.as_ref()?;
    variables.iter().find(|variable| variable.name == name)?.value.as_deref()
}
