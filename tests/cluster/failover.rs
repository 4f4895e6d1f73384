//! Replicas die and come back behind CoreDNS.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use multinet_tests::ask::ask_udp;
use multinet_tests::cluster::Cluster;
use multinet_tests::coredns::CoreDns;
use multinet_tests::http;
use multinet_tests::manifests::{Service, Slice};
use multinet_tests::objects::Namespace;
use multinet_tests::process::free_port;
use multinet_tests::replica::{BOUND, Options, Replica};
use multinet_tests::wait::eventually;
use multinet_tests::witness::Witness;

/// A namespace with one service, and replicas on known ports.
async fn stage(prefix: &str, address: [u8; 4], ports: &[u16]) -> Result<(Namespace, Vec<Replica>, Options)> {
    let cluster = Cluster::shared().await?;
    let namespace = cluster.temp_namespace(prefix).await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", address)).await?;
    let options = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?);
    let mut replicas = Vec::new();
    for port in ports {
        replicas.push(options.clone().port(*port).start_ready().await?);
    }
    Ok((namespace, replicas, options))
}

/// One question, answered rightly.
async fn right(server: SocketAddr, name: &str, data: &str) -> Result<()> {
    let reply = ask_udp(server, name, "A").await?;
    ensure!(reply.rcode() == "NOERROR" && reply.data() == [data], "{}", reply.text(""));
    Ok(())
}

#[tokio::test]
async fn health_probe_brings_an_upstream_back() -> Result<()> {
    let port = free_port()?;
    let (namespace, mut replicas, options) = stage("probe", [10, 16, 0, 1], &[port]).await?;
    let infer = namespace.domain("infer");
    let probe = replicas[0].ask(".", "NS").await?;
    ensure!(probe.rcode() == "REFUSED", "what CoreDNS probes with is answered by\n{}", probe.text(""));

    // With this option, an upstream that is down is not asked until a probe has found it up again.
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let plugins = format!(
        "prometheus {metrics}\n  forward . 127.0.0.1:{port} {{\n    failfast_all_unhealthy_upstreams\n  }}"
    );
    let front = CoreDns::start(&[("multinet.cluster.local", &plugins)]).await?;
    right(front.address(), &infer, "10.16.0.1").await?;

    replicas[0].kill()?;
    eventually("CoreDNS to call its upstream broken", BOUND, async || {
        let reply = ask_udp(front.address(), &infer, "A").await?;
        ensure!(reply.rcode() == "SERVFAIL", "answered without an upstream:\n{}", reply.text(""));
        let metrics = http::get(&format!("http://{metrics}/metrics")).await?;
        let broken = metrics
            .lines()
            .find(|line| line.starts_with("coredns_forward_healthcheck_broken_total"))
            .is_some_and(|line| !line.ends_with(" 0"));
        ensure!(broken, "it is not broken yet");
        Ok(())
    })
    .await?;

    let _replica = options.port(port).start_ready().await?;
    eventually("CoreDNS to use its upstream again", BOUND, async || {
        right(front.address(), &infer, "10.16.0.1").await
    })
    .await
}

#[tokio::test]
async fn no_query_is_lost_when_replicas_are_killed() -> Result<()> {
    const ASKERS: usize = 8;
    const KILLS: usize = 4;
    let ports = [free_port()?, free_port()?];
    let (namespace, mut replicas, options) = stage("failover", [10, 17, 0, 1], &ports).await?;
    let infer = namespace.domain("infer");
    // Without a cache, each query is asked of one of the two, by chance.
    let plugins =
        format!("forward . 127.0.0.1:{} 127.0.0.1:{} {{\n    failover SERVFAIL\n  }}", ports[0], ports[1]);
    let front = CoreDns::start(&[("multinet.cluster.local", &plugins)]).await?;
    let askers: Vec<_> =
        (0..ASKERS).map(|_| Witness::of(front.address(), &infer, "A", &["10.17.0.1"])).collect();

    for kill in 0..KILLS {
        let victim = kill % ports.len();
        // CoreDNS gives a query up if both replicas fail it, and it is some time before it trusts one again that was
        // away: until then the other one must not be touched.
        for replica in &replicas {
            let before = replica.queries().await?;
            eventually("CoreDNS to ask both replicas", BOUND, async || {
                let now = replica.queries().await?;
                ensure!(now >= before + 50, "one of them was asked {} times", now - before);
                Ok(())
            })
            .await?;
        }
        replicas[victim].kill()?;
        replicas[victim] = options.clone().port(ports[victim]).start_ready().await?;
    }
    for asker in askers {
        asker.was_content().await?;
    }
    Ok(())
}
