//! Our answers through CoreDNS, for each protocol to its upstream, with and without its cache.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::{Edns, Query, Reply, Transport};
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::objects::Namespace;
use multinet_testing::pki::FileAuthority;
use multinet_testing::replica::{Options, Replica};
use tempfile::TempDir;

use crate::shared;

/// Number of endpoints of the service `big`.
const MANY: u16 = 500;

/// Replica with DNS over TLS, and the services to query.
struct Stage {
    namespace: Namespace,
    replica: Replica,
    ca: std::path::PathBuf,
    _folder: TempDir,
}

impl Stage {
    async fn start(net: u8) -> Result<Self> {
        let folder = TempDir::new()?;
        let authority = FileAuthority::new(folder.path())?;
        let certificate = authority.server("multinet-dns.multinet-system.svc")?;
        let cluster = shared::cluster().await?;
        let namespace = cluster.temp_namespace("coredns").await?;
        namespace.apply(Service::new("infer").ttl(30)).await?;
        let slice = Slice::new("infer-v4", "infer").ready("a", [10, net, 0, 1]).ready("b", [10, net, 0, 2]);
        namespace.apply(slice.not_ready("c", [10, net, 0, 3])).await?;
        let v6 = [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(net)];
        namespace.apply(Slice::new("infer-v6", "infer").ready("a", v6)).await?;
        namespace.apply(Service::new("big").ttl(30)).await?;
        for first in (0..MANY).step_by(100) {
            let mut slice = Slice::new(&format!("big-{first}"), "big");
            for endpoint in first..first + 100 {
                let [high, low] = endpoint.to_be_bytes();
                slice = slice.ready(&format!("e{endpoint}"), [10, net, 1 + high, low]);
            }
            namespace.apply(slice).await?;
        }
        let replica = Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?)
            .flag("--listen", "tls://127.0.0.1:0")
            .flag("--tls-cert", &certificate.cert)
            .flag("--tls-key", &certificate.key)
            .start_ready()
            .await?;
        Ok(Self { namespace, replica, ca: authority.ca(), _folder: folder })
    }

    /// Starts a CoreDNS with this upstream and these options of `forward`.
    async fn front(&self, net: u8, upstream: &str, options: &str, cache: &str) -> Result<CoreDns> {
        let plugins = format!("forward . {upstream} {{\n    {options}\n  }}\n  {cache}");
        let reverse = format!("{net}.10.in-addr.arpa");
        CoreDns::start(&[("multinet.cluster.local", &plugins), (&reverse, &plugins)]).await
    }
}

/// Sends a query to CoreDNS twice, so that the cache may answer the second. Fails unless both
/// replies have the same contents.
async fn ask_twice(server: SocketAddr, transport: Transport, query: &Query) -> Result<Reply> {
    let first = ask(server, transport, query).await?;
    let second = ask(server, transport, query).await?;
    let said = |reply: &Reply| (reply.rcode(), reply.data(), reply.message.authorities.len());
    ensure!(said(&first) == said(&second), "first\n{}\nthen\n{}", first.text(""), second.text(""));
    Ok(second)
}

