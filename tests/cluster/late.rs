//! `multinet-dns` comes first: the API server, or the kinds that it watches, come later. That it
//! waits for a permission, too, is in `runtime/tests/watch/outages.rs` and `faults`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::cluster::Cluster;
use multinet_testing::dns::{Edns, Query, Transport};
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::{Options, Replica};
use reqwest::StatusCode;
use tokio::time::{Instant, sleep};

use crate::shared;

/// How long a replica is watched while it cannot become ready: time for several attempts.
const WHILE: Duration = Duration::from_secs(4);

/// Watches a replica that cannot become ready: it says why, once, and it answers as it should.
async fn stays_unready(replica: &Replica, name: &str, complaint: &str) -> Result<()> {
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        let (status, body) = replica.readyz().await?;
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE, "/readyz: {status}: {body}");
        for kind in ["MultiNetworkService", "MultiNetworkEndpointSlice"] {
            ensure!(
                body.to_lowercase().contains(&kind.to_lowercase()),
                "/readyz does not name {kind} as pending:\n{body}"
            );
        }
        for transport in Transport::ALL {
            let query = Query::new(name, "A").edns(Edns::new(1232));
            let reply = ask(replica.dns(), transport, &query).await?;
            let edns = reply.edns().context("the reply has no OPT")?;
            ensure!(reply.rcode() == "SERVFAIL" && edns.contains("ede=14"), "{}", reply.text(""));
        }
        let reply = replica.ask("www.example.org", "A").await?;
        ensure!(reply.rcode() == "REFUSED", "outside the zones:\n{}", reply.text(""));
        sleep(Duration::from_millis(100)).await;
    }

    // One complaint for each of the two kinds, not one for each attempt.
    let log = replica.log();
    let complaints: Vec<_> =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    ensure!(
        (1..=2).contains(&complaints.len()),
        "{} complaints instead of one for each kind:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    let said = complaints.join("\n").to_lowercase();
    ensure!(said.contains(complaint), "the complaint does not say {complaint:?}:\n{said}");
    Ok(())
}

#[tokio::test]
async fn custom_resource_definitions_come_later() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.apply_rbac().await?;
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start().await?;
    stays_unready(&replica, "infer.vision.svc.multinet.cluster.local", "crd").await?;

    cluster.apply_crds().await?;
    replica.ready().await?;
    let namespace = cluster.temp_namespace("late").await?;
    replica.answers(&namespace.domain("infer"), "A", &[]).await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", [10, 5, 0, 1])).await?;
    replica.answers(&namespace.domain("infer"), "A", &["10.5.0.1"]).await
}

#[tokio::test]
async fn api_server_comes_later() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("away").await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", [10, 21, 0, 1])).await?;
    let proxy = Proxy::start(cluster.address()).await?;
    proxy.set(Link::Reset);
    let kubeconfig = cluster.dns_server_kubeconfig(proxy.address()).await?;
    let replica = Options::new(&kubeconfig).start().await?;
    stays_unready(&replica, &namespace.domain("infer"), "reached").await?;
    proxy.set(Link::Up);
    replica.ready().await?;
    replica.answers(&namespace.domain("infer"), "A", &["10.21.0.1"]).await
}
