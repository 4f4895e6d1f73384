//! CoreDNS' cache keeps our answers for as long as we say.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::Reply;
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::proxy::Proxy;
use multinet_testing::replica::Options;
use tokio::time::{Instant, sleep};

use crate::shared;

/// The pause between two questions to a cache.
const PAUSE: Duration = Duration::from_millis(50);

/// The lowest TTL in a reply, OPT aside.
fn ttl(reply: &Reply) -> Result<u32> {
    let message = &reply.message;
    let records = message.answers.iter().chain(&message.authorities);
    records.map(|record| record.ttl).min().with_context(|| format!("no record in\n{}", reply.text("")))
}

/// Asks a cache in front of a proxy until it asks its upstream a second time. The TTLs have to
/// count down from `full` with the time to (nearly) nothing, without a question to the upstream in
/// between, and to begin again. A busy machine may not come to ask for a while.
async fn counts_down(server: SocketAddr, proxy: &Proxy, name: &str, rtype: &str, full: u32) -> Result<()> {
    let before = proxy.datagrams();
    let (mut last, mut first) = (None, None);
    let begun = Instant::now();
    let deadline = Instant::now() + Duration::from_secs(u64::from(full) + 30);
    loop {
        let asked_at = Instant::now();
        let reply = ask_udp(server, name, rtype).await?;
        let (now, asked) = (ttl(&reply)?, proxy.datagrams() - before);
        match asked {
            1 => {
                let before = last.replace(now).unwrap_or(full);
                ensure!(now <= before, "{name} {rtype}: the TTL went up from {before} to {now} in the cache");
                let most = begun.elapsed().as_secs() as u32 + 1;
                ensure!(now + most >= full, "{name} {rtype}: the TTL is {now} after {most} s, of {full}");
                // The cache has had it since the first answer at the latest.
                let least = asked_at.saturating_duration_since(*first.get_or_insert_with(Instant::now));
                let least = least.as_secs() as u32;
                ensure!(
                    now + least <= full + 1,
                    "{name} {rtype}: the TTL is {now} after {least} s, of {full}"
                );
            }
            2 => {
                let is_over = begun.elapsed() >= Duration::from_secs(full.saturating_sub(1).into());
                ensure!(
                    is_over || last <= Some(1),
                    "{name} {rtype}: fetched again with a TTL of {last:?} left"
                );
                ensure!(now == full, "{name} {rtype}: the TTL is {now} at first, not {full}");
                return Ok(());
            }
            _ => anyhow::bail!("{name} {rtype}: {asked} questions to the upstream"),
        }
        ensure!(
            Instant::now() < deadline,
            "waited for {name} {rtype} to leave the cache; its TTL is {last:?}"
        );
        sleep(PAUSE).await;
    }
}

#[tokio::test]
async fn cache_keeps_answers_for_exactly_their_ttl() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("cache").await?;
    // CoreDNS takes shorter times for five seconds, and so must we choose longer ones.
    namespace.apply(Service::new("short").ttl(6)).await?;
    namespace.apply(Slice::new("short-a", "short").ready("a", [10, 15, 0, 1])).await?;
    namespace.apply(Service::new("long").ttl(30)).await?;
    namespace.apply(Slice::new("long-a", "long").ready("a", [10, 15, 0, 2])).await?;
    let replica = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?)
        .flag("--ttl", "7")
        .start_ready()
        .await?;

    // One way each, for the questions to be counted apart.
    let mut ways = Vec::new();
    for _ in 0..4 {
        let proxy = Proxy::start(replica.dns()).await?;
        let plugins = format!("cache 3600\n  forward . {}", proxy.address());
        let front = CoreDns::start(&[("multinet.cluster.local", &plugins)]).await?;
        ways.push((proxy, front));
    }
    let (short, long) = (namespace.domain("short"), namespace.domain("long"));
    let missing = namespace.domain("missing");
    let empty = format!("_tcp.{short}");

    // Thirty seconds are only seen to begin.
    let (proxy, front) = &ways[0];
    let full = ttl(&ask_udp(front.address(), &long, "A").await?)?;
    ensure!(full == 30, "the TTL is {full} at first, not 30");
    multinet_testing::wait::eventually("a TTL of 28 in the cache", Duration::from_secs(20), async || {
        let left = ttl(&ask_udp(front.address(), &long, "A").await?)?;
        ensure!(left <= 28, "it is {left}");
        Ok(())
    })
    .await?;
    ensure!(proxy.datagrams() == 1, "{} questions to the upstream", proxy.datagrams());

    // Positive answers, names that do not exist, and names without such records, side by side.
    // Negative answers live for the zone's time, whatever the service's is.
    let way = |index: usize| {
        let (proxy, front): &(Proxy, CoreDns) = &ways[index];
        (front.address(), proxy)
    };
    let (positive, nxdomain, nodata) = (way(1), way(2), way(3));
    tokio::try_join!(
        counts_down(positive.0, positive.1, &short, "A", 6),
        counts_down(nxdomain.0, nxdomain.1, &missing, "A", 7),
        counts_down(nodata.0, nodata.1, &empty, "A", 7),
    )?;
    Ok(())
}
