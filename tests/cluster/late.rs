//! `multinet-dns` is started before the API server, or before the kinds that it watches. Waiting
//! for a permission is tested in `runtime/tests/watch/outages.rs` and `faults`.

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

/// Time for which a replica that cannot become ready is observed; enough for several attempts.
const WHILE: Duration = Duration::from_secs(4);

/// Checks that a replica that cannot become ready logs the reason once per kind, answers SERVFAIL
/// within its zones and REFUSED outside.
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

    // There is one warning for each of the two kinds, not one for each attempt.
    let log = replica.log();
    let complaints: Vec<_> =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    ensure!(
        (1..=2).contains(&complaints.len()),
        "{} warnings instead of one for each kind:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    let said = complaints.join("\n").to_lowercase();
    ensure!(said.contains(complaint), "the warning does not contain {complaint:?}:\n{said}");
    Ok(())
}

#[tokio::test]
async fn a_server_started_before_the_crds_waits_for_them() -> Result<()> {
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
async fn a_server_started_before_the_api_server_waits_for_it() -> Result<()> {
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
