//! DNS over TLS, HTTPS and QUIC: the same messages as over UDP and TCP, and changes of
//! certificates.

use std::fs;

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::secure::{Client, Method};
use multinet_testing::dns::{DO, Edns, Query, Reply};
use multinet_testing::pki::{Certificate, FileAuthority};
use multinet_testing::server::{Flags, Server, eventually};
use tempfile::TempDir;

use crate::fixtures::{ZONE, folder};

/// Server with a listener for every transport, and a client that trusts it.
struct Secured {
    server: Server,
    client: Client,
    authority: FileAuthority,
    certificate: Certificate,
    _folder: TempDir,
}

fn start(manifests: &std::path::Path) -> Result<Secured> {
    let folder = tempfile::tempdir()?;
    let authority = FileAuthority::new(folder.path())?;
    let certificate = authority.server("dns.test")?;
    let server = Flags::new()
        .words("--answer-order fixed")
        .listen("tls://127.0.0.1:0")
        .listen("https://127.0.0.1:0")
        .listen("quic://127.0.0.1:0")
        .flag("--tls-cert", &certificate.cert)
        .flag("--tls-key", &certificate.key)
        .start(manifests)?;
    let client = Client::trusting(&authority.ca())?;
    Ok(Secured { server, client, authority, certificate, _folder: folder })
}

impl Secured {
    /// Sends a query over all encrypted transports. Returns the replies by transport.
    fn ask(&self, query: &Query) -> Result<Vec<(&'static str, Reply)>> {
        let packet = query.to_wire();
        // The ID is zero where the transport itself matches replies to queries (RFC 9250 §4.2.1,
        // RFC 8484 §4.1).
        let unnumbered = Query { id: 0, ..query.clone() }.to_wire();
        let mut tls = self.client.tls(self.server.address("tls")?)?;
        tls.messages.send(&packet)?;
        let https = self.server.address("https")?;
        let post = self.client.https(https, Method::Post, &unnumbered)?;
        ensure!(post.version == "HTTP/2.0", "over {}", post.version);
        let quic = self.client.quic(self.server.address("quic")?, &unnumbered)?;
        Ok(vec![
            ("tls", Reply::to(&packet, tls.messages.receive()?).context("tls")?),
            ("https", Reply::to(&unnumbered, post.message).context("https")?),
            ("quic", Reply::to(&unnumbered, quic).context("quic")?),
        ])
    }
}

/// Returns queries with replies of every kind.
fn questions() -> Vec<Query> {
    let at = |relative: &str, qtype| Query::new(&format!("{relative}.{ZONE}"), qtype);
    let edns = || Edns::new(1232);
    vec![
        at("hdls1.testns.svc", "A"),
        at("hdls1.testns.svc", "AAAA").edns(edns()),
        at("_http._tcp.hdls1.testns.svc", "SRV"),
        at("full.detect.lab.svc", "TXT").edns(Edns { flags: DO, ..edns() }),
        at("HdLsPrTlS.TeStNs.SvC", "A"),
        at("hdlsprtls.testns.svc", "AAAA"),
        at("nothing.testns.svc", "A").edns(edns()),
        at("testns.svc", "ANY"),
        at("dns-version", "TXT"),
        Query::new(ZONE, "SOA"),
        Query::new(ZONE, "NS").edns(edns()),
        Query::new("100.0.0.10.in-addr.arpa", "PTR"),
        Query::new("example.org", "A"),
        Query::new("example.org", "A").edns(edns()),
        Query::new(".", "NS").flags(0),
        at("hdls1.testns.svc", "A").class(3),
        Query::new(ZONE, "SOA").edns(Edns { version: 1, ..edns() }),
        Query::new(ZONE, "SOA").edns(edns().option(10, b"12345678").option(65_001, b"")),
    ]
}

#[test]
fn encrypted_transports_carry_the_same_messages() -> Result<()> {
    let secured = start(&folder())?;
    for query in questions() {
        let expected = secured.server.ask_tcp(&query)?;
        for (transport, reply) in secured.ask(&query).with_context(|| query.to_string())? {
            ensure!(
                reply.text(ZONE) == expected.text(ZONE),
                "{query} over {transport}\n{}\nover TCP\n{}",
                reply.text(ZONE),
                expected.text(ZONE),
            );
            ensure!(
                reply.has_question() == expected.has_question(),
                "{query} over {transport}: the question"
            );
            ensure!(
                reply.has_question() && reply.raw[12..].starts_with(&query.question()),
                "{query} over {transport}: the question changed",
            );
            // The order of records is a part of the message.
            ensure!(reply.answers() == expected.answers(), "{query} over {transport}: another order");
            ensure!(reply.additionals() == expected.additionals(), "{query} over {transport}: another order");
        }
    }
    Ok(())
}

/// The freshness of an HTTP reply is the lowest time to live in it (RFC 8484 §5.1).
#[test]
fn http_replies_expire_with_their_records() -> Result<()> {
    let secured = start(&folder())?;
    let https = secured.server.address("https")?;
    for (name, seconds) in [
        ("hdls1.testns.svc", 5),
        ("nothing.testns.svc", 5),
        ("zero.ttl.svc", 0),
        ("hour.ttl.svc", 3600),
        // The time to live of a service does not apply to negative answers.
        ("x.hour.ttl.svc", 5),
    ] {
        let mut query = Query::new(&format!("{name}.{ZONE}"), "A");
        query.id = 0;
        let reply = secured.client.https(https, Method::Post, &query.to_wire())?;
        assert_eq!(reply.cache_control, Some(format!("max-age={seconds}")), "{name}");
    }
    Ok(())
}

/// New connections get the new certificate, and open ones stay. A certificate that does not belong
/// to its key is not used.
#[test]
fn certificates_are_reloaded() -> Result<()> {
    let secured = start(&folder())?;
    let address = secured.server.address("tls")?;
    let mut old = secured.client.tls(address)?;
    let other = secured.authority.server("other.test")?;

    fs::copy(&other.cert, &secured.certificate.cert)?;
    // So far only the certificate has changed, which does not belong to the key. The server warns
    // and keeps the old pair.
    let cert = secured.certificate.cert.display().to_string();
    eventually("a warning about the certificate", || {
        let log = secured.server.log();
        ensure!(log.lines().any(|line| line.contains(" WARN ") && line.contains(&cert)), "the log is\n{log}");
        Ok(())
    })?;
    ensure!(
        secured.client.tls(address)?.certificate == old.certificate,
        "the new certificate was used without its key"
    );

    fs::copy(&other.key, &secured.certificate.key)?;
    let query = Query::new(ZONE, "SOA");
    eventually("the new certificate to be used", || {
        let mut new = secured.client.tls(address)?;
        ensure!(new.certificate != old.certificate, "it is still the old one");
        new.messages.send(&query.to_wire())?;
        Reply::to(&query.to_wire(), new.messages.receive()?)
    })?;
    old.messages.send(&query.to_wire())?;
    Reply::to(&query.to_wire(), old.messages.receive()?).context("the old connection")?;
    for (transport, reply) in secured.ask(&query)? {
        ensure!(reply.rcode() == "NOERROR", "{transport}: {}", reply.rcode());
    }
    Ok(())
}
