//! ServiceAccount for `multinet-dns` whose permission a test grants and withdraws.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use kube::api::{DeleteParams, DynamicObject};
use multinet_testing::cluster::Cluster;
use multinet_testing::objects::{Namespace, parse};
use multinet_testing::tools::repository;
use serde_json::json;

/// Name of the account.
const NAME: &str = "dns";

/// ServiceAccount in the namespace of a test.
pub(crate) struct Account {
    cluster: &'static Cluster,
    namespace: String,
    binding: DynamicObject,
}

impl Account {
    /// Creates the account, without any permission.
    pub(crate) async fn new(cluster: &'static Cluster, namespace: &Namespace) -> Result<Self> {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}});
        namespace.apply(serde_json::from_value::<DynamicObject>(account)?).await?;
        // The shipped binding, with this account as its subject.
        let shipped = fs::read_to_string(repository().join("deploy/kustomize/base/dns-rbac.yaml"))?;
        let is_binding = |object: &DynamicObject| {
            object.types.as_ref().is_some_and(|types| types.kind == "ClusterRoleBinding")
        };
        let mut binding = parse(&shipped)?
            .into_iter()
            .find(is_binding)
            .context("the shipped manifest has no ClusterRoleBinding")?;
        binding.metadata.name = Some(format!("{NAME}-{}", namespace.name()));
        binding.data["subjects"] =
            json!([{"kind": "ServiceAccount", "name": NAME, "namespace": namespace.name()}]);
        Ok(Self { cluster, namespace: namespace.name().to_owned(), binding })
    }

    /// Writes a kubeconfig file with the account's token, for the API server at `server`.
    pub(crate) async fn kubeconfig(&self, server: SocketAddr) -> Result<PathBuf> {
        self.cluster.service_account_kubeconfig(&self.namespace, NAME, server).await
    }

    /// Grants the permission, and waits until the API server allows it.
    pub(crate) async fn permit(&self) -> Result<()> {
        self.cluster.objects().await?.apply_object(&self.binding).await?;
        self.cluster.wait_for_read_access(&self.namespace, NAME, true).await
    }

    /// Withdraws the permission, and waits until the API server no longer allows it.
    pub(crate) async fn forbid(&self) -> Result<()> {
        let types = self.binding.types.as_ref().context("a binding without kind")?;
        let name = self.binding.metadata.name.as_deref().context("a binding without name")?;
        let bindings = self.cluster.objects().await?.api(types, None).await?;
        bindings.delete(name, &DeleteParams::default()).await?;
        self.cluster.wait_for_read_access(&self.namespace, NAME, false).await
    }
}
