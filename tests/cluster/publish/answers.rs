//! CoreDNS with its plugin etcd answers as multinet-dns does, but for the differences that
//! docs/publish.md lists.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use multinet_testing::ask::{ask, ask_udp};
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::{Query, Reply, Transport};
use multinet_testing::replica::{Options, Replica};
use multinet_testing::wait::eventually;

use super::{BOUND, PLAIN, Stage, infer, settled};

const ZONE: &str = "multinet.cluster.local";
const VERTEX_ZONE: &str = "vertexdomain.local";

/// Names below a service and types, for which both answers are equal.
const EQUAL: [(&str, &str); 24] = [
    ("", "A"),
    ("", "AAAA"),
    ("", "SRV"),
    ("", "MX"),
    ("a.", "A"),
    ("a.", "AAAA"),
    ("a.", "TXT"),
    ("b.", "A"),
    ("b.", "AAAA"),
    ("b.", "TXT"),
    ("10-171-0-3.", "A"),
    ("10-171-0-3.", "TXT"),
    ("c.", "A"), // not ready
    ("missing.", "A"),
    ("missing.", "TXT"),
    ("_multinet._tcp.", "SRV"),
    ("_http._tcp.", "SRV"),
    ("_http._udp.", "SRV"),
    ("_missing._tcp.", "SRV"),
    ("rail0._net.", "A"),
    ("rail1._net.", "AAAA"),
    ("rail1._net.", "SRV"),
    ("a.rail1._net.", "A"),
    ("_multinet._tcp.rail0._net.", "SRV"),
];

/// Names that both answer in the same way, beside those of services.
const OTHERS: [(&str, &str); 12] = [
    ("dns-version.multinet.cluster.local", "TXT"),
    ("multinet.cluster.local", "A"),
    ("multinet.cluster.local", "AAAA"),
    ("vertexdomain.local", "A"),
    ("missing.multinet.cluster.local", "A"),
    ("missing.svc.multinet.cluster.local", "A"),
    ("missing.vertexdomain.local", "A"),
    ("1.0.171.10.in-addr.arpa", "PTR"),
    ("3.0.171.10.in-addr.arpa", "PTR"),
    ("1.9.171.10.in-addr.arpa", "PTR"),
    ("4.0.171.10.in-addr.arpa", "PTR"), // not ready
    ("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.7.1.0.0.0.d.f.ip6.arpa", "PTR"),
];

/// Returns a record's time to live, type and data, without what the plugin cannot express: a target
/// of an SRV record has the labels of its port, priorities and weights differ, and a text is one
/// string.
fn normalized(record: &str) -> String {
    let words: Vec<&str> = record.splitn(5, ' ').collect();
    let [_, ttl, _, rtype, data] = words[..] else { return record.to_owned() };
    let data = match rtype {
        "SRV" => {
            let words: Vec<&str> = data.split(' ').skip(2).collect();
            words.join(" ").replace("._multinet._tcp.", ".").replace("._http._tcp.", ".")
        }
        "TXT" => data.replace("\" \"", " "),
        _ => data.to_owned(),
    };
    format!("{ttl} {rtype} {data}")
}

fn records(reply: &Reply) -> BTreeSet<String> {
    reply.answers().iter().map(|record| normalized(record)).collect()
}

/// A CoreDNS, and a multinet-dns for the same objects.
struct Servers {
    coredns: CoreDns,
    replica: Replica,
}

impl Servers {
    async fn start(stage: &Stage) -> Result<Self> {
        let plugin = format!("etcd {{\n    path /skydns\n    endpoint {}\n  }}", stage.etcd.url());
        let zones = format!("{ZONE} {VERTEX_ZONE} 10.in-addr.arpa 0.0.d.f.ip6.arpa");
        let blocks: Vec<(&str, &str)> = zones.split(' ').map(|zone| (zone, plugin.as_str())).collect();
        let replica = Options::new(stage.cluster.admin_kubeconfig()).flag("--vertex-zone", VERTEX_ZONE);
        Ok(Self { coredns: CoreDns::start(&blocks).await?, replica: replica.start_ready().await? })
    }

