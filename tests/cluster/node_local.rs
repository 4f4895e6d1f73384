//! NodeLocal DNSCache: a cache on each node that forwards only `cluster.local` to the cluster's
//! CoreDNS.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use multinet_testing::ask::ask;
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::{Query, Transport};
use multinet_testing::manifests::{Service, Slice};
use multinet_testing::replica::Options;

use crate::shared;

async fn resolves(server: SocketAddr, name: &str, data: &str) -> Result<()> {
    for transport in Transport::ALL {
        let reply = ask(server, transport, &Query::new(name, "A")).await?;
        ensure!(reply.rcode() == "NOERROR" && reply.data() == [data], "{}", reply.text(""));
    }
    Ok(())
}

#[tokio::test]
async fn the_default_zone_resolves_through_node_local_dns() -> Result<()> {
    let cluster = shared::cluster().await?;
    let namespace = cluster.temp_namespace("node-local").await?;
    namespace.apply(Service::new("infer")).await?;
    namespace.apply(Slice::new("infer-a", "infer").ready("a", [10, 18, 0, 1])).await?;
    let replica =
        Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?).start_ready().await?;

    // The cluster's CoreDNS serves the cluster's own zone, and ours within it.
    let ours = format!("forward . {}\n  cache 30", replica.dns());
    let own =
        format!("kubernetes cluster.local {{\n    kubeconfig {}\n  }}", cluster.admin_kubeconfig().display());
    let central = CoreDns::start(&[("multinet.cluster.local", &ours), ("cluster.local", &own)]).await?;
    // The node's cache has the configuration from nodelocaldns.yaml of kubernetes/dns.
    let stanza = format!(
        "cache {{\n    success 9984 30\n    denial 9984 5\n  }}\n  forward . {} {{\n    force_tcp\n  }}",
        central.address()
    );
    let node = CoreDns::start(&[("cluster.local", &stanza)]).await?;

    resolves(node.address(), "kubernetes.default.svc.cluster.local", "10.96.0.1").await?;
    resolves(node.address(), &namespace.domain("infer"), "10.18.0.1").await?;
    resolves(node.address(), &namespace.domain("a.infer"), "10.18.0.1").await?;
    let missing = ask(node.address(), Transport::Udp, &Query::new(&namespace.domain("missing"), "A")).await?;
    ensure!(missing.rcode() == "NXDOMAIN", "{}", missing.text(""));
    Ok(())
}
