//! Receivers that are broken or break the protocol. The sender reports the reason, and goes on
//! sending to the others.

use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use multinet_client::{
    Acknowledge, ConnectorBuilder, Delivery, Endpoint, Frame, Listener, PeerSet, PeerStatus, TransportKind,
};
use serde_json::{Value, json};

use crate::log::{WaitFor as _, capture};
use crate::raw::{CLOSE, CONTROL, DATA, Receiver, accept, control, data, greeting, header};
use crate::rig::{endpoint, eventually, follow, listener, mixed_connector, rdma, soon};

/// Sender with a well-behaved receiver and a scripted one.
struct Victim {
    peers: PeerSet,
    good: Listener,
    bad: Receiver,
    _endpoints: UnboundedSender<Vec<Endpoint>>,
}

impl Victim {
    async fn of(connector: ConnectorBuilder) -> Self {
        let good = listener().acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
        let bad = Receiver::new().await;
        let (peers, endpoints) = follow(connector);
        endpoints.unbounded_send(vec![endpoint(&good, "good", None), bad.endpoint("bad")]).unwrap();
        soon(peers.connected(1)).await;
        let is_good = |peer: &PeerStatus| peer.endpoint.host == "good";
        let kind = peers.status().iter().find(|peer| is_good(peer)).and_then(|peer| peer.transport);
        assert!(rdma().is_none() || kind == Some(TransportKind::Rdma), "{kind:?}");
        Self { peers, good, bad, _endpoints: endpoints }
    }

    /// Checks that frames to the well-behaved receiver arrive.
    async fn serves(&self) {
        let good = self.peers.peer("good").unwrap();
        for _ in 0..20 {
            soon(good.send(Frame::new("behaved"))).await.unwrap();
            assert_eq!(soon(self.good.recv()).await.unwrap().bytes(), b"behaved");
        }
    }

    fn status(&self) -> PeerStatus {
        self.peers.status().into_iter().find(|peer| peer.endpoint.host == "bad").unwrap()
    }

    fn last_error(&self) -> String {
        self.status().last_error.map_or_else(String::new, |error| error.to_string())
    }
}

/// Checks the sender's error and log line after a receiver sends this answer.
async fn answers(bytes: &[u8], expected: &str) {
    let (log, _guard) = capture();
    let victim = Victim::of(mixed_connector()).await;
    let mut raw = victim.bad.next().await;
    raw.handshake_message().await;
    raw.write(bytes).await;
    drop(raw);
    eventually(|| !victim.last_error().is_empty()).await;
    let error = victim.last_error();
    assert!(error.contains(expected) && error.contains(&victim.bad.address().to_string()), "{error}");
    assert!(error.len() < 1500 && !error.contains(char::is_control), "{error}");
    log.wait_for("WARN", &format!("cannot connect: {error}")).await;
    victim.serves().await;
}

async fn answers_json(answer: Value, expected: &str) {
    answers(&greeting(1, answer.to_string().as_bytes()), expected).await;
}

