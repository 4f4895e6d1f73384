use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use multinet_dns::net::engine::{Engine, Settings};
use multinet_dns::net::listen::bind_dns;
use multinet_dns::net::udp::UdpListener;
use multinet_dns::ops::metrics::{self, SourceMetrics, Tallies};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::support::{A, BIG, SMALL, answers, cookie_signer, engine, id, query, state};

/// A listener that stops with its test.
struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    listener: Option<UdpListener>,
}

impl Server {
    fn start(addr: &str, workers: usize) -> Self {
        let bound = bind_dns(addr.parse().unwrap(), workers).unwrap();
        let stop = CancellationToken::new();
        let listener = UdpListener::spawn(bound.udp, &engine(), &stop).unwrap();
        Self { addr: bound.addr, stop, listener: Some(listener) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.listener.take().unwrap().join();
    }
}

/// Returns a client that receives only from the address it queried.
fn client(from: IpAddr, to: impl Into<SocketAddr>) -> UdpSocket {
    let client = UdpSocket::bind((from, 0)).unwrap();
    client.connect(to.into()).unwrap();
    // Without a reply, the test fails instead of hanging.
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

fn reply(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let length = client.recv(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

#[test]
fn the_reply_comes_from_the_address_that_was_queried() {
    for wildcard in ["0.0.0.0:0", "[::]:0"] {
        let server = Server::start(wildcard, 2);
        for asked in ["127.0.0.1", "127.0.0.2", "::1"] {
            let asked: IpAddr = asked.parse().unwrap();
            if asked.is_ipv6() && server.addr.is_ipv4() {
                continue;
            }
            // From the client's own address, the routing table would choose another source.
            let from = if asked.is_ipv6() { asked } else { "127.0.0.1".parse().unwrap() };
            let client = client(from, (asked, server.addr.port()));
            client.send(&query(7, SMALL, A)).unwrap();
            let reply = reply(&client);
            assert_eq!((id(&reply), answers(&reply)), (7, 1), "{wildcard} {asked}");
        }
    }
}

#[test]
fn many_queries_at_once_are_all_answered() {
    let server = Server::start("127.0.0.1:0", 3);
    let clients: Vec<UdpSocket> =
        (0..10).map(|_| client("127.0.0.1".parse().unwrap(), server.addr)).collect();
    for id in 0..50 {
        for client in &clients {
            client.send(&query(id, SMALL, A)).unwrap();
        }
    }
    for client in &clients {
        let ids: BTreeSet<u16> = (0..50).map(|_| id(&reply(client))).collect();
        assert_eq!(ids, (0..50).collect());
    }
}

#[test]
fn a_worker_survives_anything_that_is_sent() {
    let server = Server::start("127.0.0.1:0", 1);
    let local = "127.0.0.1".parse().unwrap();
    let good = client(local, server.addr);
    for round in 0..20 {
        // The client closes its socket before the reply, which causes an ICMP error.
        client(local, server.addr).send(&query(round, SMALL, A)).unwrap();
        good.send(b"").unwrap();
        good.send(b"short").unwrap();
        good.send(&[0xff; 100]).unwrap();
        // Longer than a worker's buffer.
        let mut long = query(1000, SMALL, A);
        long.resize(20_000, 0);
        good.send(&long).unwrap();
        good.send(&query(round, SMALL, A)).unwrap();
        loop {
            let reply = reply(&good);
            if id(&reply) == round {
                break;
            }
            assert_eq!(id(&reply), 1000);
        }
    }
}

#[test]
fn queries_that_arrived_before_the_stop_are_answered() {
    let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 2).unwrap();
    let clients: Vec<UdpSocket> = (0..10).map(|_| client("127.0.0.1".parse().unwrap(), bound.addr)).collect();
    for id in 0..20 {
        for client in &clients {
            client.send(&query(id, SMALL, A)).unwrap();
        }
    }
    let stop = CancellationToken::new();
    stop.cancel();
    UdpListener::spawn(bound.udp, &engine(), &stop).unwrap().join();
    for client in &clients {
        client.set_nonblocking(true).unwrap();
        let ids: BTreeSet<u16> = (0..20).map(|_| id(&reply(client))).collect();
        assert_eq!(ids.len(), 20);
    }
}

/// An overloaded worker drops queries whose clients have timed out, and recovers fully
/// afterwards.
#[test]
fn old_datagrams_are_dropped_under_overload() {
    let (engine, shed) = counted_engine();
    let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let stop = CancellationToken::new();
    let listener = UdpListener::spawn(bound.udp, &engine, &stop).unwrap();
    let flooding = Arc::new(AtomicBool::new(true));
    let flood: Vec<_> = (0..3)
        .map(|_| {
            let (client, flooding) =
                (client("127.0.0.1".parse().unwrap(), bound.addr), Arc::clone(&flooding));
            std::thread::spawn(move || {
                // Long answers take the worker longer than sending the queries takes the test; no
                // client reads them.
                let packet = query(1, BIG, A);
                while flooding.load(Ordering::Relaxed) {
                    let _ = client.send(&packet);
                }
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    while shed() == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let passed_over = shed();
    flooding.store(false, Ordering::Relaxed);
    for thread in flood {
        thread.join().unwrap();
    }
    assert!(passed_over > 0, "nothing was passed over");
    std::thread::sleep(Duration::from_millis(500));
    let after = shed();
    let fresh = client("127.0.0.1".parse().unwrap(), bound.addr);
    for number in 0..200 {
        fresh.send(&query(number, SMALL, A)).unwrap();
        assert_eq!(id(&reply(&fresh)), number);
    }
    assert_eq!(shed(), after);
    stop.cancel();
    listener.join();
}

/// Returns an engine, and a function that counts the packets that its workers have dropped.
fn counted_engine() -> (Engine, impl Fn() -> u64) {
    let tallies = Tallies::default();
    let state = Arc::new(state());
    let mut registry = Registry::default();
    let latency = metrics::programming_latency();
    metrics::register(
        &mut registry,
        tallies.clone(),
        &SourceMetrics::default(),
        &latency,
        Arc::clone(&state),
    );
    let count = move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        // The metric does not exist before the worker does.
        let line = text.lines().find(|line| line.starts_with("multinet_dns_shed_total{"));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    (Engine::new(state, Settings::new(cookie_signer()), tallies), count)
}
