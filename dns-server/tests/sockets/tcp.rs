use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use multinet_dns::engine::{Engine, Proto};
use multinet_dns::listen::bind_dns;
use multinet_dns::tcp::{Connections, StreamListener, serve};
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    A, AXFR, BIG, BIG_ADDRESSES, PEER, SMALL, answers, engine, frame, frames, id, messages, next_message,
    query, small_ids,
};

/// A connection in memory, which holds `room` octets in each direction.
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
        let (client, server) = duplex(room);
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(server, PEER, engine.worker(Proto::Tcp), shutdown.clone()));
        Self { client, shutdown, server }
    }

    async fn ask(&mut self, id: u16, name: &str, qtype: u16) {
        self.client.write_all(&frame(&query(id, name, qtype))).await.unwrap();
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        next_message(&mut self.client).await
    }

    /// What `serve` gives, and when.
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
    // Half a connection is enough to hear the replies.
    wire.client.shutdown().await.unwrap();
    assert_eq!(small_ids(&messages(&mut wire.client).await), (0..1000).collect::<Vec<_>>());
    wire.ended().await.0.unwrap();
}

#[tokio::test]
async fn queries_may_come_octet_by_octet() {
    // Room for one octet: each is a read of its own.
    let mut wire = Wire::new(1);
    for octet in frames(3, SMALL) {
        wire.client.write_all(&[octet]).await.unwrap();
    }
    for expected in 0..3 {
        assert_eq!(id(&wire.next().await.unwrap()), expected);
    }
}

#[tokio::test]
async fn the_largest_messages_pass_in_both_directions() {
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
async fn what_needs_no_reply_gets_none() {
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
async fn half_a_message_is_waited_for_ten_seconds() {
    let mut wire = Wire::new(1 << 20);
    wire.ask(1, SMALL, A).await;
    wire.next().await.unwrap();
    // An octet now and then gains no time, nor does the length that it announces take any room.
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
async fn who_does_not_read_is_not_read_from_and_then_left() {
    let mut wire = Wire::new(1 << 10);
    // Each query makes 64 KB; what waits to be written bounds how many are taken.
    let queries = frames(100, BIG);
    let written = timeout(Duration::from_secs(5), wire.client.write_all(&queries)).await;
    assert!(written.is_err(), "all was read though nothing was written");
    let (result, _) = wire.ended().await;
    assert!(is_timeout(&result));
}

#[tokio::test(start_paused = true)]
async fn a_slow_but_steady_reader_gets_everything() {
    let mut wire = Wire::new(1 << 10);
    wire.client.write_all(&frames(20, BIG)).await.unwrap();
    // 64 KB in two seconds, half a minute and more for all of it.
    for expected in 0..20 {
        sleep(Duration::from_secs(2)).await;
        assert_eq!(id(&wire.next().await.unwrap()), expected);
    }
    assert!(!wire.server.is_finished());
}

/// How many messages a transfer of the zone has.
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

#[tokio::test]
async fn two_transfers_share_a_connection_and_a_third_ends_it() {
    let engine = engine();
    let length = transfer_length(&engine).await;
    let mut wire = Wire::with(&engine, 16 << 10);
    for query in 1..=3 {
        wire.ask(query, "z", AXFR).await;
    }
    wire.ask(4, SMALL, A).await;
    let ids: Vec<u16> = messages(&mut wire.client).await.iter().map(|message| id(message)).collect();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), length);
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), length);
    assert_eq!(ids.len(), 2 * length);
    // In turns.
    assert!(ids.windows(2).filter(|pair| pair[0] != pair[1]).count() > length);
}

#[tokio::test]
async fn what_was_sent_before_the_shutdown_is_answered() {
    let mut wire = Wire::new(1 << 20);
    wire.client.write_all(&frames(200, SMALL)).await.unwrap();
    wire.client.write_all(&frames(1, SMALL)[..5]).await.unwrap();
    // On a runtime of one thread, nothing of it has been read yet.
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

/// A listener on a real socket, with its counter of refused connections.
async fn listener(most: usize) -> (SocketAddr, Counter, CancellationToken, JoinHandle<()>) {
    let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let refused = Counter::default();
    let connections = Connections::new(most, refused.clone());
    let listener = StreamListener::tcp(bound.tcp, engine(), connections).unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(listener.run(shutdown.clone()));
    (bound.addr, refused, shutdown, running)
}

async fn is_served(stream: &mut TcpStream) -> bool {
    stream.write_all(&frame(&query(1, SMALL, A))).await.is_ok() && next_message(stream).await.is_some()
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_counted() {
    let (addr, refused, ..) = listener(2).await;
    let mut first = TcpStream::connect(addr).await.unwrap();
    let mut second = TcpStream::connect(addr).await.unwrap();
    assert!(is_served(&mut first).await && is_served(&mut second).await);
    let mut third = TcpStream::connect(addr).await.unwrap();
    assert_eq!(third.read(&mut [0]).await.unwrap_or(0), 0);
    assert_eq!(refused.get(), 1);
    assert!(is_served(&mut first).await);

    // Its place is free when the server has seen it go.
    drop(first);
    while !is_served(&mut TcpStream::connect(addr).await.unwrap()).await {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_listener_ends_with_its_last_connection() {
    let (addr, _, shutdown, running) = listener(10).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    assert!(is_served(&mut stream).await);
    shutdown.cancel();
    assert!(next_message(&mut stream).await.is_none());
    drop(stream);
    running.await.unwrap();
}