#[tokio::test]
async fn answers_of_other_protocols_are_named() {
    answers(b"", "closed the connection during the handshake").await;
    answers(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not begin with MNET").await;
    answers(b"SSH", "does not begin with MNET").await;
    answers(&[0x15, 3, 3, 0, 2, 2, 10], "it speaks TLS: give this side certificates too").await;
    answers(&[0x16, 3, 3, 0, 2, 2, 10, 9, 9], "it speaks TLS").await;
    answers(b"MNET\0\x01\xff\xff", "a handshake of 65535 bytes, more than the 4096 allowed").await;
}

#[tokio::test]
async fn answers_in_another_version_are_refused() {
    let later = |answer: Value| greeting(9, answer.to_string().as_bytes());
    let version = "protocol version 9, not 1";
    answers(&later(accept(4)), version).await;
    answers(&later(json!({"welcome": {}})), version).await;
    // A refusal has this form in all versions.
    let refusal = json!({"refuse": {"code": "tuesday", "message": "closed on tuesdays"}});
    answers(&later(refusal), "refuses: closed on tuesdays").await;
}

#[tokio::test]
async fn malformed_answers_are_refused_with_the_reason() {
    answers(&greeting(1, b"{"), "EOF").await;
    answers(&greeting(1, "[".repeat(4096).as_bytes()), "something else than a handshake").await;
    answers_json(json!({"accept": {"name": "a"}}), "missing field").await;
    answers_json(accept(0), "it grants no slot").await;
    let mut other = accept(8);
    other["accept"]["transport"] = "pigeon".into();
    answers_json(other, "a transport that was not offered").await;
    let mut large = accept(8);
    large["accept"]["frame_size"] = 4_294_967_296_u64.into();
    answers_json(large, "invalid value").await;
}

#[tokio::test]
async fn refusals_are_reported_in_one_line() {
    let message = format!("no\n{}", "\u{1b}[2J".repeat(400));
    let refusal = json!({"refuse": {"code": "full", "message": message}});
    answers_json(refusal, "refuses: no\u{fffd}\u{fffd}[2J").await;
    answers_json(json!({"refuse": {"code": "tuesday", "message": "closed"}}), "refuses: closed").await;
}

#[tokio::test]
async fn a_silent_receiver_times_out() {
    let victim = Victim::of(mixed_connector().patience(Duration::from_secs(1))).await;
    let raw = victim.bad.next().await;
    victim.serves().await;
    eventually(|| victim.last_error().contains("did not finish the handshake within 1 s")).await;
    drop(raw);
}

/// Checks that the sender ends the connection with this reason when an accepting receiver, after
/// its first frame, sends these bytes.
async fn breaks_rules(delivery: Delivery, bytes: &[u8], reason: &str) {
    let (log, _guard) = capture();
    let victim = Victim::of(mixed_connector().delivery(delivery)).await;
    let mut raw = victim.bad.answer(&accept(8)).await;
    soon(victim.peers.connected(2)).await;
    let bad = victim.peers.peer("bad").unwrap();
    soon(bad.send(Frame::new("first"))).await.unwrap();
    assert_eq!(raw.message().await.unwrap().sequence(), 1);
    raw.write(bytes).await;
    let said = raw.goodbye().await;
    assert!(said.contains("the peer broke the protocol") && said.contains(reason), "{said:?} for {reason}");
    log.wait_for("WARN", reason).await;
    victim.serves().await;
    eventually(|| victim.status().last_disconnect.is_some_and(|said| said.contains(reason))).await;
    // The sender connects again.
    let mut raw = victim.bad.answer(&accept(8)).await;
    soon(victim.peers.connected(2)).await;
    soon(bad.send(Frame::new("second"))).await.unwrap();
    let frame = raw.message().await.unwrap();
    match delivery {
        Delivery::AtMostOnce => assert_eq!((frame.sequence() > 1, &frame.body[..]), (true, &b"second"[..])),
        Delivery::AtLeastOnce => assert_eq!((frame.sequence(), &frame.body[..]), (1, &b"first"[..])),
    }
    let lost = u64::from(delivery == Delivery::AtMostOnce);
    assert_eq!(victim.peers.statistics().lost, lost);
}

#[tokio::test]
async fn messages_that_a_receiver_may_not_send_end_its_connection() {
    let delivery = Delivery::AtMostOnce;
    breaks_rules(delivery, &data(1, 1, b"frame"), "a frame, where only receivers' messages").await;
    breaks_rules(delivery, &header(0, &[]), "unknown message kind 0").await;
    breaks_rules(delivery, &header(CONTROL, &[(2, &[1, 1])]), "257 acknowledgements, more than the 256")
        .await;
    breaks_rules(delivery, &header(CONTROL, &[(4, &[255, 255])]), "65535 rejections, more than the 256")
        .await;
    breaks_rules(delivery, &header(CLOSE, &[(1, &[9])]), "close code 9").await;
    breaks_rules(delivery, &header(DATA, &[(1, &[2])]), "unknown flags 0x02").await;
}

#[tokio::test]
async fn impossible_counts_end_the_connection() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        breaks_rules(delivery, &control(2, 0, &[], &[]), "2 frames have left their slots").await;
        breaks_rules(delivery, &control(u64::MAX, 0, &[], &[]), "frames have left their slots").await;
        breaks_rules(delivery, &control(0, 2, &[], &[]), "2 frames have been taken").await;
    }
    let backwards = [control(1, 0, &[], &[]), control(0, 0, &[], &[])].concat();
    breaks_rules(Delivery::AtLeastOnce, &backwards, "0 frames have left their slots, after it reported 1")
        .await;
}

#[tokio::test]
async fn acknowledgements_of_frames_not_sent_end_the_connection() {
    let victim = Victim::of(mixed_connector().delivery(Delivery::AtLeastOnce)).await;
    let mut raw = victim.bad.answer(&accept(8)).await;
    soon(victim.peers.connected(2)).await;
    let sequences = [0, 1, 2, 1000, u64::MAX];
    raw.write(&[control(0, 0, &sequences, &[]), control(0, 0, &[], &sequences)].concat()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    victim.serves().await;
    soon(victim.peers.flush()).await.unwrap();
    let statistics = victim.peers.statistics();
    assert_eq!((statistics.frames, statistics.acknowledged, statistics.rejected), (20, 20, 0));
}

#[tokio::test]
async fn acknowledgements_of_frames_sent_to_another_end_the_connection() {
    let victim = Victim::of(mixed_connector().delivery(Delivery::AtLeastOnce)).await;
    let mut raw = victim.bad.answer(&accept(8)).await;
    soon(victim.peers.connected(2)).await;
    let good = victim.peers.peer("good").unwrap();
    soon(good.send(Frame::new("kept"))).await.unwrap();
    let frame = soon(victim.good.recv()).await.unwrap();
    raw.write(&control(0, 0, &[frame.id().sequence], &[])).await;
    raw.write(&control(0, 0, &[], &[frame.id().sequence])).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let statistics = victim.peers.statistics();
    assert_eq!((statistics.acknowledged, statistics.rejected, statistics.held), (0, 0, 1));
    drop(frame);
    soon(victim.peers.flush()).await.unwrap();
    assert_eq!(victim.peers.statistics().acknowledged, 1);
}

#[tokio::test]
async fn a_receiver_that_disconnects_within_a_message_is_connected_again() {
    let whole = control(1, 1, &[1, 2, 3], &[]);
    let victim = Victim::of(mixed_connector()).await;
    for length in [1, 39, 41, whole.len() - 1] {
        let mut raw = victim.bad.answer(&accept(8)).await;
        raw.write(&whole[..length]).await;
        drop(raw);
        victim.serves().await;
    }
    eventually(|| victim.peers.statistics().disconnects == 4).await;
    let said = header(CLOSE, &[(2, &[0, 200])]);
    victim.bad.answer(&accept(8)).await.write(&said).await;
    eventually(|| victim.peers.statistics().disconnects == 5).await;
    victim.serves().await;
}
