//! More addresses than a limit allows.

use anyhow::{Result, ensure};
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod};

use crate::controller::stage::Scene;

#[tokio::test]
async fn what_is_left_out_is_in_the_status_as_long_as_it_is() -> Result<()> {
    let scene = Scene::with_service("limits").await?;
    let status = scene.status("infer")?;
    let addresses: Vec<String> = (1..=80).map(|number| format!("10.1.7.{number}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let nics: Vec<Nic> = addresses.chunks(16).map(|some| Nic::new("rdma-a", some)).collect();
    scene.pods.start(Pod::new("a").nics(&nics)).await?;
    let left_out = ["16 addresses are left out", "(a)", "--max-addresses-per-pod"];
    status.explains("Capped=True AddressesPerPod", &left_out).await?;
    scene.events.warn(SERVICE, "infer", "AddressesPerPod", &left_out).await?;

    scene.pods.remove("a").await?;
    // The API server drops what is no longer applied.
    let status = status.counts(0, 0).await?;
    ensure!(!status["conditions"].to_string().contains("Capped"), "{status:#}");
    Ok(())
}
