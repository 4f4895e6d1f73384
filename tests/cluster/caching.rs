//! The time for which CoreDNS caches our answers.

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

/// Pause between two queries to a cache.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the lowest TTL in a reply, without the OPT record.
fn ttl(reply: &Reply) -> Result<u32> {
    let message = &reply.message;
    let records = message.answers.iter().chain(&message.authorities);
    records.map(|record| record.ttl).min().with_context(|| format!("no record in\n{}", reply.text("")))
}

/// Queries a cache in front of a proxy until the cache queries its upstream a second time. Until
/// then, the TTL must count down from `full` to zero or nearly so; after that, it must be `full`
/// again. On a busy machine, the queries may be far apart.
async fn check_countdown(
    server: SocketAddr,
    proxy: &Proxy,
    name: &str,
    rtype: &str,
    full: u32,
) -> Result<()> {
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
                // The record has been in the cache at least since the first answer.
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
                    "{name} {rtype}: the cache queried its upstream again with a TTL of {last:?} left"
                );
                ensure!(now == full, "{name} {rtype}: the first TTL is {now}, not {full}");
                return Ok(());
            }
            _ => anyhow::bail!("{name} {rtype}: {asked} queries to the upstream"),
        }
        ensure!(
            Instant::now() < deadline,
            "waited for {name} {rtype} to leave the cache; its TTL is {last:?}"
        );
        sleep(PAUSE).await;
    }
}

#[tokio::test]
async fn the_coredns_cache_keeps_answers_for_exactly_their_ttl() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("cache").await?;
    // CoreDNS caches answers for at least five seconds, so that the TTLs have to be longer.
    namespace.apply(Service::new("short").ttl(6)).await?;
    namespace.apply(Slice::new("short-a", "short").ready("a", [10, 15, 0, 1])).await?;
    namespace.apply(Service::new("long").ttl(30)).await?;
    namespace.apply(Slice::new("long-a", "long").ready("a", [10, 15, 0, 2])).await?;
    let replica = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?)
        .flag("--ttl", "7")
        .start_ready()
        .await?;

    // Each kind of answer has its own proxy and cache, so that its queries are counted separately.
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

    // The test sees only the beginning of thirty seconds.
    let (proxy, front) = &ways[0];
    let full = ttl(&ask_udp(front.address(), &long, "A").await?)?;
    ensure!(full == 30, "the first TTL is {full}, not 30");
    multinet_testing::wait::eventually("a TTL of 28 in the cache", Duration::from_secs(20), async || {
        let left = ttl(&ask_udp(front.address(), &long, "A").await?)?;
        ensure!(left <= 28, "it is {left}");
        Ok(())
    })
    .await?;
    ensure!(proxy.datagrams() == 1, "{} queries to the upstream", proxy.datagrams());

    // Positive answers, NXDOMAIN and NODATA, at the same time. The TTL of negative answers is that
    // of the zone, not that of the service.
    let way = |index: usize| {
        let (proxy, front): &(Proxy, CoreDns) = &ways[index];
        (front.address(), proxy)
    };
    let (positive, nxdomain, nodata) = (way(1), way(2), way(3));
    tokio::try_join!(
        check_countdown(positive.0, positive.1, &short, "A", 6),
        check_countdown(nxdomain.0, nxdomain.1, &missing, "A", 7),
        check_countdown(nodata.0, nodata.1, &empty, "A", 7),
    )?;
    Ok(())
}
