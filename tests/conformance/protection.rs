//! Cookies, rate limits, and limits of connections and descriptors, with common clients.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use multinet_testing::dns::secure::Client;
use multinet_testing::dns::{Edns, Query, Reply, Tcp, udp_socket};
use multinet_testing::pki::FileAuthority;
use multinet_testing::process;
use multinet_testing::server::{Flags, Server, eventually};
use multinet_testing::usage::resident_mebibytes;

use crate::fixtures::{ZONE, folder, server};

/// Option code of cookies.
const COOKIE: u16 = 10;

/// Runs a client for a name with four addresses. Returns its output.
fn run(client: &str, server: &Server, options: &[&str]) -> Result<String> {
    let port = server.dns().port().to_string();
    let name = format!("hdls1.testns.svc.{ZONE}");
    process::run(Command::new(client).args(["@127.0.0.1", "-p", &port]).args(options).args([&name, "A"]))
}

fn with_cookie(cookie: &[u8]) -> Query {
    Query::new(ZONE, "SOA").edns(Edns::new(1232).option(COOKIE, cookie))
}

/// Returns the cookie in a reply's OPT record, which has to be the last option.
fn cookie_of(reply: &Reply) -> Result<Vec<u8>> {
    let Some((rest, cookie)) = reply.raw.split_last_chunk::<24>() else { bail!("the reply is too short") };
    ensure!(rest.ends_with(&[0, 10, 0, 24]), "no cookie at the end of {:02x?}", reply.raw);
    Ok(cookie.to_vec())
}

#[test]
fn dig_and_kdig_accept_the_cookie() -> Result<()> {
    for (client, options, says) in [
        ("dig", &["+cookie"][..], "(good)"),
        ("dig", &["+cookie", "+tcp"], "(good)"),
        ("dig", &["+cookie", "+nsid"], "(good)"),
        ("dig", &["+cookie", "+header-only"], "(good)"),
        ("kdig", &["+cookie"], "COOKIE:"),
        ("kdig", &["+cookie", "+tcp"], "COOKIE:"),
        ("kdig", &["+cookie=00112233445566778899aabbccddeeff0011223344556677"], "COOKIE: 0011223344556677"),
    ] {
        let printed = run(client, server(), options)?;
        ensure!(printed.contains(says), "{client} {options:?} prints\n{printed}");
        ensure!(printed.contains("NOERROR"), "{client} {options:?} prints\n{printed}");
    }
    Ok(())
}

