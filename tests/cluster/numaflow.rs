//! multinet-numaflow needs exactly its shipped roles. The test plays Numaflow.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use multinet_testing::cluster::Cluster;
use multinet_testing::controller::ControllerOptions;
use multinet_testing::numaflow::{define_without_schema, webhook};
use multinet_testing::objects::Namespace;
use multinet_testing::process::free_port;
use serde_json::{Value, json};

use crate::roles::{NAMESPACE, Permission, Roles};
use crate::shared;

/// Without any one of the permissions, the program says which one is missing.
#[tokio::test]
async fn every_verb_of_the_role_is_needed() -> Result<()> {
    // Without streamed lists, as before Kubernetes 1.34, so that `list` is used.
    let cluster = shared::older().await?;
    define_without_schema(&cluster.objects().await?).await?;
    let shipped = Roles::shipped("multinet-numaflow", "components/numaflow/rbac.yaml")?;
    let permissions = shipped.permissions();
    ensure!(permissions.len() == 22, "{permissions:?}");
    // One after the other, since each would do the work of the others.
    for (number, permission) in permissions.iter().enumerate() {
        let name = format!("numaflow-{number}");
        check(cluster, &shipped, &name, permission).await.with_context(|| format!("without {permission}"))?;
    }
    Ok(())
}

async fn check(cluster: &Cluster, shipped: &Roles, name: &str, permission: &Permission) -> Result<()> {
    let options = shipped.start_without(cluster, permission, name, ControllerOptions::numaflow).await?;
    let namespace = cluster.temp_namespace("numaflow").await?;
    let port = free_port()?;
    let configuration = configuration(name, namespace.name(), port)?;
    cluster.objects().await?.apply_object(&configuration).await?;
    if (permission.resource.as_str(), permission.verb.as_str()) == ("secrets", "update") {
        // One that is not the program's is written anew.
        let secret = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let secrets = Api::<Secret>::namespaced(cluster.client().await?, NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await?;
    }
    work(&namespace).await?;
    let mut program = options
        .flag("--listen", format!("127.0.0.1:{port}"))
        .flag("--webhook-configuration", name)
        .flag("--log-level", "debug")
        .start()
        .await?;
    permission.is_missed(&program).await?;
    program.kill()?;
    let api = cluster.objects().await?.api(configuration.types.as_ref().context("no types")?, None).await?;
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Returns the shipped configuration of the webhook for one namespace, and a program at this port.
fn configuration(name: &str, namespace: &str, port: u16) -> Result<DynamicObject> {
    let mut object = webhook((Ipv4Addr::LOCALHOST, port).into())?;
    object.metadata.name = Some(name.to_owned());
    object.data["webhooks"][0]["namespaceSelector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    Ok(object)
}

/// Creates objects that need every kind of write: a service to create, one to replace and one to
/// delete, vertices to reset, and a wrong edge to report.
async fn work(namespace: &Namespace) -> Result<()> {
    let apply = async |object: Value| namespace.apply(serde_json::from_value::<DynamicObject>(object)?).await;
    let numaflow = |kind: &str, name: &str, metadata: Value, spec: Value| {
        let mut object = json!({"apiVersion": "numaflow.numaproj.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        object["metadata"]["name"] = json!(name);
        object
    };
    let container = json!({"container": {"image": "none.invalid/none"}});
    let edges = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}, {}]"#;
    let annotations = json!({"annotations": {"multinetwork.numaproj.io/direct-edges": edges}});
    let vertices =
        json!([{"name": "decode", "udf": container}, {"name": "infer", "sink": {"udsink": container}}]);
    apply(numaflow("Pipeline", "frames", annotations, json!({"vertices": vertices}))).await?;
    let mut uid = None;
    for mut spec in vertices.as_array().context("a list")?.clone() {
        spec["pipelineName"] = json!("frames");
        let name = format!("frames-{}", spec["name"].as_str().unwrap_or_default());
        let hash = json!({"annotations": {"numaflow.numaproj.io/hash": "1"}});
        uid = apply(numaflow("Vertex", &name, hash, spec)).await?.metadata.uid;
    }
    for name in ["frames-infer", "frames-gone"] {
        let owner = json!({"apiVersion": "numaflow.numaproj.io/v1alpha1", "kind": "Vertex", "name": name, "uid": uid, "controller": true});
        apply(json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1",
            "kind": "MultiNetworkService",
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/managed-by": "multinet-numaflow"},
                "ownerReferences": [owner],
            },
            "spec": {"networks": [{"name": "other"}]},
        }))
        .await?;
    }
    Ok(())
}
