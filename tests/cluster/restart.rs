//! Restarts of `multinet-dns` with a snapshot.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::dns::{Edns, Query, Reply, Transport};
use multinet_testing::manifests::{SERVICE, Service, Slice};
use multinet_testing::objects::Namespace;
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::shared;

/// Creates a namespace with one service in the shared cluster, and a proxy in front of the API
/// server.
async fn stage(prefix: &str, address: [u8; 4]) -> Result<(Namespace, Proxy, Options)> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace(prefix).await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", address)).await?;
    let proxy = Proxy::start(cluster.address()).await?;
    let options = Options::new(&cluster.dns_server_kubeconfig(proxy.address()).await?);
    Ok((namespace, proxy, options))
}

async fn ask_with_edns(replica: &Replica, name: &str) -> Result<Reply> {
    ask(replica.dns(), Transport::Udp, &Query::new(name, "A").edns(Edns::new(1232))).await
}

/// Returns the Extended DNS Error of a reply.
fn extended_error(reply: &Reply) -> Result<Option<String>> {
    let edns = reply.edns().context("the reply has no OPT")?;
    Ok(edns.split_once("ede=").map(|(_, code)| code.to_owned()))
}

/// Waits until the snapshot contains the address.
async fn saved(snapshot: &Path, address: &str) -> Result<()> {
    eventually(&format!("the snapshot to contain {address}"), BOUND, async || {
        let contents = tokio::fs::read(snapshot).await?;
        let found = contents.windows(address.len()).any(|window| window == address.as_bytes());
        ensure!(found, "it has {} bytes and does not contain it", contents.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_snapshot_is_served_while_the_api_server_is_away() -> Result<()> {
    let folder = TempDir::new()?;
    let snapshot = folder.path().join("dns.snapshot");
    let (namespace, proxy, options) = stage("snapshot", [10, 8, 0, 1]).await?;
    let options = options.flag("--snapshot", &snapshot);
    let (infer, gone) = (namespace.domain("infer"), namespace.domain("gone"));
    namespace.apply(Service::new("gone")).await?;
    namespace.apply(Slice::new("gone-a", "gone").ready("a", [10, 8, 0, 2])).await?;

    let mut replica = options.start_ready().await?;
    ensure!(
        extended_error(&ask_with_edns(&replica, &infer).await?)?.is_none(),
        "a current answer is marked as stale"
    );
    saved(&snapshot, "10.8.0.1").await?;
    saved(&snapshot, "10.8.0.2").await?;
    let serial = replica.serial().await?;
    replica.kill()?;

    // The next run starts without the API server and cannot know these changes yet.
    proxy.set(Link::Reset);
    namespace.apply(Slice::new("infer-a", "infer").ready("a", [10, 8, 0, 11])).await?;
    namespace.delete(SERVICE, "gone").await?;
    let replica = options.start().await?;
    for (name, address) in [(&infer, "10.8.0.1"), (&gone, "10.8.0.2")] {
        let reply = ask_with_edns(&replica, name).await?;
        ensure!(reply.data() == [address], "the answer differs from the snapshot:\n{}", reply.text(""));
        ensure!(extended_error(&reply)?.as_deref() == Some("3"), "not marked as stale:\n{}", reply.text(""));
    }
    let stale_serial = replica.serial().await?;
    ensure!(stale_serial >= serial, "the serial went back from {serial} to {stale_serial}");

    proxy.set(Link::Up);
    replica.answers(&infer, "A", &["10.8.0.11"]).await?;
    replica.answers(&gone, "A", &[]).await?;
    replica.ready().await?;
    let reply = ask_with_edns(&replica, &infer).await?;
    ensure!(extended_error(&reply)?.is_none(), "a current answer is marked as stale:\n{}", reply.text(""));
    let current_serial = replica.serial().await?;
    ensure!(current_serial > stale_serial, "the serial went from {stale_serial} to {current_serial}");
    Ok(())
}

#[tokio::test]
async fn a_snapshot_that_is_too_old_is_not_used() -> Result<()> {
    let folder = TempDir::new()?;
    let snapshot = folder.path().join("dns.snapshot");
    let (namespace, proxy, options) = stage("old", [10, 9, 0, 1]).await?;
    let options = options.flag("--snapshot", &snapshot);
    let infer = namespace.domain("infer");
    let mut replica = options.start_ready().await?;
    saved(&snapshot, "10.9.0.1").await?;
    replica.terminate().await?;

    proxy.set(Link::Reset);
    // The age of a snapshot is counted in whole seconds.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let replica = options.flag("--snapshot-max-age", "1s").start().await?;
    let reply = ask_with_edns(&replica, &infer).await?;
    ensure!(
        reply.rcode() == "SERVFAIL" && extended_error(&reply)?.as_deref() == Some("14"),
        "{}",
        reply.text("")
    );
    proxy.set(Link::Up);
    replica.answers(&infer, "A", &["10.9.0.1"]).await
}
