use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_dns::answer::proto::Proto;
use multinet_dns::net::connections::Connections;
use multinet_dns::net::engine::Engine;
use multinet_dns::net::listen::bind_dns;
use multinet_dns::net::tcp::{StreamListener, serve};
use multinet_dns::ops::metrics::ConnectionMetrics;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    A, AXFR, BIG, BIG_ADDRESSES, PEER, SMALL, answers, engine, frame, frames, id, messages, next_message,
    own_engine, query, small_ids,
};

/// A connection in memory that buffers `room` bytes in each direction.
struct Wire {
    client: DuplexStream,
    shutdown: CancellationToken,
    server: JoinHandle<io::Result<()>>,
}

impl Wire {
    fn new(room: usize) -> Self {
        Self::with(&engine(), room)
    }

    fn with(engine: &Engine, room: usize) -> Self {
        Self::among(&Connections::new(1, ConnectionMetrics::default()), engine, room)
    }

    fn among(connections: &Connections, engine: &Engine, room: usize) -> Self {
        let (client, server) = duplex(room);
        let shutdown = CancellationToken::new();
        let (worker, stopping) = (engine.worker(Proto::Tcp), shutdown.clone());
        let permit = connections.admit(PEER);
        let server =
            tokio::spawn(
                async move { serve(server, SocketAddr::new(PEER, 53), worker, &permit, stopping).await },
            );
        Self { client, shutdown, server }
    }

    async fn ask(&mut self, id: u16, name: &str, qtype: u16) {
        self.client.write_all(&frame(&query(id, name, qtype))).await.unwrap();
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        next_message(&mut self.client).await
    }

    /// Returns the result of `serve`, and how long it took.
    async fn ended(self) -> (io::Result<()>, Duration) {
        let begun = Instant::now();
        (self.server.await.unwrap(), begun.elapsed())
    }
}

