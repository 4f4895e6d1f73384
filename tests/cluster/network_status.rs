//! The policy of `deploy/kustomize/overlays/network-status`: the accounts that it names write which
//! addresses a pod has, and no other.

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use kube::Client;
use multinet_testing::cluster::Cluster;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::install::SERVED;

/// The command of the documentation that applies the policy.
pub(crate) const APPLY: &str = "kubectl apply -k deploy/kustomize/overlays/network-status";

/// The annotations.
const KEYS: [&str; 3] =
    ["k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status", "k8s.ovn.org/pod-networks"];

/// A user that may do everything but for the policy, by its name and a group.
type User = (&'static str, &'static str);

const NAMED: User = ("system:serviceaccount:kube-system:multus", "system:serviceaccounts");
const OF_NAMED_GROUP: User = ("system:multus:node-a", "system:multus");
const OTHER: User = ("someone", "people");

/// The pods of a namespace.
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

    /// Changes annotations, by the pod itself or by a subresource of it.
    async fn annotate(&self, user: User, pod: &str, annotations: Value) -> Result<()> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.send(user, Method::PATCH, &format!("/{pod}"), patch).await
    }
}

/// Tries the policy, which was applied just now.
pub(crate) async fn is_the_network_plugins(cluster: &Cluster) -> Result<()> {
    let namespace = cluster.temp_namespace("network-status").await?;
    let url = format!("/api/v1/namespaces/{}/pods", namespace.name());
    let pods = Pods { client: cluster.client().await?, url };
    let [current, _, ovn] = KEYS;

    // A pod has no such annotation when it is created.
    eventually("the policy to hold", SERVED, async || {
        refused(pods.create(OTHER, "?dryRun=All", "with", json!({current: "[]"})).await, current)
    })
    .await?;
    pods.create(NAMED, "", "with", json!({current: "[]"})).await?;
    pods.create(OTHER, "", "plain", json!({"a": "b"})).await?;

    // It gets them from those who are named.
    for key in KEYS {
        refused(pods.annotate(OTHER, "plain", json!({key: "x"})).await, key)?;
        refused(pods.annotate(OTHER, "plain/status", json!({key: "x"})).await, key)?;
        pods.annotate(OF_NAMED_GROUP, "plain/status", json!({key: "x"})).await?;
        refused(pods.annotate(OTHER, "plain", json!({key: "y"})).await, key)?;
        refused(pods.annotate(OTHER, "plain", json!({key: null})).await, key)?;
    }
    pods.annotate(NAMED, "plain", json!({ovn: null})).await?;
    // The annotations of a binding become the pod's.
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "plain", "annotations": {ovn: "x"}},
        "target": {"kind": "Node", "name": "a"},
    });
    refused(pods.send(OTHER, Method::POST, "/plain/binding", binding).await, ovn)?;

    // Nothing else about pods is touched.
    pods.annotate(OTHER, "with", json!({"a": "b"})).await?;
    pods.send(OTHER, Method::PATCH, "/with/status", json!({"status": {"phase": "Running"}})).await?;
    pods.send(OTHER, Method::DELETE, "/with", Value::Null).await
}

/// Fails unless writing `key` was refused, with what to do.
fn refused(attempt: Result<()>, key: &str) -> Result<()> {
    let Err(error) = attempt else { bail!("{key} is written") };
    let said = format!("{error:#}");
    for needle in
        [&format!("may write the annotation {key}"), "does not name someone; leave the annotation out"]
    {
        ensure!(said.contains(needle), "no {needle:?} in: {said}");
    }
    Ok(())
}
