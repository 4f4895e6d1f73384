use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use multinet_dns::net::connections::Connections;
use multinet_dns::net::listen::bind_udp;
use multinet_dns::net::quic::QuicListener;
use multinet_dns::ops::metrics::ConnectionMetrics;
use prometheus_client::metrics::counter::Counter;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use rustls::RootCertStore;
use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{
    A, AXFR, BIG, BIG_ADDRESSES, SMALL, answers, certificates, client_config, engine, frame, query,
};

const LOOPBACK: &str = "127.0.0.1:0";

/// A DoQ listener and the certificate that clients trust. quinn uses the real clock, so these tests
/// wait for events, with a timeout.
struct Server {
    addr: SocketAddr,
    trusted: RootCertStore,
    evicted: Counter,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Server {
    fn start(most_connections: usize) -> Self {
        let evicted = Counter::default();
        let metrics = ConnectionMetrics { evicted: evicted.clone(), ..ConnectionMetrics::default() };
        Self::among(Connections::new(most_connections, metrics), evicted)
    }

    fn among(connections: Connections, evicted: Counter) -> Self {
        let (certificates, trusted) = certificates();
        let socket = bind_udp(LOOPBACK.parse().unwrap()).unwrap();
        let addr = socket.local_addr().unwrap();
        let listener = QuicListener::new(socket, &certificates, engine(), connections).unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(listener.run(shutdown.clone()));
        Self { addr, trusted, evicted, shutdown, running }
    }

    /// Returns a client's socket. Its connections end when it is dropped.
    fn client(&self, alpn: &[u8]) -> Endpoint {
        let config = QuicClientConfig::try_from(client_config(&self.trusted, &[alpn])).unwrap();
        let mut client = Endpoint::client(LOOPBACK.parse().unwrap()).unwrap();
        client.set_default_client_config(ClientConfig::new(Arc::new(config)));
        client
    }

    async fn connect(&self) -> Connection {
        self.client(b"doq").connect(self.addr, "dns.test").unwrap().await.unwrap()
    }

    /// Begins `count` handshakes that no client continues.
    async fn silent_handshakes(&self, count: u32) {
        let between = UdpSocket::bind(LOOPBACK).await.unwrap();
        let target = between.local_addr().unwrap();
        for _ in 0..count {
            let client = self.client(b"doq");
            let _connecting = client.connect(target, "dns.test").unwrap();
            let mut hello = [0; 2048];
            let (length, _) = between.recv_from(&mut hello).await.unwrap();
            between.send_to(&hello[..length], self.addr).await.unwrap();
        }
    }
}

/// Sends bytes on a new stream, and returns the whole reply.
async fn send(connection: &Connection, octets: &[u8]) -> Vec<u8> {
    let (mut to, mut from) = connection.open_bi().await.unwrap();
    to.write_all(octets).await.unwrap();
    to.finish().unwrap();
    from.read_to_end(1 << 17).await.unwrap()
}

/// Sends a query, and returns the one message of the reply.
async fn ask(connection: &Connection, name: &str, qtype: u16) -> Vec<u8> {
    let reply = send(connection, &frame(&query(0, name, qtype))).await;
    assert_eq!(reply, frame(&reply[2..]), "one message");
    reply[2..].to_vec()
}

/// Less than the time limit of a silent handshake: a client that waits for one takes longer.
const UNDELAYED: Duration = Duration::from_millis(4500);

/// Returns the code with which the server closes a connection.
async fn close_code(connection: &Connection) -> VarInt {
    match timeout(Duration::from_secs(20), connection.closed()).await {
        Ok(ConnectionError::ApplicationClosed(close)) => close.error_code,
        other => panic!("not closed by the server: {other:?}"),
    }
}

#[tokio::test]
async fn many_queries_on_one_connection_are_answered() {
    let server = Server::start(10);
    let connection = server.connect().await;
    for _ in 0..150 {
        assert_eq!(answers(&ask(&connection, SMALL, A).await), 1);
    }
    let mut asking = JoinSet::new();
    for _ in 0..150 {
        let connection = connection.clone();
        asking.spawn(async move { answers(&ask(&connection, SMALL, A).await) });
    }
    assert_eq!(asking.join_all().await, [1; 150]);
}

#[tokio::test]
async fn a_reply_larger_than_a_window_is_delivered() {
    let server = Server::start(10);
    let connection = server.connect().await;
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let connection = connection.clone();
        asking.spawn(async move { u32::from(answers(&ask(&connection, BIG, A).await)) });
    }
    let all = asking.join_all().await;
    assert!(all.len() == 50 && all.iter().all(|&count| count > BIG_ADDRESSES / 2), "{all:?}");
}

