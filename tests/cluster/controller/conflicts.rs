//! Two pods on one network with the same address.

use anyhow::{Result, ensure};
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::Pod;
use multinet_testing::status::{FINE, describe};

use crate::controller::stage::Scene;

const CONFLICT: &str = "AddressConflict=True DuplicateAddress";

#[tokio::test]
async fn a_ready_pod_keeps_its_address_until_it_is_unready_or_leaves() -> Result<()> {
    let scene = Scene::with_service("conflict").await?;
    let (slices, status) = (scene.slices("infer")?, scene.status("infer")?);
    // The pod that comes first has the name that sorts last, so that names cannot decide.
    scene.pods.start(Pod::new("second").nic("rdma-a", &["10.1.0.1"])).await?;
    slices.are(&["rail0 10.1.0.1 second rs-"]).await?;
    status.is(&FINE).await?;
    scene.pods.start(Pod::new("first").nic("rdma-a", &["10.1.0.1", "fd00::2"])).await?;
    let full = |name: &str| format!("{}/{name}", scene.namespace.name());
    let (kept, left_out) = (full("second"), full("first"));
    status.explains(CONFLICT, &["10.1.0.1", "is published for pod", &kept, "and not for", &left_out]).await?;
    // Only the address is left out, not the pod.
    slices.are(&["rail0 10.1.0.1 second rs-", "rail0 fd00::2 first rs-"]).await?;
    scene.events.warn(SERVICE, "infer", "DuplicateAddress", &["10.1.0.1", &kept, &left_out]).await?;

    // The other pod takes the address over, and keeps it when this one is ready again. The conflict
    // is not reported again.
    for ready in [false, true].into_iter().cycle().take(20) {
        scene.pods.ready("second", ready).await?;
    }
    slices.are(&["rail0 10.1.0.1 first rs-", "rail0 fd00::2 first rs-"]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await?;
    let mut events = scene.events.about(SERVICE, "infer").await?;
    // The network may have been created a moment after the service, which is reported, too.
    events.retain(|event| event.reason.as_deref() == Some("DuplicateAddress"));
    ensure!(events.len() == 1 && events[0].series.is_none(), "reported again: {:#?}", describe(&events));

    // A pod that terminates hands the address over.
    scene.pods.terminate("first").await?;
    slices.are(&["rail0 10.1.0.1 second rs-", "rail0 fd00::2 first -st"]).await?;
    scene.answers("infer", "A", &["10.1.0.1"]).await?;
    status.is(&FINE).await?;
    scene.pods.remove("first").await?;
    slices.are(&["rail0 10.1.0.1 second rs-"]).await
}
