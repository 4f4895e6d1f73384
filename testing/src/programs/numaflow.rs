//! The real controller of Numaflow, and what the test plays for it: JetStream's StatefulSet, and
//! the kubelet. Only for use in a [sandbox](crate::sandbox), because the controller's configuration
//! file and ports are built in.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::cluster::Cluster;
use crate::http;
use crate::objects::{Objects, parse};
use crate::process::Process;
use crate::tools::{numaflow, repository};
use crate::wait::eventually;

/// Time limit for a step of the controller, which retries with growing pauses.
pub const BOUND: Duration = Duration::from_secs(60);

/// Configuration of the controller, at a path that is built in.
const CONFIGURATION: (&str, &str) = (
    "/etc/numaflow",
    r#"
defaults:
  containerResources: |
    requests: {memory: "128Mi", cpu: "100m"}
isbsvc:
  jetstream:
    settings: |
      max_payload: 1048576
    bufferConfig: |
      stream: {replicas: 3, duplicates: 60s, maxAge: 72h, maxMsgs: 100000, maxBytes: -1}
      consumer: {ackWait: 60s, maxAckPending: 25000}
      otBucket: {maxValueSize: 0, history: 1, ttl: 3h, maxBytes: 0, replicas: 3, storage: 1}
      procBucket: {maxValueSize: 0, history: 1, ttl: 72h, maxBytes: 0, replicas: 3, storage: 1}
    versions:
    - version: latest
      natsImage: none.invalid/nats
      metricsExporterImage: none.invalid/exporter
      configReloaderImage: none.invalid/reloader
      startCommand: /nats-server
"#,
);

/// Time limit for a rollout. Numaflow retries a refused write after pauses that grow with the
/// outage, and then replaces one pod after the other.
const ROLLOUT: Duration = Duration::from_secs(180);

/// Returns the shipped configuration of the webhook, for a program at this address.
pub fn webhook(address: SocketAddr) -> Result<DynamicObject> {
    let file = repository().join("deploy/kustomize/components/numaflow/webhook.yaml");
    let mut object = parse(&fs::read_to_string(file)?)?.pop().context("no configuration")?;
    object.data["webhooks"][0]["clientConfig"] = json!({"url": format!("https://{address}/vertices")});
    Ok(object)
}

/// Defines the kinds that `multinet-numaflow` reads, without Numaflow and without schema.
pub async fn define_without_schema(objects: &Objects) -> Result<()> {
    let mut applied = Vec::new();
    for (kind, plural) in [("Pipeline", "pipelines"), ("Vertex", "vertices"), ("MonoVertex", "monovertices")]
    {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.numaflow.numaproj.io")},
            "spec": {
                "group": "numaflow.numaproj.io",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [version],
            },
        });
        applied.push(objects.apply_object(&serde_json::from_value(definition)?).await?);
    }
    for definition in applied {
        objects.established(&definition).await?;
    }
    Ok(())
}

/// Interval of reports about running pods, while a test waits for a rollout.
const REPORT: Duration = Duration::from_secs(3);

/// Running controller of Numaflow.
#[derive(Debug)]
pub struct Numaflow {
    process: Process,
}

impl Numaflow {
    /// Defines Numaflow's kinds in the cluster.
    pub async fn define(cluster: &Cluster) -> Result<()> {
        let files = numaflow()?.join("crds").read_dir().context("no definitions of Numaflow")?;
        let files: Vec<_> = files.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        cluster.objects().await?.define(files).await
    }

    /// Starts the controller, and waits until it is ready. The kubelet runs `image` for Numaflow's
    /// own containers.
    pub async fn start(cluster: &Cluster, image: &str) -> Result<Self> {
        let (folder, text) = CONFIGURATION;
        fs::create_dir_all(folder)?;
        fs::write(format!("{folder}/controller-config.yaml"), text)?;
        let mut command = Command::new(numaflow()?.join("numaflow"));
        command
            .arg("controller")
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .env("NUMAFLOW_IMAGE", image)
            .env("NUMAFLOW_LEADER_ELECTION_DISABLED", "true");
        let mut process = Process::spawn(&mut command, &cluster.folder().join("numaflow.log"))?;
        process
            .until("be ready", BOUND, async || http::get("http://127.0.0.1:8081/readyz").await.map(drop))
            .await?;
        Ok(Self { process })
    }

