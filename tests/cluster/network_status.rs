//! The policy of `deploy/kustomize/overlays/network-status`: only the accounts that it names may
//! write the annotations with a pod's addresses.

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use kube::Client;
use multinet_testing::cluster::Cluster;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::install::SERVED;

/// Documented command that applies the policy.
pub(crate) const APPLY: &str = "kubectl apply -k deploy/kustomize/overlays/network-status";

/// Annotations that the policy protects.
const KEYS: [&str; 3] =
    ["k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status", "k8s.ovn.org/pod-networks"];

/// User by name and group. Only the policy restricts its permissions.
type User = (&'static str, &'static str);

const NAMED: User = ("system:serviceaccount:kube-system:multus", "system:serviceaccounts");
const OF_NAMED_GROUP: User = ("system:multus:node-a", "system:multus");
const OTHER: User = ("someone", "people");

/// Pods of a namespace.
struct Pods {
    client: Client,
    url: String,
}

impl Pods {
    async fn send(&self, user: User, method: Method, path: &str, body: Value) -> Result<()> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", kind)
            .header("impersonate-user", user.0)
            .header("impersonate-group", user.1)
            .header("impersonate-group", "system:masters")
            .body(serde_json::to_vec(&body)?)?;
        self.client
            .request::<Value>(request)
            .await
            .map(drop)
            .with_context(|| format!("{user:?}: {path}: {body}"))
    }

    async fn create(&self, user: User, query: &str, name: &str, annotations: Value) -> Result<()> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        });
        self.send(user, Method::POST, query, pod).await
    }

    /// Changes annotations through the pod itself or through a subresource.
    async fn annotate(&self, user: User, pod: &str, annotations: Value) -> Result<()> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.send(user, Method::PATCH, &format!("/{pod}"), patch).await
    }
}

/// Checks the policy, which has just been applied.
pub(crate) async fn check_policy(cluster: &Cluster) -> Result<()> {
    let namespace = cluster.temp_namespace("network-status").await?;
    let url = format!("/api/v1/namespaces/{}/pods", namespace.name());
    let pods = Pods { client: cluster.client().await?, url };
    let [current, _, ovn] = KEYS;

    // Other users may not create a pod with such an annotation.
    eventually("the API server to enforce the policy", SERVED, async || {
        refused(pods.create(OTHER, "?dryRun=All", "with", json!({current: "[]"})).await, current)
    })
    .await?;
    pods.create(NAMED, "", "with", json!({current: "[]"})).await?;
    pods.create(OTHER, "", "plain", json!({"a": "b"})).await?;

    // Only the named accounts may add or change the annotations.
    for key in KEYS {
        refused(pods.annotate(OTHER, "plain", json!({key: "x"})).await, key)?;
        refused(pods.annotate(OTHER, "plain/status", json!({key: "x"})).await, key)?;
        pods.annotate(OF_NAMED_GROUP, "plain/status", json!({key: "x"})).await?;
        refused(pods.annotate(OTHER, "plain", json!({key: "y"})).await, key)?;
        refused(pods.annotate(OTHER, "plain", json!({key: null})).await, key)?;
    }
    pods.annotate(NAMED, "plain", json!({ovn: null})).await?;
    // The API server copies the annotations of a binding to the pod.
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "plain", "annotations": {ovn: "x"}},
        "target": {"kind": "Node", "name": "a"},
    });
    refused(pods.send(OTHER, Method::POST, "/plain/binding", binding).await, ovn)?;

    // The policy does not concern other changes of pods.
    pods.annotate(OTHER, "with", json!({"a": "b"})).await?;
    pods.send(OTHER, Method::PATCH, "/with/status", json!({"status": {"phase": "Running"}})).await?;
    pods.send(OTHER, Method::DELETE, "/with", Value::Null).await
}

/// Fails unless the write of `key` was refused with a message that says what to do.
fn refused(attempt: Result<()>, key: &str) -> Result<()> {
    let Err(error) = attempt else { bail!("{key} is written") };
    let said = format!("{error:#}");
    for needle in [&format!("may write the annotation {key}"), "does not list someone; remove the annotation"]
    {
        ensure!(said.contains(needle), "no {needle:?} in: {said}");
    }
    Ok(())
}
