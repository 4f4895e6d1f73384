//! Pods with more addresses than a limit allows.

use anyhow::{Result, ensure};
use multinet_testing::manifests::SERVICE;
use multinet_testing::pods::{Nic, Pod};

use crate::controller::stage::Scene;

#[tokio::test]
async fn addresses_above_the_limit_are_in_the_status_while_they_last() -> Result<()> {
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
    // A condition that the controller no longer applies is dropped by the API server.
    let status = status.counts(0, 0).await?;
    ensure!(!status["conditions"].to_string().contains("Capped"), "{status:#}");
    Ok(())
}