    /// Waits until both answer a question in the same way.
    async fn agree(&self, name: &str, rtype: &str) -> Result<()> {
        eventually(&format!("the same answers to {name} {rtype}"), BOUND, async || {
            // Over TCP, so that nothing is truncated.
            let query = Query::new(name, rtype);
            let found = ask(self.coredns.address(), Transport::Tcp, &query).await?;
            let expected = ask(self.replica.dns(), Transport::Tcp, &query).await?;
            let equal = found.rcode() == expected.rcode() && records(&found) == records(&expected);
            ensure!(equal, "CoreDNS\n{}\nmultinet-dns\n{}", found.text(""), expected.text(""));
            ensure!(
                found.message.answers.is_empty() || found.answers().len() == expected.answers().len(),
                "repeated records\n{}",
                found.text("")
            );
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn coredns_answers_as_multinet_dns_does() -> Result<()> {
    let stage = Stage::start().await?;
    stage.apply(&infer(171)).await?;
    stage.apply(PLAIN).await?;
    let publisher = stage.publisher().start_ready().await?;
    settled(&publisher).await?;
    let servers = Servers::start(&stage).await?;
    let namespace = stage.namespace.name();
    let bases = [
        format!("infer.{namespace}.svc.{ZONE}"),
        format!("infer.frames.{namespace}.{VERTEX_ZONE}"),
        format!("plain.{namespace}.svc.{ZONE}"),
    ];
    let mut questions = 0;
    for base in &bases {
        for (label, rtype) in EQUAL {
            servers.agree(&format!("{label}{base}"), rtype).await?;
            questions += 1;
        }
    }
    for (name, rtype) in OTHERS {
        servers.agree(name, rtype).await?;
        questions += 1;
    }
    println!("{questions} questions");

    // Differences, as docs/publish.md lists them: what CoreDNS answers, and what multinet-dns does.
    let [infer, vertex, _] = &bases;
    let all = ["10.171.0.1", "10.171.0.2", "10.171.0.3", "10.171.9.1"];
    let none: &[&str] = &[];
    for (name, rtype, found, expected) in [
        (format!("frames.{namespace}.{VERTEX_ZONE}"), "A", &all[..], ("NOERROR", none)),
        (format!("*.frames.{namespace}.{VERTEX_ZONE}"), "A", &all[..], ("NXDOMAIN", none)),
        (format!("_multinet._tcp.{infer}"), "A", &all[..], ("NOERROR", none)),
        (format!("10-171-0-2-80.b.{vertex}"), "A", &["10.171.0.2"], ("NXDOMAIN", none)),
        (format!("z1.pin._zone.{infer}"), "A", none, ("NOERROR", &["10.171.0.1"])),
        (ZONE.to_owned(), "NS", none, ("NOERROR", &["ns.dns.multinet.cluster.local."])),
    ] {
        let reply = ask_udp(servers.coredns.address(), &name, rtype).await?;
        ensure!(reply.data() == found, "{name}: {}", reply.text(""));
        let reply = servers.replica.ask(&name, rtype).await?;
        ensure!(
            (reply.rcode().as_str(), reply.data())
                == (expected.0, expected.1.iter().map(ToString::to_string).collect()),
            "{name}: {}",
            reply.text("")
        );
    }
    for (name, rtype) in [(infer.clone(), "TXT"), (format!("a.{infer}"), "SRV")] {
        let reply = ask(servers.coredns.address(), Transport::Tcp, &Query::new(&name, rtype)).await?;
        ensure!(!reply.answers().is_empty(), "{}", reply.text(""));
        ensure!(servers.replica.ask(&name, rtype).await?.answers().is_empty(), "{name}");
    }
    Ok(())
}
