//! Peers that are slow or stop responding, for which others must not wait.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use multinet_client::{Delivery, Frame, Listener};
use tokio::net::TcpSocket;
use tokio::time::sleep;

use super::Victim;
use crate::log::{WaitFor as _, capture};
use crate::raw::{Raw, Receiver, accept, data_header, greeting, hello};
use crate::rig::{at_most, endpoint, eventually, follow, listener, mixed_connector, rdma, soon};

/// Time that is longer than any test.
const FOREVER: Duration = Duration::from_secs(3600);

/// Connects from the loopback address that ends in `host`.
pub(super) async fn connect_from(host: u8, listener: &Listener) -> Raw {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 1, host), 0))).unwrap();
    Raw(soon(socket.connect(listener.local_addresses()[0])).await.unwrap())
}

#[tokio::test]
async fn a_handshake_of_single_bytes_times_out() {
    let (log, _guard) = capture();
    // The time limit applies to well-behaved senders, too.
    let patience = at_most(Duration::from_millis(300));
    let victim = Victim::of(listener().patience(patience)).await;
    let mut raw = Raw::connect(&victim.listener).await;
    for byte in greeting(1, hello(1, 1).to_string().as_bytes()) {
        if raw.0.try_write(&[byte]).is_err() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(raw.rest().await, b"");
    log.wait_for("WARN", &format!("turned away: no handshake within {patience:?}")).await;
    victim.recovers().await;
}

#[tokio::test]
async fn one_address_takes_only_its_share_of_handshakes() {
    let (log, _guard) = capture();
    let victim = Victim::of(listener().patience(Duration::from_secs(5))).await;
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(connect_from(1, &victim.listener).await);
    }
    log.wait_for("WARN", "turned away: too many are in their handshake").await;
    // Senders at other addresses are admitted, although none of these connections has timed out.
    let mut raw = connect_from(2, &victim.listener).await;
    assert!(raw.greet(&hello(1, 1)).await["accept"].is_object());
    victim.serves().await;
    assert!(log.with("no handshake within").is_empty(), "{}", log.text());
    // Senders at the same address are admitted once the handshakes have timed out.
    for raw in &mut crowd {
        raw.rest().await;
    }
    let mut late = connect_from(1, &victim.listener).await;
    assert!(late.greet(&hello(2, 1)).await["accept"].is_object());
    drop((raw, late));
    victim.recovers().await;
    let lines = log.with("WARN").len();
    assert!(lines < 30, "{lines} lines:\n{}", log.text());
}

#[tokio::test]
async fn a_listener_does_not_wait_for_the_rest_of_a_frame() {
    let victim = Victim::new().await;
    let mut stuck = Vec::new();
    for session in 1..=50 {
        let mut raw = Raw::admitted(&victim.listener, &hello(session, 1)).await;
        let header = data_header(1, 1, 1 << 20);
        // Some senders stop within the header, others within the payload.
        let length = if session % 2 == 0 { 20 } else { header.len() };
        raw.write(&header[..length]).await;
        stuck.push(raw);
    }
    for _ in 0..100 {
        victim.serves().await;
    }
    assert_eq!(victim.listener.statistics().connections, 51);
    stuck.clear();
    victim.recovers().await;
}

/// Sends to receivers that read nothing and whose sockets buffer as little as possible, beside one
/// that reads.
async fn stuck_receivers(count: usize, slots: u32, delivery: Delivery) {
    let good = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(mixed_connector().delivery(delivery).silence(FOREVER));
    let mut all = vec![endpoint(&good, "good", None)];
    let mut stuck = Vec::new();
    for number in 0..count {
        let receiver = Receiver::new().await;
        all.push(receiver.endpoint(&format!("stuck-{number}")));
        stuck.push(receiver);
    }
    endpoints.unbounded_send(all).unwrap();
    let mut held = Vec::new();
    for receiver in &stuck {
        held.push(receiver.answer(&accept(slots)).await);
    }
    soon(peers.connected(count + 1)).await;
    let receiving = tokio::spawn(async move {
        // In the guest, which is slow, fewer frames are sent.
        let count = if rdma().is_some() { 40 } else { 300 };
        for _ in 0..count {
            soon(good.recv()).await.unwrap().acknowledge();
        }
        good
    });
    let buffer = multinet_client::Buffer::host(1 << 20);
    while !receiving.is_finished() {
        soon(peers.send(Frame::new(buffer.clone()))).await.unwrap();
    }
    let good = receiving.await.unwrap();
    let statistics = peers.statistics();
    assert!(statistics.held <= 1024, "{statistics:?}");
    assert_eq!(statistics.disconnects, 0, "a stuck receiver was disconnected");
    // Closing does not wait for the stuck receivers, either.
    let start = Instant::now();
    soon(peers.close(Duration::from_millis(200))).await;
    assert!(start.elapsed() < at_most(Duration::from_secs(15)), "{:?}", start.elapsed());
    drop((good, held));
}

#[tokio::test]
async fn a_sender_does_not_wait_for_receivers_that_are_stuck() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        stuck_receivers(5, 8, delivery).await;
    }
}

#[tokio::test]
async fn a_receiver_with_huge_credit_does_not_get_all_frames() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        stuck_receivers(1, u32::MAX, delivery).await;
    }
}

#[tokio::test]
async fn a_receiver_that_is_stuck_for_long_is_abandoned() {
    let (log, _guard) = capture();
    let receiver = Receiver::new().await;
    let (peers, endpoints) = follow(mixed_connector().silence(Duration::from_secs(4)));
    endpoints.unbounded_send(vec![receiver.endpoint("stuck")]).unwrap();
    let held = receiver.answer(&accept(64)).await;
    soon(peers.connected(1)).await;
    let buffer = multinet_client::Buffer::host(1 << 20);
    for _ in 0..64 {
        soon(peers.send(Frame::new(buffer.clone()))).await.unwrap();
    }
    eventually(|| peers.statistics().disconnects == 1).await;
    assert!(peers.statistics().lost > 0);
    log.wait_for("WARN", "the connection has ended").await;
    drop(held);
}
