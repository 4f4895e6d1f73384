//! Pods that the kubelet runs: tests find, inspect and kill them, and run programs in them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::{BOUND, Node};
use crate::objects::Namespace;
use crate::wait::eventually;

impl Node {
    /// Returns the pods of a namespace.
    pub async fn pods(&self, namespace: &str) -> Result<Api<Pod>> {
        Ok(Api::namespaced(self.cluster().client().await?, namespace))
    }

    /// Waits until a namespace has the ServiceAccount without which it admits no pods.
    pub(super) async fn wait_for_service_account(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.cluster().client().await?, namespace);
        eventually("the ServiceAccount of a new namespace", BOUND, async || {
            accounts.get("default").await.map(drop).context("there is none yet")
        })
        .await
    }

    /// Waits until all pods of a Deployment are updated and available.
    pub async fn rolled_out(&self, namespace: &str, name: &str) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.cluster().client().await?, namespace);
        let what = format!("the Deployment {namespace}/{name} to be available");
        eventually(&what, BOUND, async || {
            let deployment = deployments.get(name).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let status = deployment.status.unwrap_or_default();
            let is_current = status.observed_generation == deployment.metadata.generation;
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            let is_whole = counts.iter().all(|count| count.unwrap_or(0) == wanted);
            ensure!(is_current && is_whole, "its status is {status:?}\n{}", self.describe(namespace).await);
            Ok(())
        })
        .await
    }

    /// Returns the output of kubectl that helps to find out why pods do not start.
    async fn describe(&self, namespace: &str) -> String {
        let pods = self.kubectl(&["-n", namespace, "get", "pods", "-o", "wide"]).await;
        let events = self.kubectl(&["-n", namespace, "events"]).await;
        format!("{}\n{}", pods.unwrap_or_default(), events.unwrap_or_default())
    }

    /// Returns the pods that a label selects, except those being deleted.
    pub async fn selected(&self, namespace: &str, label: &str) -> Result<Vec<Pod>> {
        let pods = self.pods(namespace).await?.list(&ListParams::default().labels(label)).await?;
        let live = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(live.collect())
    }

    /// Waits until a pod is ready. Returns it.
    pub async fn pod_ready(&self, namespace: &Namespace, name: &str) -> Result<Pod> {
        let pods = self.pods(namespace.name()).await?;
        eventually(&format!("the pod {name} to be ready"), BOUND, async || {
            let pod = pods.get(name).await?;
            ensure!(is_ready(&pod), "it is not ready\n{}", self.describe(namespace.name()).await);
            Ok(pod)
        })
        .await
    }

    /// Runs a program in a pod, which must not fail. Returns its output.
    pub async fn exec(&self, namespace: &str, pod: &str, program: &[&str]) -> Result<String> {
        self.kubectl(&[&["-n", namespace, "exec", pod, "--"], program].concat()).await
    }

    /// Deletes a pod, with its own grace period or another.
    pub async fn delete_pod(&self, namespace: &str, name: &str, grace: Option<u32>) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        let deleted = self.pods(namespace).await?.delete(name, &params).await;
        deleted.map(drop).with_context(|| format!("cannot delete the pod {namespace}/{name}"))
    }

    /// Sends SIGKILL to all processes of a pod that run this program.
    pub fn kill_program(&self, pod: &Pod, program: &str) -> Result<()> {
        let uid = pod.metadata.uid.as_deref().context("a pod without uid")?;
        let mut killed = 0;
        for entry in fs::read_dir("/proc")?.flatten() {
            // The process may have ended by now.
            let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            if read("cgroup").contains(uid) && read("comm").trim() == comm(program) {
                let pid = entry.file_name().to_string_lossy().into_owned();
                killed +=
                    i32::from(std::process::Command::new("kill").args(["-9", &pid]).status()?.success());
            }
        }
        ensure!(killed > 0, "no process of the pod {uid} runs {program}");
        Ok(())
    }
}

/// Returns the name of a program as the kernel truncates it.
fn comm(program: &str) -> &str {
    program.get(..15).unwrap_or(program)
}

/// Returns whether the condition Ready is true.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
