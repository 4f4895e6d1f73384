//! Networks that do not exist yet, or no longer.

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use kube::core::TypeMeta;
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::Pod;
use multinet_testing::status::{FINE, describe};

use crate::controller::stage::{Scene, infer};

const MISSING: &str = "ResolvedRefs=False NetworkNotFound";

#[tokio::test]
async fn a_missing_network_is_reported_once_until_it_exists() -> Result<()> {
    let scene = Scene::new("missing").await?;
    scene.service("infer", infer()).await?;
    let status = scene.status("infer")?;
    let network = format!("NetworkAttachmentDefinition {}/rdma-a", scene.namespace.name());
    status.explains(MISSING, &[&network, "does not exist", "create it"]).await?;
    status.is(&["Accepted=True Accepted", "Programmed=True Programmed"]).await?;
    scene.events.warn(SERVICE, "infer", "NetworkNotFound", &[&network]).await?;

    // It is reported once, however often pods change meanwhile.
    scene.pods.start(Pod::new("a").nic("rdma-a", &["10.1.0.1"])).await?;
    for ready in [true, false].into_iter().cycle().take(20) {
        scene.pods.ready("a", ready).await?;
    }
    scene.slices("infer")?.are(&["rail0 10.1.0.1 a ---"]).await?;
    status.counts(0, 1).await?;
    let events = scene.events.about(SERVICE, "infer").await?;
    ensure!(events.len() == 1 && events[0].series.is_none(), "reported again: {:#?}", describe(&events));

    scene.network("rdma-a").await?;
    status.is(&FINE).await?;

    // The network is deleted again.
    let types = TypeMeta {
        api_version: "k8s.cni.cncf.io/v1".to_owned(),
        kind: "NetworkAttachmentDefinition".to_owned(),
    };
    let networks = scene.namespace.objects().api(&types, Some(scene.namespace.name())).await?;
    networks.delete("rdma-a", &DeleteParams::default()).await?;
    status.is(&[MISSING]).await?;
    // The pod still has its interface.
    scene.pods.ready("a", true).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await
}
