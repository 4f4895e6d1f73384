//! An upgrade to a higher limit: the new controller merges the slices of the earlier one, and no
//! address is missing meanwhile.

use anyhow::{Result, ensure};
use kube::api::DynamicObject;
use multinet_testing::controller::ControllerOptions;
use multinet_testing::pods::{Pod, Pods};
use multinet_testing::replica::{BOUND, Options};
use multinet_testing::slices::Slices;
use multinet_testing::status::Status;
use serde_json::json;
use tokio::time::Instant;

use crate::controller::stage::{infer, service};
use crate::shared;

const PODS: u8 = 24;

#[tokio::test]
async fn an_upgrade_merges_slices_and_dns_misses_no_address() -> Result<()> {
    let (_guard, cluster) = shared::older_alone().await?;
    let namespace = cluster.temp_namespace("repack").await?;
    let (pods, slices) = (Pods::of(&namespace), Slices::of(&namespace, "infer")?);
    let dns = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?);
    let dns = dns.start_ready().await?;
    let kubeconfig = cluster.controller_kubeconfig(cluster.address()).await?;
    let mut earlier = ControllerOptions::controller(&kubeconfig)
        .flag("--max-endpoints-per-slice", "2")
        .start_ready()
        .await?;

    let mut spec = infer();
    spec["publishNotReadyAddresses"] = json!(true);
    namespace.apply(serde_json::from_value::<DynamicObject>(service("infer", spec))?).await?;
    pods.create_all((1..=PODS).map(|i| Pod::new(&format!("p{i}")).nic("rdma-a", &[&address(i)]))).await?;
    pods.give_sandboxes((1..=PODS).map(|i| format!("p{i}"))).await?;
    let lines: Vec<String> = (1..=PODS).map(|i| format!("rail0 {} p{i} r--", address(i))).collect();
    slices.are(&lines).await?;
    ensure!(slices.list().await?.len() >= usize::from(PODS / 2), "slices of more than two endpoints");
    let mut all: Vec<String> = (1..=PODS).map(address).collect();
    all.sort_unstable();
    let domain = namespace.domain("infer");
    dns.answers(&domain, "A", &all.iter().map(String::as_str).collect::<Vec<_>>()).await?;

    earlier.terminate().await?;
    let mut later = ControllerOptions::controller(&kubeconfig).start_ready().await?;
    let deadline = Instant::now() + BOUND;
    // One slice with the endpoints of IPv4 remains, and an empty one for IPv6.
    while slices.list().await?.len() > 2 {
        let reply = dns.ask(&domain, "A").await?;
        ensure!(reply.data() == all, "while slices are merged, DNS says\n{}", reply.text(""));
        ensure!(Instant::now() < deadline, "the slices are not merged:\n{}", later.log());
    }
    slices.are(&lines).await?;
    ensure!(dns.ask(&domain, "A").await?.data() == all, "an address is missing after the merge");
    Status::of(&namespace, "infer")?.counts(u64::from(PODS), u64::from(PODS)).await?;
    later.terminate().await.map(drop)
}

fn address(i: u8) -> String {
    format!("10.1.0.{i}")
}
