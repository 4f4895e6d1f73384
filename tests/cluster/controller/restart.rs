//! A controller that ends gracefully, and the one that takes over.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ListParams};
use multinet_testing::controller::ControllerOptions;
use multinet_testing::manifests::{SERVICE, SLICE, types};
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{Slices, api};
use multinet_testing::status::Status;
use multinet_testing::wait::eventually;
use serde_json::json;

use crate::controller::stage::{infer, service};
use crate::shared;

#[tokio::test]
async fn a_successor_writes_only_what_has_changed() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let namespace = cluster.temp_namespace("restart").await?;
    let pods = Pods::of(&namespace);
    let options = ControllerOptions::controller(&cluster.controller_kubeconfig(cluster.address()).await?);
    let mut first = options.start_ready().await?;
    // The first controller writes objects of every kind: slices, mirrors, and bad conditions.
    let core = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "fast"},
        "spec": {"clusterIP": "None"},
    });
    namespace.apply(serde_json::from_value::<DynamicObject>(core)?).await?;
    let mut mirrored = infer();
    mirrored["mirror"] = json!({"serviceName": "fast"});
    for (name, spec) in [("infer", mirrored), ("other", infer())] {
        namespace.apply(serde_json::from_value::<DynamicObject>(service(name, spec))?).await?;
    }
    let lines = ["rail0 10.1.0.1 z rs-", "rail0 10.1.0.2 b rs-"];
    pods.start(Pod::new("z").nic("rdma-a", &["10.1.0.1"])).await?;
    pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.2"])).await?;
    Slices::of(&namespace, "infer")?.are(&lines).await?;
    pods.start(Pod::new("c").nic("rdma-a", &["10.1.0.1"])).await?;
    for name in ["infer", "other"] {
        Slices::of(&namespace, name)?.are(&lines).await?;
        let status = Status::of(&namespace, name)?;
        status.is(&["AddressConflict=True DuplicateAddress", "ResolvedRefs=False NetworkNotFound"]).await?;
        status.counts(2, 2).await?;
    }
    let mirrors = Slices::of_core(&namespace, "fast");
    mirrors.are(&["10.1.0.1 z rs-", "10.1.0.2 b rs-"]).await?;
    let versions = async || -> Result<BTreeMap<String, String>> {
        let mut versions = mirrors.versions().await?;
        for kind in [SERVICE, SLICE] {
            let objects = api(namespace.objects().client(), namespace.name(), kind)?;
            for object in objects.list(&ListParams::default()).await? {
                versions.insert(object.name_any(), object.resource_version().unwrap_or_default());
            }
        }
        Ok(versions)
    };
    let before = versions().await?;

    // The first controller releases the lease, so that the second need not wait for its expiry.
    let status = first.terminate().await?;
    ensure!(status.success(), "the first controller ended with {status}:\n{}", first.log());
    let mut second = options.start_ready().await?;
    pods.start(Pod::new("d").label("app", "nobody").nic("rdma-a", &["10.1.0.4"])).await?;
    let all =
        namespace.objects().api(&types(SERVICE), None).await?.list(&ListParams::default()).await?.items.len();
    eventually("every service to be synced", BOUND, async || {
        let syncs = second.metric("multinet_controller_sync_duration_seconds_count").await?;
        ensure!(syncs >= all as u64, "{syncs} syncs of {all} services");
        Ok(())
    })
    .await?;
    namespace.apply(serde_json::from_value::<DynamicObject>(service("marker", infer()))?).await?;
    Slices::of(&namespace, "marker")?.are(&lines).await?;
    let mut after = versions().await?;
    after.retain(|name, _| !name.starts_with("marker"));
    ensure!(after == before, "objects were written without need: {before:?} became {after:?}");

    // After the restart, the slices show which pod holds the address. When it goes, another gets
    // it.
    pods.remove("z").await?;
    for name in ["infer", "other"] {
        Slices::of(&namespace, name)?.are(&["rail0 10.1.0.1 c rs-", "rail0 10.1.0.2 b rs-"]).await?;
    }
    // Releases the lease.
    second.terminate().await.map(drop)
}