/// Checks an answer of every kind through one CoreDNS.
async fn check_answers(stage: &Stage, net: u8, server: SocketAddr) -> Result<()> {
    let infer = stage.namespace.domain("infer");
    let positive = [
        (infer.clone(), "A", vec![format!("10.{net}.0.1"), format!("10.{net}.0.2")]),
        (infer.clone(), "AAAA", vec![format!("fd00::{net:x}")]),
        (format!("b.{infer}"), "A", vec![format!("10.{net}.0.2")]),
        (format!("rail0._net.{infer}"), "A", vec![format!("10.{net}.0.1"), format!("10.{net}.0.2")]),
        (format!("2.0.{net}.10.in-addr.arpa"), "PTR", vec![format!("b.{infer}.")]),
    ];
    let negative = [
        (stage.namespace.domain("missing"), "A", "NXDOMAIN"),
        (format!("c.{infer}"), "A", "NXDOMAIN"),
        (format!("3.0.{net}.10.in-addr.arpa"), "PTR", "NXDOMAIN"),
        (format!("b.{infer}"), "AAAA", "NOERROR"),
        (format!("_tcp.{infer}"), "A", "NOERROR"),
        (infer.clone(), "MX", "NOERROR"),
    ];
    for transport in Transport::ALL {
        for (name, rtype, data) in &positive {
            for query in [Query::new(name, rtype), Query::new(name, rtype).mixed_case()] {
                let reply = ask_twice(server, transport, &query.edns(Edns::new(1232))).await?;
                ensure!(reply.rcode() == "NOERROR" && reply.data() == *data, "{}", reply.text(""));
            }
        }
        for (name, rtype, rcode) in &negative {
            let reply = ask_twice(server, transport, &Query::new(name, rtype)).await?;
            ensure!(reply.rcode() == *rcode && reply.data().is_empty(), "{}", reply.text(""));
            ensure!(reply.serial().is_some(), "a negative answer has no SOA record:\n{}", reply.text(""));
        }
        let query = Query::new(&format!("_rdma._tcp.{infer}"), "SRV").edns(Edns::new(1232));
        let reply = ask_twice(server, transport, &query).await?;
        let targets: BTreeSet<_> =
            reply.data().iter().filter_map(|data| data.rsplit(' ').next().map(ToOwned::to_owned)).collect();
        let expected = ["a", "b"].map(|host| format!("{host}.{infer}."));
        ensure!(targets == expected.into(), "{}", reply.text(""));
        ensure!(reply.additionals().len() >= 3, "an SRV record has no addresses:\n{}", reply.text(""));
        let reply = ask_twice(server, transport, &Query::new(&format!("b.{infer}"), "TXT")).await?;
        let text = reply.data().join(" ");
        ensure!(text.contains(&format!("\"addr=10.{net}.0.2\"")), "{}", reply.text(""));
        ensure!(text.contains("\"rdma=mlx5_2\""), "{}", reply.text(""));
    }
    Ok(())
}

/// Checks the answers with 500 addresses: truncated over UDP, complete over TCP.
async fn check_big(stage: &Stage, net: u8, server: SocketAddr) -> Result<()> {
    let all: BTreeSet<String> = (0..MANY)
        .map(|endpoint| {
            let [high, low] = endpoint.to_be_bytes();
            format!("10.{net}.{}.{low}", 1 + high)
        })
        .collect();
    let big = stage.namespace.domain("big");
    for query in [Query::new(&big, "A"), Query::new(&big, "A").edns(Edns::new(1232))] {
        let reply = ask(server, Transport::Udp, &query).await?;
        ensure!(reply.has_flag("tc"), "not truncated:\n{}", reply.text(""));
        ensure!(reply.data().iter().all(|address| all.contains(address)), "{}", reply.text(""));
        let limit = query.edns.as_ref().map_or(512, |edns| usize::from(edns.size));
        ensure!(reply.raw.len() <= limit, "{} bytes for a client that accepts {limit}", reply.raw.len());
        let reply = ask_twice(server, Transport::Tcp, &query).await?;
        ensure!(!reply.has_flag("tc"), "truncated over TCP");
        ensure!(BTreeSet::from_iter(reply.data()) == all, "{} addresses over TCP", reply.data().len());
        ensure!(reply.data().len() == usize::from(MANY), "{} addresses over TCP", reply.data().len());
    }
    Ok(())
}

/// Runs all checks with one protocol to the upstream.
async fn check(net: u8, way: &str) -> Result<()> {
    let stage = Stage::start(net).await?;
    let (upstream, options) = match way {
        "tls" => {
            let options =
                format!("tls {}\n    tls_servername multinet-dns.multinet-system.svc", stage.ca.display());
            (format!("tls://{}", stage.replica.address("tls")?), options)
        }
        option => (stage.replica.dns().to_string(), option.to_owned()),
    };
    for cache in ["", "cache 30"] {
        let front = stage.front(net, &upstream, &options, cache).await?;
        let with = || format!("way {way:?}, cache {cache:?}");
        check_answers(&stage, net, front.address()).await.with_context(with)?;
        check_big(&stage, net, front.address()).await.with_context(with)?;
    }
    Ok(())
}

#[tokio::test]
async fn coredns_forwards_over_the_protocol_of_the_client() -> Result<()> {
    check(71, "").await
}

#[tokio::test]
async fn coredns_forwards_over_tcp() -> Result<()> {
    check(72, "force_tcp").await
}

#[tokio::test]
async fn coredns_forwards_over_udp_first() -> Result<()> {
    check(73, "prefer_udp").await
}

#[tokio::test]
async fn coredns_forwards_over_tls() -> Result<()> {
    check(74, "tls").await
}
