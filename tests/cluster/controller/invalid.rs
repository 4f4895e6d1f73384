//! Services that were stored before the definitions had their rules, and that today's API server
//! would reject.

use anyhow::{Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use multinet_testing::controller::ControllerOptions;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::replica::BOUND;
use multinet_testing::slices::{Slices, api};
use multinet_testing::status::{Events, FINE, Status};
use multinet_testing::wait::eventually;
use serde_json::{Value, json};

use crate::controller::stage::{infer, service};
use crate::shared;

#[tokio::test]
async fn a_service_that_breaks_a_rule_keeps_its_slices() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let kubeconfig = cluster.controller_kubeconfig(cluster.address()).await?;
    let mut controller = ControllerOptions::controller(&kubeconfig).start_ready().await?;
    let namespace = cluster.temp_namespace("invalid").await?;
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "rdma-a"},
    });
    namespace.apply(serde_json::from_value::<DynamicObject>(network)?).await?;
    for name in ["broken", "garbled", "good"] {
        namespace.apply(serde_json::from_value::<DynamicObject>(service(name, infer()))?).await?;
    }
    let pods = Pods::of(&namespace);
    pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    let slices = |name| Slices::of(&namespace, name);
    for name in ["broken", "garbled", "good"] {
        slices(name)?.are(&["rail0 10.1.0.1 a rs-"]).await?;
    }

    // One service breaks a rule. Another has a field of the wrong type and cannot be decoded.
    let services = api(namespace.objects().client(), namespace.name(), SERVICE)?;
    let edit = async |name: &str, spec: Value| {
        services.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    };
    let twice = json!([{"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-b", "alias": "rail0"}]);
    edit("broken", json!({ "networks": twice })).await?;
    edit("garbled", json!({"networks": "all of them"})).await?;
    let status = Status::of(&namespace, "broken")?;
    status.explains("Accepted=False Invalid", &["spec.networks", "unique"]).await?;
    status.explains("Programmed=False Invalid", &["slices stay as they were"]).await?;
    Events::of(&namespace).warn(SERVICE, "broken", "Invalid", &["spec.networks"]).await?;
    eventually("the garbled service to be counted and logged", BOUND, async || {
        let count = controller.metric("multinet_watch_undecodable_objects").await?;
        ensure!(count == 1 && controller.log().contains("garbled"), "{count} undecodable objects");
        Ok(())
    })
    .await?;
    pods.start(Pod::new("b").nic("rdma-a", &["10.1.0.2"])).await?;
    slices("good")?.are(&["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b rs-"]).await?;
    slices("broken")?.are(&["rail0 10.1.0.1 a rs-"]).await?;
    // The last good version of the garbled service is still followed.
    slices("garbled")?.are(&["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b rs-"]).await?;

    // A new process, which has never seen a good version, does not take the service for deleted.
    controller.terminate().await?;
    let mut controller = ControllerOptions::controller(&kubeconfig).start_ready().await?;
    pods.start(Pod::new("c").nic("rdma-a", &["10.1.0.3"])).await?;
    let all = ["rail0 10.1.0.1 a rs-", "rail0 10.1.0.2 b rs-", "rail0 10.1.0.3 c rs-"];
    slices("good")?.are(&all).await?;
    slices("broken")?.are(&all[..1]).await?;
    slices("garbled")?.are(&all[..2]).await?;

    // Once corrected, both are published as before.
    let fine = json!({"networks": [{"name": "rdma-a", "alias": "rail0"}]});
    for name in ["broken", "garbled"] {
        edit(name, fine.clone()).await?;
        slices(name)?.are(&all).await?;
        Status::of(&namespace, name)?.is(&FINE).await?;
    }
    // A service that cannot be decoded can be deleted.
    edit("garbled", json!({"networks": "all of them"})).await?;
    controller.shows("multinet_watch_undecodable_objects", 1).await?;
    namespace.delete(SERVICE, "garbled").await?;
    slices("garbled")?.are_gone().await?;
    controller.shows("multinet_watch_undecodable_objects", 0).await?;
    // Releases the lease.
    controller.terminate().await.map(drop)
}
