//! Unbound and CoreDNS between clients and the server: their answers are the server's, and they
//! keep them.

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

/// How long one may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long answers live: longer than the tests take, for what is kept to be told from what is
/// asked again.
const TTL: &str = "--ttl 3600";

/// A running Unbound.
struct Unbound {
    process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

impl Unbound {
    /// Starts one that has these zones from `server`, as `kind` (`forward` or `stub`) says, with
    /// one more option.
    async fn start(kind: &str, server: SocketAddr, option: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().display();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        // Without DNSSEC, without what it knows of private addresses, and with everything by which
        // it protects itself: questions in mixed case (draft-vixie-dnsext-dns0x20), and for no more
        // of a name than needed (RFC 9156).
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

/// The messages that dig has from a forwarder.
fn dig(forwarder: SocketAddr, options: &str) -> impl Fn(&[Question]) -> Result<Vec<Printed>> {
    move |questions| {
        let mut dig = Command::new("dig");
        dig.args([&format!("@{}", forwarder.ip()), "-p", &forwarder.port().to_string()]);
        dig.args(["+tries=1", "+time=20"]).args(options.split_whitespace()).args(arguments(questions));
        Ok(Printed::by(&mut dig)?.0)
    }
}

/// Asks a forwarder for everything, and then again: what it knows it does not ask for. One that has
/// asked over UDP asks the server over TCP for what does not fit.
fn check_forwarder(forwarder: SocketAddr, server: &Server) -> Result<()> {
    let dig = |options| dig(forwarder, options);
    check(&dig("")).context("at first")?;
    let before = asked(server, "")?;
    for options in ["", "+noedns", "+tcp"] {
        check(&dig(options)).with_context(|| format!("dig {options}"))?;
    }
    let again = asked(server, "")? - before;
    ensure!(again == 0, "{again} questions of which the answers were known");
    for options in ["", "+tcp", "+noedns"] {
        check_large(&dig(options)).with_context(|| format!("dig {options}"))?;
    }
    ensure!(asked_over_tcp(server)? > 0, "nothing was asked over TCP");
    Ok(())
}

/// Unbound has taken every answer as it came: nothing was asked again because of a changed case of
/// letters, for one.
fn check_log(unbound: &Unbound) -> Result<()> {
    let log = unbound.process.log();
    for complaint in ["Capsforid", "0x20 fallback", "was THROWAWAY", "LAME", "SERVFAIL"] {
        let line = log.lines().find(|line| line.contains(complaint));
        ensure!(line.is_none(), "Unbound complains: {line:?}");
    }
    Ok(())
}

#[tokio::test]
async fn unbound_forwards() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let unbound = Unbound::start("forward", server.dns(), "").await?;
    check_forwarder(unbound.address, &server)?;
    check_log(&unbound)
}

/// As a resolver that asks for no more than it needs: names between the zone and the service exist
/// for it.
#[tokio::test]
async fn unbound_resolves() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let unbound = Unbound::start("stub", server.dns(), "").await?;
    check_forwarder(unbound.address, &server)?;
    check_log(&unbound)?;

    // It takes a name for missing as soon as one above it is, and does not keep that.
    let strict = Unbound::start("stub", server.dns(), "qname-minimisation-strict: yes").await?;
    check(&dig(strict.address, "")).context("strictly")?;
    check_log(&strict)
}

/// CoreDNS with its cache; what else it may be told `tests/cluster/coredns.rs` tries.
#[tokio::test]
async fn coredns_forwards() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words(TTL))?;
    let plugins = format!("forward . {}\n  cache 3600", server.dns());
    let coredns = CoreDns::start(&[(".", &plugins)]).await?;
    check_forwarder(coredns.address(), &server)
}