fn is_timeout(result: &io::Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

#[tokio::test]
async fn pipelined_queries_are_all_answered() {
    let mut wire = Wire::new(1 << 20);
    wire.client.write_all(&frames(1000, SMALL)).await.unwrap();
    // A client that has closed its sending side still gets the replies.
    wire.client.shutdown().await.unwrap();
    assert_eq!(small_ids(&messages(&mut wire.client).await), (0..1000).collect::<Vec<_>>());
    wire.ended().await.0.unwrap();
}

#[tokio::test]
async fn a_query_that_comes_byte_by_byte_is_answered() {
    // A buffer of one byte, so that each byte is a read of its own.
    let mut wire = Wire::new(1);
    for octet in frames(3, SMALL) {
        wire.client.write_all(&[octet]).await.unwrap();
    }
    for expected in 0..3 {
        assert_eq!(id(&wire.next().await.unwrap()), expected);
    }
}

#[tokio::test]
async fn the_largest_messages_are_delivered_in_both_directions() {
    let mut wire = Wire::new(1 << 20);
    wire.ask(1, BIG, A).await;
    let mut long = query(2, SMALL, A);
    long.resize(65_535, 0);
    wire.client.write_all(&frame(&long)).await.unwrap();
    wire.ask(3, SMALL, A).await;
    let big = wire.next().await.unwrap();
    assert_eq!((id(&big), u32::from(answers(&big))), (1, BIG_ADDRESSES));
    for expected in 2..4 {
        assert_eq!(id(&wire.next().await.unwrap()), expected);
    }
}

#[tokio::test]
async fn a_message_that_is_no_query_gets_no_reply() {
    let mut wire = Wire::new(1 << 20);
    let mut response = query(1, SMALL, A);
    response[2] = 0x80;
    wire.client.write_all(&frame(&response)).await.unwrap();
    wire.ask(2, SMALL, A).await;
    assert_eq!(id(&wire.next().await.unwrap()), 2);
}

#[tokio::test]
async fn a_message_without_a_header_ends_the_connection() {
    for length in [0, 11] {
        let mut wire = Wire::new(1 << 20);
        wire.ask(1, SMALL, A).await;
        wire.client.write_all(&frame(&vec![0; length])).await.unwrap();
        wire.ask(2, SMALL, A).await;
        assert_eq!(small_ids(&messages(&mut wire.client).await), [1]);
        drop(wire.client);
        wire.server.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed_after_half_a_minute() {
    let mut wire = Wire::new(1 << 20);
    for id in 0..3 {
        wire.ask(id, SMALL, A).await;
        wire.next().await.unwrap();
        sleep(Duration::from_secs(25)).await;
    }
    let begun = Instant::now();
    assert!(wire.next().await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 5);
    drop(wire.client);
    wire.server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_message_times_out_after_ten_seconds() {
    let mut wire = Wire::new(1 << 20);
    wire.ask(1, SMALL, A).await;
    wire.next().await.unwrap();
    // Neither single bytes nor the announced length extend the time.
    let drip = tokio::spawn(async move {
        while wire.client.write_all(&[255]).await.is_ok() {
            sleep(Duration::from_secs(3)).await;
        }
    });
    let begun = Instant::now();
    assert!(is_timeout(&wire.server.await.unwrap()));
    assert_eq!(begun.elapsed().as_secs(), 10);
    drip.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_read_from_and_times_out() {
    let mut wire = Wire::new(1 << 10);
    // Each reply has 64 KB. The limit on waiting data bounds how many queries are read.
    let queries = frames(100, BIG);
    let written = timeout(Duration::from_secs(5), wire.client.write_all(&queries)).await;
    assert!(written.is_err(), "all was read though nothing was written");
    let (result, _) = wire.ended().await;
    assert!(is_timeout(&result));
}

#[tokio::test(start_paused = true)]
async fn unread_replies_of_all_connections_are_bounded() {
    // Each of these connections would buffer about 128 KiB.
    let connections = Connections::with_memory_limit(100, 1 << 20, ConnectionMetrics::default());
    let mut wires: Vec<Wire> = (0..50).map(|_| Wire::among(&connections, &engine(), 1 << 10)).collect();
    for wire in &mut wires {
        wire.client.write_all(&frames(10, BIG)).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let alive = wires.iter().filter(|wire| !wire.server.is_finished()).count();
    assert!((4..=8).contains(&alive), "{alive}");
    // Clients that read, or that get small replies, are not affected.
    let mut reading = Wire::among(&connections, &engine(), 1 << 20);
    for id in 0..10 {
        reading.ask(id, BIG, A).await;
        assert_eq!(u32::from(answers(&reading.next().await.unwrap())), BIG_ADDRESSES);
    }
    let mut little = Wire::among(&connections, &engine(), 16);
    little.client.write_all(&frames(20, SMALL)).await.unwrap();
    assert_eq!(id(&little.next().await.unwrap()), 0);
    // The memory is free again when the connections have ended.
    drop(wires);
    sleep(Duration::from_secs(1)).await;
    let mut slow = Wire::among(&connections, &engine(), 1 << 10);
    slow.ask(1, BIG, A).await;
    sleep(Duration::from_secs(5)).await;
    assert!(slow.next().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn incomplete_messages_of_all_connections_are_bounded() {
    let connections = Connections::with_memory_limit(100, 1 << 20, ConnectionMetrics::default());
    let mut wires: Vec<Wire> = (0..50).map(|_| Wire::among(&connections, &engine(), 1 << 20)).collect();
    // An incomplete message on each connection; the budget allows a complete one.
    for wire in &mut wires {
        wire.client.write_all(&[[255; 2].as_slice(), &[0; 32_766]].concat()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let alive = wires.iter().filter(|wire| !wire.server.is_finished()).count();
    assert!((12..=16).contains(&alive), "{alive}");
    // A client with ordinary queries is not affected, however they arrive.
    let mut little = Wire::among(&connections, &engine(), 1 << 20);
    let octets = frames(200, SMALL);
    for part in octets.chunks(1000) {
        little.client.write_all(part).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    for expected in 0..200 {
        assert_eq!(id(&little.next().await.unwrap()), expected);
    }
    // The memory is free again when the connections have ended.
    sleep(Duration::from_secs(11)).await;
    assert!(wires.iter().all(|wire| wire.server.is_finished()));
    let mut large = Wire::among(&connections, &engine(), 1 << 10);
    let mut long = query(2, SMALL, A);
    long.resize(65_535, 0);
    large.client.write_all(&frame(&long)).await.unwrap();
    assert_eq!(id(&large.next().await.unwrap()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_but_steady_reader_gets_everything() {
    let mut wire = Wire::new(1 << 10);
    wire.client.write_all(&frames(20, BIG)).await.unwrap();
    // 64 KB every two seconds: more than half a minute for all of it.
    for expected in 0..20 {
        sleep(Duration::from_secs(2)).await;
        assert_eq!(id(&wire.next().await.unwrap()), expected);
    }
    assert!(!wire.server.is_finished());
}

/// Returns the number of messages of a transfer of the zone.
async fn transfer_length(engine: &Engine) -> usize {
    let mut wire = Wire::with(engine, 1 << 20);
    wire.ask(1, "z", AXFR).await;
    wire.client.shutdown().await.unwrap();
    messages(&mut wire.client).await.len()
}

#[tokio::test]
async fn queries_are_answered_in_the_middle_of_a_transfer() {
    let engine = engine();
    let length = transfer_length(&engine).await;
    assert!(length > 5, "{length} messages");
    let mut wire = Wire::with(&engine, 16 << 10);
    wire.ask(1, "z", AXFR).await;
    assert_eq!(id(&wire.next().await.unwrap()), 1);
    for query in 2..5 {
        wire.ask(query, SMALL, A).await;
    }
    wire.client.shutdown().await.unwrap();
    let ids: Vec<u16> = messages(&mut wire.client).await.iter().map(|message| id(message)).collect();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), length - 1);
    let last_reply = ids.iter().rposition(|&id| id != 1).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id != 1).copied().collect::<Vec<_>>(), [2, 3, 4]);
    assert!(last_reply < ids.len() - 1, "{ids:?}");
    wire.ended().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn three_transfers_share_a_connection_and_later_queries_wait() {
    let engine = engine();
    let length = transfer_length(&engine).await;
    let mut wire = Wire::with(&engine, 16 << 10);
    for query in 1..=4 {
        wire.ask(query, "z", AXFR).await;
    }
    wire.ask(5, SMALL, A).await;
    // This takes longer than the time limit of an incomplete message.
    let mut ids = Vec::new();
    for _ in 0..4 * length + 1 {
        sleep(Duration::from_secs(1)).await;
        ids.push(id(&wire.next().await.unwrap()));
    }
    for query in 1..=4 {
        assert_eq!(ids.iter().filter(|&&id| id == query).count(), length, "{ids:?}");
    }
    // The transfers take turns, and the fourth begins when one has ended.
    let first = |query| ids.iter().position(|&id| id == query).unwrap();
    let last = |query| ids.iter().rposition(|&id| id == query).unwrap();
    assert!(first(3) < last(1) && last(1) < first(4), "{ids:?}");
    assert!(first(5) > last(1), "{ids:?}");
    wire.client.shutdown().await.unwrap();
    assert!(wire.next().await.is_none());
    wire.ended().await.0.unwrap();
}

#[tokio::test]
async fn empty_transfers_are_all_answered() {
    let mut wire = Wire::new(1 << 20);
    wire.ask(1, "z", 6).await;
    let soa = wire.next().await.unwrap();
    let numbers = &soa[soa.len() - 20..];
    let mut ixfr = query(2, "z", 251);
    ixfr[9] = 1;
    ixfr.extend([0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 0, 0, 22, 0, 0]);
    ixfr.extend(numbers);
    // Each transfer ends with its first message, and further queries wait for that.
    wire.client.write_all(&frame(&ixfr).repeat(20)).await.unwrap();
    wire.client.shutdown().await.unwrap();
    let messages = messages(&mut wire.client).await;
    assert!(messages.iter().all(|message| (id(message), answers(message)) == (2, 1)));
    assert_eq!(messages.len(), 20);
}

#[tokio::test]
async fn queries_sent_before_the_shutdown_are_answered() {
    let mut wire = Wire::new(1 << 20);
    wire.client.write_all(&frames(200, SMALL)).await.unwrap();
    wire.client.write_all(&frames(1, SMALL)[..5]).await.unwrap();
    // On a runtime with one thread, the server has read nothing yet.
    wire.shutdown.cancel();
    assert_eq!(small_ids(&messages(&mut wire.client).await).len(), 200);
    drop(wire.client);
    wire.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_closed_on_shutdown() {
    let mut wire = Wire::new(1 << 20);
    wire.ask(1, SMALL, A).await;
    wire.next().await.unwrap();
    wire.shutdown.cancel();
    assert!(wire.next().await.is_none());
}

/// Starts a listener on a real socket. Returns its address and its counter of evicted connections.
async fn listener(most: usize) -> (SocketAddr, Counter, CancellationToken, JoinHandle<()>) {
    listener_of(engine(), most).await
}

async fn listener_of(
    engine: Engine,
    most: usize,
) -> (SocketAddr, Counter, CancellationToken, JoinHandle<()>) {
    let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let evicted = Counter::default();
    let metrics = ConnectionMetrics { evicted: evicted.clone(), ..ConnectionMetrics::default() };
    let connections = Connections::new(most, metrics);
    let listener = StreamListener::tcp(bound.tcp, engine, connections).unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(listener.run(shutdown.clone()));
    (bound.addr, evicted, shutdown, running)
}

async fn is_served(stream: &mut TcpStream) -> bool {
    stream.write_all(&frame(&query(1, SMALL, A))).await.is_ok() && next_message(stream).await.is_some()
}

/// Connects from one of this host's many addresses.
async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn a_connection_beyond_the_limit_evicts_the_idlest() {
    let (addr, evicted, ..) = listener(2).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams.push(TcpStream::connect(addr).await.unwrap());
        assert!(is_served(streams.last_mut().unwrap()).await);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(is_served(&mut streams[0]).await);
    let mut third = TcpStream::connect(addr).await.unwrap();
    assert!(is_served(&mut third).await);
    assert_eq!(streams[1].read(&mut [0]).await.unwrap_or(0), 0);
    assert!(is_served(&mut streams[0]).await);
    assert_eq!(evicted.get(), 1);

    // A connection that finds a free place evicts no other.
    drop(third);
    sleep(Duration::from_millis(50)).await;
    assert!(is_served(&mut TcpStream::connect(addr).await.unwrap()).await);
    assert_eq!(evicted.get(), 1);
}

#[tokio::test]
async fn a_client_with_thousands_of_connections_evicts_only_its_own() {
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let (addr, evicted, ..) = listener(100).await;
    let mut few = Vec::new();
    for _ in 0..10 {
        few.push(connect("127.0.0.1", addr).await);
        assert!(is_served(few.last_mut().unwrap()).await);
    }
    // Clients of the same network and of another one: one idle, one asking all the time.
    for from in ["127.0.0.2", "127.0.9.1"] {
        let mut many = Vec::new();
        for number in 0..1_000 {
            let mut stream = connect(from, addr).await;
            if number % 2 == 0 {
                assert!(is_served(&mut stream).await, "newcomer {number} from {from}");
            }
            many.push(stream);
        }
        for stream in &mut few {
            assert!(is_served(stream).await, "closed for {from}");
        }
    }
    assert!(evicted.get() >= 10 + 1_000 - 100);
}

#[tokio::test]
async fn a_stopped_listener_ends_with_its_last_connection() {
    let (addr, _, shutdown, running) = listener(10).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    assert!(is_served(&mut stream).await);
    shutdown.cancel();
    assert!(next_message(&mut stream).await.is_none());
    drop(stream);
    running.await.unwrap();
}

/// Asks, and reads no more than the beginning of the first answer.
async fn ask_and_stall(addr: SocketAddr, asking: Vec<u8>) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2304).unwrap();
    let mut stream = socket.connect(addr).await.unwrap();
    stream.write_all(&asking).await.unwrap();
    stream.read_u16().await.unwrap();
    stream
}

/// Each connection has three transfers in progress, of fifty that it asks for and does not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_transfer_gives_way_to_another() {
    let (addr, ..) = listener_of(own_engine(), 100).await;
    let transfer = frame(&query(1, "z", AXFR));
    let asking = transfer.repeat(50);
    let begin = Instant::now();
    // At the same time: a transfer that has stalled for a second gives way.
    let stalling: JoinSet<_> = (0..11).map(|_| ask_and_stall(addr, asking.clone())).collect();
    let _still = stalling.join_all().await;
    let is_late = begin.elapsed() > Duration::from_millis(900);
    let mut newcomer = TcpStream::connect(addr).await.unwrap();
    let mut refusals = 0;
    let served = async {
        loop {
            newcomer.write_all(&transfer).await.unwrap();
            if answers(&next_message(&mut newcomer).await.unwrap()) > 0 {
                return;
            }
            refusals += 1;
            sleep(Duration::from_millis(20)).await;
        }
    };
    // Sooner than the timeout of clients that read nothing.
    timeout(Duration::from_secs(8), served).await.unwrap();
    // A machine that is so slow has given places away before the newcomer came.
    assert!(refusals > 0 || is_late, "no place was lacking");
}