    /// Sends SIGKILL to the controller.
    pub fn kill(&mut self) -> Result<()> {
        ensure!(!self.log().contains("panic"), "Numaflow has panicked:\n{}", self.log());
        self.process.kill()
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Creates the inter-step buffer service of a namespace, and plays its StatefulSet.
    pub async fn serve_buffers(&self, cluster: &Cluster, namespace: &str) -> Result<()> {
        let service = json!({
            "apiVersion": "numaflow.numaproj.io/v1alpha1",
            "kind": "InterStepBufferService",
            "metadata": {"name": "default", "namespace": namespace},
            "spec": {"jetstream": {"version": "latest"}},
        });
        let objects = cluster.objects().await?;
        objects.apply_object(&serde_json::from_value(service)?).await?;
        let sets = Api::<StatefulSet>::namespaced(objects.client(), namespace);
        let all = json!({"status": {
            "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "currentReplicas": 3,
            "availableReplicas": 3,
        }});
        eventually("Numaflow to create JetStream's StatefulSet", BOUND, async || {
            Ok(sets.patch_status("isbsvc-default-js", &PatchParams::default(), &Patch::Merge(&all)).await?)
        })
        .await?;
        Ok(())
    }
}

/// Pods of the vertices in a namespace, for which the test plays the kubelet.
#[derive(Clone)]
pub struct VertexPods(Api<Pod>);

impl VertexPods {
    /// Returns the pods in this namespace.
    pub async fn of(cluster: &Cluster, namespace: &str) -> Result<Self> {
        Ok(Self(Api::namespaced(cluster.client().await?, namespace)))
    }

    /// Returns the pods of a vertex that are not being deleted. `pipeline` and `vertex` are as in
    /// the labels.
    pub async fn list(&self, pipeline: &str, vertex: &str) -> Result<Vec<Pod>> {
        let labels = format!(
            "app.kubernetes.io/component=vertex,numaflow.numaproj.io/pipeline-name={pipeline},\
             numaflow.numaproj.io/vertex-name={vertex}"
        );
        let mut pods = self.0.list(&ListParams::default().labels(&labels)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Makes all pods run and be ready, as Numaflow waits for before it replaces the next one.
    pub async fn run(&self) -> Result<()> {
        let labels = ListParams::default().labels("app.kubernetes.io/component=vertex");
        for pod in self.0.list(&labels).await? {
            if phase(&pod) != Some("Pending") {
                continue;
            }
            let status = json!({"status": {
                "phase": "Running",
                "podIP": "10.244.0.9",
                "podIPs": [{"ip": "10.244.0.9"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}],
                "containerStatuses": [{
                    "name": "numa", "ready": true, "started": true, "restartCount": 0, "image": "x", "imageID": "x",
                    "state": {"running": {}},
                }],
            }});
            let name = pod.metadata.name.unwrap_or_default();
            let patched = self.0.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
            // Numaflow may have deleted it meanwhile.
            ensure!(!matches!(&patched, Err(kube::Error::Api(status)) if status.code != 404), "{patched:?}");
        }
        Ok(())
    }

    /// Reports running pods as ready again. Numaflow misses a report that comes while its cache is
    /// behind, and waits for the next one. A kubelet takes seconds to make a pod ready, and reports
    /// it several times.
    async fn report_again(&self) -> Result<()> {
        let labels = ListParams::default().labels("app.kubernetes.io/component=vertex");
        for pod in self.0.list(&labels).await? {
            if phase(&pod) != Some("Running") {
                continue;
            }
            let ready =
                json!({"type": "Ready", "status": "True", "lastProbeTime": Timestamp::now().to_string()});
            let status = json!({"status": {"conditions": [ready]}});
            let name = pod.metadata.name.unwrap_or_default();
            let patched =
                self.0.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await;
            ensure!(!matches!(&patched, Err(kube::Error::Api(status)) if status.code != 404), "{patched:?}");
        }
        Ok(())
    }

    /// Runs pods until a vertex has this many of them, and each fulfils `check`.
    pub async fn until(
        &self,
        (pipeline, vertex): (&str, &str),
        count: usize,
        check: impl Fn(&Pod) -> Result<()>,
    ) -> Result<Vec<Pod>> {
        let mut reported = Instant::now();
        eventually(&format!("{count} pods of {pipeline}/{vertex}"), ROLLOUT, async || {
            self.run().await?;
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                self.report_again().await?;
            }
            let pods = self.list(pipeline, vertex).await?;
            ensure!(pods.len() == count, "there are {}", pods.len());
            // One may have come since the others were run.
            ensure!(pods.iter().all(|pod| phase(pod) == Some("Running")), "not all of them run");
            pods.iter().try_for_each(&check)?;
            Ok(pods)
        })
        .await
    }
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