#[test]
fn replicas_with_one_secret_accept_each_others_cookies() -> Result<()> {
    let secret = tempfile::NamedTempFile::new()?;
    fs::write(secret.path(), "00112233445566778899aabbccddeeff\n")?;
    let start = || Flags::new().flag("--cookie-secret-file", secret.path()).start(&folder());
    let (one, other) = (start()?, start()?);
    let cookie = cookie_of(&one.ask(&with_cookie(b"12345678"))?)?;
    other.ask(&with_cookie(&cookie))?;
    let proven =
        |server: &Server| server.metric(r#"multinet_dns_cookies_total{proto="udp",cookie="proven"}"#);
    ensure!(proven(&other)? == 1.0, "another replica does not accept the cookie");
    // A server without the file has its own random secret.
    let lone = Flags::new().start(&folder())?;
    lone.ask(&with_cookie(&cookie))?;
    ensure!(proven(&lone)? == 0.0, "a server without the secret accepts the cookie");
    Ok(())
}

/// Limited clients try again over TCP, or with the cookie of the first reply.
#[test]
fn limited_clients_recover_and_exempt_ones_are_not_limited() -> Result<()> {
    let server = Flags::new().words("--rate-limit 1").start(&folder())?;
    let socket = udp_socket(server.dns())?;
    for _ in 0..20 {
        socket.send(&Query::new(ZONE, "SOA").to_wire())?;
    }
    for (client, options) in [("dig", &["+cookie", "+short"][..]), ("kdig", &["+cookie", "+short"])] {
        for _ in 0..3 {
            let printed = run(client, &server, options)?;
            let addresses = printed.lines().filter(|line| line.parse::<std::net::IpAddr>().is_ok()).count();
            ensure!(addresses == 4, "{client} prints\n{printed}");
        }
    }
    ensure!(server.metric("multinet_dns_limited_total")? > 0.0, "nothing was limited");

    let server = Flags::new().words("--rate-limit 1 --rate-limit-exempt 127.0.0.0/8").start(&folder())?;
    for _ in 0..100 {
        let reply = server.query(ZONE, "SOA")?;
        ensure!(reply.header() == "QUERY NOERROR aa rd", "an exempt client gets {}", reply.header());
    }
    Ok(())
}

#[test]
fn flags_set_the_udp_payload_and_the_connection_limit() -> Result<()> {
    let server = Flags::new().words("--udp-payload-size 4096 --tcp-max-connections 3").start(&folder())?;
    let reply = server.ask(&Query::new(ZONE, "SOA").edns(Edns::new(1232)))?;
    ensure!(reply.edns().as_deref() == Some("EDNS 0 4096"), "{:?}", reply.edns());
    let held = (0..5).map(|_| open(&server, 1)).collect::<Result<Vec<_>>>()?;
    let evicted = server.metric("multinet_dns_connections_evicted_total")?;
    ensure!(evicted == 2.0, "{evicted} of {} connections were evicted", held.len());
    Ok(())
}

/// Opens connections at the same time, and sends one query on each.
fn open(server: &Server, count: usize) -> Result<Vec<Tcp>> {
    let query = Query::new(ZONE, "SOA").to_wire();
    let connect = || {
        let mut stream = Tcp::connect(server.dns())?;
        stream.send(&query)?;
        anyhow::Ok(stream)
    };
    let mut all = (0..count).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    for (number, stream) in all.iter_mut().enumerate() {
        stream.receive().with_context(|| format!("connection {number} is not served"))?;
    }
    Ok(all)
}

/// The number is the default limit, because CoreDNS and NodeLocal DNSCache keep connections open.
#[test]
fn idle_connections_take_little_memory() -> Result<()> {
    // Opened one by one, the first connections would reach the idle timeout before the last is
    // open.
    const AT_A_TIME: usize = 200;
    // The server uses some descriptors for HTTPS and for itself.
    let files = rlimit::increase_nofile_limit(u64::MAX)? as usize;
    let connections = (files - files / 8).min(20_000) - 200;
    let mut server = Flags::new().start(&folder())?;
    let pid = server.process().pid();
    // The first connections also allocate memory that all share.
    let mut held = open(&server, AT_A_TIME)?;
    let before = resident_mebibytes(pid)?;
    let all = AT_A_TIME + connections;
    let mut asked = Instant::now();
    while held.len() < all {
        // Queries keep the connections from reaching the idle timeout of half a minute.
        if asked.elapsed() > Duration::from_secs(8) {
            ask_all(&mut held)?;
            asked = Instant::now();
        }
        held.extend(open(&server, AT_A_TIME.min(all - held.len()))?);
    }
    ask_all(&mut held)?;
    take_at_most(8.0, connections, pid, before)?;
    // All connections are still open and served.
    ask_all(&mut held)
}

/// Sends a query on every connection. Fails if one gets no answer.
fn ask_all(held: &mut [Tcp]) -> Result<()> {
    let query = Query::new(ZONE, "SOA").to_wire();
    for stream in &mut *held {
        stream.send(&query)?;
    }
    for (number, stream) in held.iter_mut().enumerate() {
        stream.receive().with_context(|| format!("connection {number} gets no answer"))?;
    }
    Ok(())
}

/// TLS needs additional memory for keys and buffers.
#[test]
fn idle_tls_connections_take_little_memory() -> Result<()> {
    const CONNECTIONS: usize = 500;
    let authority_folder = tempfile::tempdir()?;
    let authority = FileAuthority::new(authority_folder.path())?;
    let certificate = authority.server("dns.test")?;
    let mut server = Flags::new()
        .listen("tls://127.0.0.1:0")
        .flag("--tls-cert", &certificate.cert)
        .flag("--tls-key", &certificate.key)
        .start(&folder())?;
    let (pid, address) = (server.process().pid(), server.address("tls")?);
    let client = Client::trusting(&authority.ca())?;
    let query = Query::new(ZONE, "SOA").to_wire();
    let open = || {
        let mut stream = client.tls(address)?;
        stream.messages.send(&query)?;
        stream.messages.receive()?;
        Ok(stream)
    };
    let _first = (0..100).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let before = resident_mebibytes(pid)?;
    let _held = (0..CONNECTIONS).map(|_| open()).collect::<Result<Vec<_>>>()?;
    take_at_most(48.0, CONNECTIONS, pid, before)
}

/// Waits until each connection takes at most this memory, after its buffers are freed. `before` is
/// the resident memory in MiB without the connections.
fn take_at_most(kibibytes: f64, connections: usize, pid: u32, before: f64) -> Result<()> {
    eventually("the buffers to be freed", || {
        let each = (resident_mebibytes(pid)? - before) * 1024.0 / connections as f64;
        ensure!(each <= kibibytes, "an idle connection takes {each:.2} KiB");
        Ok(())
    })
}

/// Without free descriptors, a new connection evicts the one that has been idle longest, and UDP is
/// not affected.
#[test]
fn the_server_stays_reachable_without_free_descriptors() -> Result<()> {
    let mut server = Flags::new().start(&folder())?;
    let pid = server.process().pid();
    let numbers = || -> Result<Vec<usize>> {
        let number = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(number).collect())
    };
    let limit = numbers()?.len() + 10;
    // The limit applies to the numbers of new descriptors. Open ones with higher numbers stay, and
    // do not count.
    let files = || anyhow::Ok(numbers()?.into_iter().filter(|&number| number < limit).count());
    let status = Command::new("prlimit").args([format!("--pid={pid}"), format!("--nofile={limit}")]).status();
    ensure!(status.context("cannot start prlimit")?.success(), "the limit cannot be set");

    // The connections are opened one after the other. Of connections that come at the same time,
    // some would be evicted before they are served.
    let (mut held, mut most) = (Vec::new(), 0);
    for _ in 0..60 {
        held.extend(open(&server, 1)?);
        most = most.max(files()?);
    }
    // An evicted connection may leave one descriptor free.
    ensure!(most + 1 >= limit, "only {most} of {limit} descriptors are open");
    ensure!(server.query(ZONE, "SOA")?.rcode() == "NOERROR", "UDP is affected");
    let query = Query::new(ZONE, "SOA").to_wire();
    let mut is_served = |number: usize| {
        let stream: &mut Tcp = &mut held[number];
        stream.send(&query).and_then(|()| stream.receive()).is_ok()
    };
    ensure!(
        is_served(59) && is_served(58) && !is_served(0),
        "other connections than the idlest were evicted"
    );
    drop(held);
    eventually("descriptors to be freed", || {
        ensure!(files()? + 5 < limit, "no descriptors are free");
        Ok(())
    })?;
    open(&server, 5)?;
    Ok(())
}
