//! Unbound and CoreDNS between client and server: they pass the server's answers on and cache them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::coredns::CoreDns;
use multinet_testing::dns::{Query, Transport};
use multinet_testing::process::{Process, free_port};
use multinet_testing::server::{Flags, Server};
use tempfile::TempDir;

use crate::clients::printed::{Printed, Question, arguments, check, check_large};
use crate::clients::{asked, asked_over_tcp, start};
use crate::fixtures::ZONE;

/// Time limit for a forwarder to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time to live of the answers, longer than the tests take, so that no cached answer expires.
const TTL: &str = "--ttl 3600";

/// Running Unbound.
struct Unbound {
    process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

impl Unbound {
    /// Starts an Unbound that gets the zones from `server` as `kind` says (`forward` or `stub`),
    /// with an additional option.
    async fn start(kind: &str, server: SocketAddr, option: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().display();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        // DNSSEC and the built-in zones of private addresses are off. Its protections are on:
        // queries in mixed case (draft-vixie-dnsext-dns0x20) and minimised names (RFC 9156).
        let mut config = format!(
            "server:\n  interface: 127.0.0.1\n  port: {port}\n  directory: \"{place}\"\n  pidfile: \"{place}/pid\"\n  \
             username: \"\"\n  chroot: \"\"\n  use-syslog: no\n  logfile: \"\"\n  verbosity: 4\n  num-threads: 1\n  \
             do-not-query-localhost: no\n  module-config: \"iterator\"\n  use-caps-for-id: yes\n  \
             qname-minimisation: yes\n  {option}\n  \
             local-zone: \"10.in-addr.arpa.\" nodefault\n  local-zone: \"d.f.ip6.arpa.\" nodefault\n\
             remote-control:\n  control-enable: no\n",
            port = address.port(),
        );
        for zone in [ZONE, "in-addr.arpa", "ip6.arpa"] {
            config +=
                &format!("{kind}-zone:\n  name: {zone}\n  {kind}-addr: {}@{}\n", server.ip(), server.port());
        }
        let path = folder.path().join("unbound.conf");
        fs::write(&path, config)?;
        let mut command = Command::new("unbound");
        command.args(["-d", "-p", "-c"]).arg(&path);
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        let mut process = Process::spawn(&mut command, &folder.path().join("log"))?;
        let ready = Query::new("localhost", "A");
        let ask = async || Transport::Udp.ask(address, &ready).map(drop);
        process.until("answer", PATIENCE, ask).await?;
        Ok(Self { process, address, _folder: folder })
    }
}

/// Returns a client that queries a forwarder by dig.
fn dig(forwarder: SocketAddr, options: &str) -> impl Fn(&[Question]) -> Result<Vec<Printed>> {
    move |questions| {
        let mut dig = Command::new("dig");
        dig.args([&format!("@{}", forwarder.ip()), "-p", &forwarder.port().to_string()]);
        dig.args(["+tries=1", "+time=20"]).args(options.split_whitespace()).args(arguments(questions));
        Ok(Printed::by(&mut dig)?.0)
    }
}

/// Sends all queries through a forwarder, twice. The second time, the forwarder must answer from
/// its cache. For answers that do not fit into a datagram, it must query the server over TCP.
fn check_forwarder(forwarder: SocketAddr, server: &Server) -> Result<()> {
    let dig = |options| dig(forwarder, options);
    check(&dig("")).context("the first time")?;
    let before = asked(server, "")?;
    for options in ["", "+noedns", "+tcp"] {
        check(&dig(options)).with_context(|| format!("dig {options}"))?;
    }
    let again = asked(server, "")? - before;
    ensure!(again == 0, "{again} queries for cached answers");
    for options in ["", "+tcp", "+noedns"] {
        check_large(&dig(options)).with_context(|| format!("dig {options}"))?;
    }
    ensure!(asked_over_tcp(server)? > 0, "no query came over TCP");
    Ok(())
}

/// Fails if Unbound has rejected an answer, for example because the case of its letters changed.
fn check_log(unbound: &Unbound) -> Result<()> {
    let log = unbound.process.log();
    for complaint in ["Capsforid", "0x20 fallback", "was THROWAWAY", "LAME", "SERVFAIL"] {
        let line = log.lines().find(|line| line.contains(complaint));
        ensure!(line.is_none(), "Unbound has rejected an answer: {line:?}");
    }
    Ok(())
}

#[tokio::test]
async fn unbound_forwards_and_caches_answers() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let unbound = Unbound::start("forward", server.dns(), "").await?;
    check_forwarder(unbound.address, &server)?;
    check_log(&unbound)
}

/// A resolver that minimises names relies on the existence of the names between zone and service.
#[tokio::test]
async fn unbound_resolves_with_minimised_names() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let unbound = Unbound::start("stub", server.dns(), "").await?;
    check_forwarder(unbound.address, &server)?;
    check_log(&unbound)?;

    // With this option, NXDOMAIN for a name ends the resolution of all names below it. Such an
    // Unbound caches no negative answers.
    let strict = Unbound::start("stub", server.dns(), "qname-minimisation-strict: yes").await?;
    check(&dig(strict.address, "")).context("with strict minimisation")?;
    check_log(&strict)
}

/// Tests of CoreDNS with other options are in `tests/cluster/coredns.rs`.
#[tokio::test]
async fn coredns_forwards_and_caches_answers() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let plugins = format!("forward . {}\n  cache 3600", server.dns());
    let coredns = CoreDns::start(&[(".", &plugins)]).await?;
    check_forwarder(coredns.address(), &server)
}