#[tokio::test]
async fn the_largest_query_is_answered() {
    let server = Server::start(10);
    let connection = server.connect().await;
    let mut long = query(0, SMALL, A);
    long.resize(65_535, 0);
    assert!(!send(&connection, &frame(&long)).await.is_empty());
}

/// Sends an incomplete message. Returns the stream, unless the server has already ended it.
async fn send_half(connection: &Connection) -> Option<(SendStream, RecvStream)> {
    let (mut to, from) = connection.open_bi().await.ok()?;
    to.write_all(&[[255; 2].as_slice(), &[0; 40_000]].concat()).await.ok()?;
    Some((to, from))
}

/// Returns whether the server still waits for the rest after some time.
async fn is_waited_for(half: Option<(SendStream, RecvStream)>) -> bool {
    let Some((_to, mut from)) = half else { return false };
    timeout(Duration::from_millis(500), from.read(&mut [0])).await.is_err()
}

#[tokio::test]
async fn incomplete_queries_of_all_connections_are_bounded() {
    let server = Server::among(
        Connections::with_memory_limit(100, 1 << 20, ConnectionMetrics::default()),
        Counter::default(),
    );
    let client = server.client(b"doq");
    let mut sending = JoinSet::new();
    for _ in 0..40 {
        let connection = client.connect(server.addr, "dns.test").unwrap().await.unwrap();
        sending.spawn(async move { (send_half(&connection).await, connection) });
    }
    let (halves, connections): (Vec<_>, Vec<_>) = sending.join_all().await.into_iter().unzip();
    // A client with a small query is not affected.
    assert_eq!(answers(&ask(&server.connect().await, SMALL, A).await), 1);
    let waiting: JoinSet<bool> = halves.into_iter().map(is_waited_for).collect();
    let waiting = waiting.join_all().await.into_iter().filter(|&waits| waits).count();
    // Each stream holds at least 40,002 bytes, and at most twice as many.
    assert!((5..=26).contains(&waiting), "{waiting}");
    // The memory is free again when the connections have ended.
    drop(connections);
    let whole = async { while !is_waited_for(send_half(&server.connect().await).await).await {} };
    timeout(UNDELAYED, whole).await.unwrap();
}

#[tokio::test]
async fn zones_are_not_transferred() {
    let server = Server::start(10);
    let reply = ask(&server.connect().await, "z", AXFR).await;
    assert_eq!((reply[3] & 0xf, answers(&reply)), (5, 0), "refused");
}

#[tokio::test]
async fn a_client_with_another_protocol_is_refused() {
    let server = Server::start(10);
    assert!(server.client(b"h3").connect(server.addr, "dns.test").unwrap().await.is_err());
}

#[tokio::test]
async fn silent_handshakes_do_not_delay_others() {
    let server = Server::start(20);
    server.silent_handshakes(1).await;
    let first = timeout(UNDELAYED, server.connect()).await.unwrap();
    assert_eq!(answers(&ask(&first, SMALL, A).await), 1);
    // Enough that the next client must prove its address. They must not use up the connections.
    server.silent_handshakes(50).await;
    let second = timeout(UNDELAYED, server.connect()).await.unwrap();
    assert_eq!(answers(&ask(&second, SMALL, A).await), 1);
    assert_eq!(server.evicted.get(), 0);
}

#[tokio::test]
async fn a_connection_beyond_the_limit_evicts_the_idlest() {
    let server = Server::start(1);
    let first = server.connect().await;
    assert_eq!(answers(&ask(&first, SMALL, A).await), 1);
    // Clients that never complete a handshake do not get that far.
    server.silent_handshakes(5).await;
    assert_eq!((server.evicted.get(), answers(&ask(&first, SMALL, A).await)), (0, 1));
    let second = server.connect().await;
    assert_eq!(answers(&ask(&second, SMALL, A).await), 1);
    assert_eq!(close_code(&first).await, VarInt::from_u32(4), "DOQ_EXCESSIVE_LOAD");
    assert_eq!(server.evicted.get(), 1);
}

