//! Replicas that fail and recover behind CoreDNS.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Result, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::coredns::CoreDns;
use multinet_testing::http;
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::objects::Namespace;
use multinet_testing::process::free_port;
use multinet_testing::replica::{BOUND, Options, Replica};
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;
use multinet_testing::witness::Witness;
use tempfile::TempDir;

use crate::shared;

/// Creates a namespace with one service. Returns it with the options of its replicas.
async fn stage(prefix: &str, address: [u8; 4]) -> Result<(Namespace, Options)> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace(prefix).await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", address)).await?;
    let options = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?);
    Ok((namespace, options))
}

/// Sends one query, and fails unless the answer is right.
async fn check_answer(server: SocketAddr, name: &str, data: &str) -> Result<()> {
    let reply = ask_udp(server, name, "A").await?;
    ensure!(reply.rcode() == "NOERROR" && reply.data() == [data], "{}", reply.text(""));
    Ok(())
}

#[tokio::test]
async fn a_health_probe_of_coredns_brings_a_replica_back() -> Result<()> {
    let port = free_port()?;
    let (namespace, options) = stage("probe", [10, 16, 0, 1]).await?;
    let options = options.port(port);
    let mut replica = options.start_ready().await?;
    let infer = namespace.domain("infer");
    let probe = replica.ask(".", "NS").await?;
    ensure!(probe.rcode() == "REFUSED", "CoreDNS' health probe is answered by\n{}", probe.text(""));

    // With this option, CoreDNS does not query a failed upstream before a probe has succeeded.
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let plugins = format!(
        "prometheus {metrics}\n  forward . 127.0.0.1:{port} {{\n    failfast_all_unhealthy_upstreams\n  }}"
    );
    let front = CoreDns::start(&[("multinet.cluster.local", &plugins)]).await?;
    check_answer(front.address(), &infer, "10.16.0.1").await?;

    replica.kill()?;
    eventually("CoreDNS to count its upstream as broken", BOUND, async || {
        let reply = ask_udp(front.address(), &infer, "A").await?;
        ensure!(reply.rcode() == "SERVFAIL", "answered without an upstream:\n{}", reply.text(""));
        let metrics = http::get(&format!("http://{metrics}/metrics")).await?;
        let broken = metrics
            .lines()
            .find(|line| line.starts_with("coredns_forward_healthcheck_broken_total"))
            .is_some_and(|line| !line.ends_with(" 0"));
        ensure!(broken, "its metric does not say so");
        Ok(())
    })
    .await?;

    let _replica = options.start_ready().await?;
    eventually("CoreDNS to use its upstream again", BOUND, async || {
        check_answer(front.address(), &infer, "10.16.0.1").await
    })
    .await
}

/// Two replicas, and clients that query them all the time through a CoreDNS without a cache, which
/// chooses one of the replicas at random for each query.
struct Pair {
    replicas: [Replica; 2],
    options: [Options; 2],
    askers: Vec<Witness>,
    _front: CoreDns,
}

impl Pair {
    /// Starts all programs. The replicas keep snapshots in the folder `snapshots`, if it is given.
    async fn start(address: [u8; 4], forward_options: &str, snapshots: Option<&Path>) -> Result<Self> {
        const ASKERS: usize = 8;
        let (namespace, options) = stage("failover", address).await?;
        let ports = [free_port()?, free_port()?];
        let options = ports.map(|port| {
            let options = options.clone().port(port);
            match snapshots {
                Some(folder) => options.flag("--snapshot", folder.join(port.to_string())),
                None => options,
            }
        });
        let replicas = [options[0].start_ready().await?, options[1].start_ready().await?];
        let [first, second] = ports;
        let plugins =
            format!("forward . 127.0.0.1:{first} 127.0.0.1:{second} {{\n    {forward_options}\n  }}");
        let front = CoreDns::start(&[("multinet.cluster.local", &plugins)]).await?;
        let (infer, data) = (namespace.domain("infer"), Ipv4Addr::from(address).to_string());
        let askers = (0..ASKERS).map(|_| Witness::of(front.address(), &infer, "A", &[&data])).collect();
        let pair = Self { replicas, options, askers, _front: front };
        pair.both_are_asked().await?;
        Ok(pair)
    }

    /// Waits until CoreDNS has sent a replica a hundred more queries.
    async fn is_asked(&self, replica: usize) -> Result<()> {
        let before = self.replicas[replica].queries().await?;
        eventually(&format!("CoreDNS to query replica {replica}"), BOUND, async || {
            let now = self.replicas[replica].queries().await?;
            ensure!(now >= before + 100, "it got {} queries", now - before);
            Ok(())
        })
        .await
    }

    async fn both_are_asked(&self) -> Result<()> {
        self.is_asked(0).await?;
        self.is_asked(1).await
    }

    /// Restarts the replicas one after the other, by SIGTERM and by SIGKILL.
    async fn restart_all(&mut self) -> Result<()> {
        for (victim, kill) in [(0, true), (1, false), (0, false), (1, true)] {
            if kill {
                self.replicas[victim].kill()?;
            } else {
                let status = self.replicas[victim].terminate().await?;
                ensure!(status.success(), "after SIGTERM: {status}");
            }
            self.replicas[victim] = self.options[victim].start_ready().await?;
            // CoreDNS fails a query if both replicas fail, and it avoids a replica for some time
            // after a failure. Until it uses this one again, the other one must stay up.
            self.both_are_asked().await?;
        }
        Ok(())
    }

    /// Stops the clients. Fails if any query got a wrong answer or none.
    async fn none_was_lost(self) -> Result<()> {
        for asker in self.askers {
            asker.stop().await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn no_query_is_lost_when_a_replica_is_killed() -> Result<()> {
    let mut pair = Pair::start([10, 17, 0, 1], "", None).await?;
    pair.replicas[0].kill()?;
    pair.is_asked(1).await?;
    pair.none_was_lost().await
}

#[tokio::test]
async fn no_query_is_lost_when_a_replica_stands_still() -> Result<()> {
    // The kernel accepts the queries to a stopped process, so that CoreDNS has to time out.
    let mut pair = Pair::start([10, 22, 0, 1], "", None).await?;
    pair.replicas[0].process().signal("STOP")?;
    pair.is_asked(1).await?;
    pair.replicas[0].process().signal("CONT")?;
    pair.is_asked(0).await?;
    pair.none_was_lost().await
}

#[tokio::test]
async fn no_query_is_lost_while_replicas_end_and_come_back() -> Result<()> {
    // A replica that has restarted but not synced answers SERVFAIL. CoreDNS then has to query the
    // other one.
    let option = "failover SERVFAIL";
    let page = fs::read_to_string(repository().join("docs/operations.md"))?;
    ensure!(page.contains(&format!("`{option}`")), "docs/operations.md does not mention {option}");
    let mut pair = Pair::start([10, 19, 0, 1], option, None).await?;
    pair.restart_all().await?;
    pair.none_was_lost().await
}

#[tokio::test]
async fn no_query_is_lost_while_replicas_with_snapshots_end_and_come_back() -> Result<()> {
    // The option is not needed here: a restarted replica answers from its snapshot at once.
    let folder = TempDir::new()?;
    let mut pair = Pair::start([10, 24, 0, 1], "", Some(folder.path())).await?;
    eventually("both snapshots to be written", BOUND, async || {
        for replica in &pair.replicas {
            ensure!(replica.metric("multinet_dns_snapshots_written_total").await? > 0, "one is missing");
        }
        Ok(())
    })
    .await?;
    pair.restart_all().await?;
    pair.none_was_lost().await
}