#[tokio::test]
async fn a_reset_stream_ends_alone() {
    let server = Server::start(10);
    let connection = server.connect().await;
    // More streams than may be open at a time.
    for _ in 0..40 {
        let (mut to, mut from) = connection.open_bi().await.unwrap();
        to.write_all(&[0, 30, 0]).await.unwrap();
        to.reset(VarInt::from_u32(3)).unwrap();
        assert!(from.read_to_end(1 << 17).await.is_err(), "no reply, and not as if there were one");
    }
    assert_eq!(answers(&ask(&connection, SMALL, A).await), 1);
}

#[tokio::test]
async fn a_stream_does_not_wait_for_another() {
    let server = Server::start(10);
    let connection = server.connect().await;
    let (mut to, mut from) = connection.open_bi().await.unwrap();
    let octets = frame(&query(0, SMALL, A));
    to.write_all(&octets[..9]).await.unwrap();
    assert_eq!(answers(&ask(&connection, SMALL, A).await), 1);
    to.write_all(&octets[9..]).await.unwrap();
    to.finish().unwrap();
    assert_eq!(answers(&from.read_to_end(1 << 17).await.unwrap()[2..]), 1);
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_loses_its_connection() {
    let server = Server::start(10);
    let good = query(0, SMALL, A);
    let mut reply = good.clone();
    reply[2] |= 0x80;
    let mut keepalive = good.clone();
    keepalive[11] = 1;
    keepalive.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 4, 0, 11, 0, 0]);
    let mut beside = keepalive.clone();
    beside[11] = 2;
    beside.extend([0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0]);
    for (octets, what) in [
        (frame(&query(1, SMALL, A)), "an id"),
        ([frame(&good), frame(&good)].concat(), "two messages"),
        (frame(&good)[..20].to_vec(), "incomplete message"),
        (vec![0; 66_000], "too much"),
        (vec![], "nothing"),
        (vec![0, 0], "an empty message"),
        (frame(&reply), "a reply"),
        (frame(&keepalive), "an option of TCP"),
        (frame(&beside), "an option of TCP with another record"),
    ] {
        let connection = server.connect().await;
        let (mut to, _from) = connection.open_bi().await.unwrap();
        // The server may close before it has read everything.
        let _ = to.write_all(&octets).await;
        let _ = to.finish();
        assert_eq!(close_code(&connection).await, VarInt::from_u32(2), "{what}");
    }
}

/// The server does not keep the data until the stream ends.
#[tokio::test]
async fn a_second_message_on_a_stream_ends_the_connection() {
    let server = Server::start(10);
    let connection = server.connect().await;
    let (mut to, _from) = connection.open_bi().await.unwrap();
    to.write_all(&frame(&query(0, SMALL, A)).repeat(2)).await.unwrap();
    assert_eq!(timeout(UNDELAYED, close_code(&connection)).await, Ok(VarInt::from_u32(2)));
}

#[tokio::test]
async fn a_shutdown_answers_the_queries_in_progress() {
    let server = Server::start(10);
    let connection = server.connect().await;
    let idle = server.connect().await;
    let octets = frame(&query(0, BIG, A));
    let (mut to, mut from) = connection.open_bi().await.unwrap();
    to.write_all(&octets[..9]).await.unwrap();
    // The server accepts streams in order.
    assert_eq!(answers(&ask(&connection, SMALL, A).await), 1);

    server.shutdown.cancel();
    assert_eq!(close_code(&idle).await, VarInt::from_u32(0));
    let client = server.client(b"doq");
    assert!(client.connect(server.addr, "dns.test").unwrap().await.is_err());
    to.write_all(&octets[9..]).await.unwrap();
    to.finish().unwrap();
    let reply = from.read_to_end(1 << 17).await.unwrap();
    assert_eq!(reply, frame(&reply[2..]));
    assert_eq!(close_code(&connection).await, VarInt::from_u32(0));
    timeout(Duration::from_secs(20), server.running).await.unwrap().unwrap();
}
