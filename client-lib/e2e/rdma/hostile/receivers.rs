//! Receivers that break the protocol: the sender reports what is wrong, and serves the others.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::FutureExt as _;
use multinet_client::{
    Acknowledge, Buffer, Delivery, Endpoint, Frame, Listener, PeerSet, Rdma, TransportKind,
};
use multinet_testing::in_guest;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::raw::{HEADER, Raw, Receiver};
use super::{BOUND, connector, listener};
use crate::{amount, follow};

/// The size of frames, large enough for stripes.
const SIZE: u64 = 256 << 10;
/// As many receive requests as there may be immediates.
const READY: u16 = 8;

/// Longer than any test takes, so that no peer is given up for being silent.
const FOREVER: Duration = Duration::from_secs(3600);

/// A ring entry: its position, the immediate that announces it, and its bytes.
type Entry = (u64, u32, Vec<u8>);

/// A change of a receiver's answer.
type Change = Box<dyn FnOnce(&mut Value)>;

/// A sender with two receivers: an honest one, and another.
struct Victim {
    peers: PeerSet,
    bad: Receiver,
}

impl Victim {
    async fn of(good: &Listener, delivery: Delivery) -> Result<Self> {
        let bad = Receiver::new().await?;
        let mut endpoint = Endpoint::at(good.local_addresses()[0]);
        (endpoint.host, endpoint.target) = ("good".to_owned(), "good".to_owned());
        let connector = connector()?.delivery(delivery).silence(FOREVER);
        let peers = follow(connector, vec![endpoint, bad.endpoint()?])?;
        Ok(Self { peers, bad })
    }

    /// Admits the sender, and receives its pings and one small frame in the first slot.
    async fn connected(&self, ready: u16) -> Result<Raw> {
        self.connected_with(1, ready).await
    }

    /// Does the same with this number of queue pairs.
    async fn connected_with(&self, pairs: usize, ready: u16) -> Result<Raw> {
        let (raw, chosen) = self.bad.admit((pairs, ready, SIZE), |_| {}).await?;
        ensure!(chosen == Some(json!({"transport": "rdma"})), "{chosen:?}");
        self.is_connected().await?;
        for _ in 0..pairs {
            ensure!(raw.next_immediate().await?.1 == 0x0200_0000, "no ping");
        }
        self.peers.peer("bad").context("no peer")?.send(Frame::new("first")).await?;
        ensure!(raw.next_immediate().await? == (0, 0), "no frame");
        Ok(raw)
    }

    async fn is_connected(&self) -> Result<()> {
        tokio::time::timeout(BOUND, self.peers.connected(2)).await?;
        let status = self.peers.status();
        ensure!(status.iter().all(|peer| peer.transport == Some(TransportKind::Rdma)), "{status:#?}");
        Ok(())
    }

    /// Checks that frames arrive at the honest receiver.
    async fn check_frames(&self, good: &Listener) -> Result<()> {
        let peer = self.peers.peer("good").context("no peer")?;
        for number in 0..10_u8 {
            tokio::time::timeout(BOUND, peer.send(vec![number; 100])).await??;
            let frame = tokio::time::timeout(BOUND, good.recv()).await??;
            ensure!(frame.bytes() == [number; 100], "{frame:?}");
        }
        Ok(())
    }

    /// Returns the sender's last error about the other receiver.
    async fn last_error(&self) -> Result<String> {
        eventually("an error", BOUND, async || {
            let status = self.peers.status();
            let bad = status.iter().find(|peer| peer.endpoint.host == "bad").context("no peer")?;
            Ok(bad.last_error.as_ref().context("no error yet")?.to_string())
        })
        .await
    }
}

/// Returns a receiver's message: how many slots are freed and frames taken, the released slots, and
/// how many more sequences it claims to contain.
fn control(freed: u64, taken: u64, slots: &[u16], sequences: u16) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[0] = 2;
    message[2..4].copy_from_slice(&sequences.to_be_bytes());
    // A count that a test exaggerates does not fit.
    message[6..8].copy_from_slice(&(slots.len() as u16).to_be_bytes());
    message[16..24].copy_from_slice(&freed.to_be_bytes());
    message[24..32].copy_from_slice(&taken.to_be_bytes());
    message.extend(slots.iter().flat_map(|slot| slot.to_be_bytes()));
    message
}

async fn good() -> Result<Listener> {
    let good = listener().frame_size(SIZE as u32).slots(16).acknowledge(Acknowledge::OnDrop);
    Ok(good.bind().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_that_break_the_rules_are_cut_off() -> Result<()> {
    in_guest!();
    let good = good().await?;
    // Ring entries and the expected reason. The other violations are covered by the tests of the
    // ledger, of the wire format, and of peers over TCP.
    let cases: [(Vec<Entry>, &str); 5] = [
        (vec![(0, 0, control(1, 1, &[1], 0))], "it names slot 1, which is free already"),
        (
            vec![(0, 0, control(1, 1, &[0], 0)), (1, 1, control(0, 1, &[], 0))],
            "0 frames have left their slots, after it reported 1",
        ),
        (vec![(0, u32::MAX, control(1, 1, &[0], 0))], "which is not the next ring entry"),
        (
            vec![(0, 0, control(0, 0, &[], 0)), (0, 0, control(0, 0, &[], 0))],
            "it names slot 0, which is not the next ring entry",
        ),
        (vec![(0, 0, control(0, 0, &[], 100))], "control message of 800 bytes, more than the 128 allowed"),
    ];
    for (number, (messages, reason)) in cases.into_iter().enumerate() {
        let delivery = if number % 2 == 0 { Delivery::AtMostOnce } else { Delivery::AtLeastOnce };
        let victim = Victim::of(&good, delivery).await?;
        let mut raw = victim.connected(READY).await.with_context(|| format!("case {number}"))?;
        for (place, immediate, message) in messages {
            let (header, body) = message.split_at(HEADER);
            raw.write_message(0, place, (header, body), immediate).await?;
        }
        let said = raw.goodbye().await.with_context(|| format!("{reason:?} is not said"))?;
        ensure!(
            said.contains("the peer broke the protocol") && said.contains(reason),
            "{said:?}, not {reason:?}"
        );
        victim.check_frames(&good).await?;
    }
    // An immediate for the first queue pair arrives on another one.
    let victim = Victim::of(&good, Delivery::AtMostOnce).await?;
    let mut raw = victim.connected_with(2, READY).await?;
    let message = control(1, 1, &[0], 0);
    raw.write_message(1, 0, message.split_at(HEADER), 0).await?;
    let said = raw.goodbye().await?;
    ensure!(said.contains("it answers on queue pair 1, which only carries stripes of frames"), "{said}");
    victim.check_frames(&good).await?;
    // A message for the ring arrives by TCP.
    let victim = Victim::of(&good, Delivery::AtMostOnce).await?;
    let mut raw = victim.connected(READY).await?;
    raw.stream.write_all(&control(1, 1, &[], 0)).await?;
    let said = raw.goodbye().await?;
    ensure!(said.contains("it answers by TCP, where RDMA was agreed"), "{said}");
    victim.check_frames(&good).await
}

/// The faults are found before any frame depends on the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_whose_ends_cannot_be_get_no_frame() -> Result<()> {
    in_guest!();
    let good = good().await?;
    let end = |name: &'static str, value: Value| {
        Box::new(move |accept: &mut Value| accept["rdma"][name] = value) as Change
    };
    let flip = |accept: &mut Value| {
        let key = accept["rdma"]["rkey"].as_u64().unwrap_or_default();
        accept["rdma"]["rkey"] = (key ^ 1).into();
    };
    let cases: [(Change, u16, &str); 6] = [
        (end("gid", "::ffff:10.9.0.77".into()), READY, "the peer's GID is not that of its address"),
        (end("stride", 8192.into()), READY, "the peer offers too little memory for RDMA"),
        // Found by the devices.
        (end("address", 4096.into()), READY, "remote access error"),
        (Box::new(flip), READY, "remote access error"),
        (end("qpn", 0x00ab_cdef.into()), READY, "transport retry counter exceeded"),
        // Without a receive request.
        (Box::new(|_| {}), 0, "a test write has not completed within"),
    ];
    for (change, ready, reason) in cases {
        let victim = Victim::of(&good, Delivery::AtMostOnce).await?;
        let (raw, chosen) = victim.bad.admit((1, ready, SIZE), change).await?;
        ensure!(chosen.is_none(), "{chosen:?}, not {reason:?}");
        let error = victim.last_error().await?;
        ensure!(error.contains(reason), "{error}, not {reason:?}");
        tokio::time::timeout(BOUND, victim.peers.connected(1)).await?;
        victim.check_frames(&good).await?;
        drop(raw);
    }
    Ok(())
}

/// Some receivers fail after they have worked; some promise more than they have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_that_fail_under_way_cost_their_own_frames_only() -> Result<()> {
    in_guest!();
    for (is_pair, reason) in [(true, "transport retry counter exceeded"), (false, "remote access error")] {
        let good = good().await?;
        let victim = Victim::of(&good, Delivery::AtMostOnce).await?;
        let mut raw = victim.connected(READY).await?;
        // In the middle of a message.
        let bad = victim.peers.peer("bad").context("no peer")?;
        bad.send(vec![1; SIZE as usize]).await?;
        if is_pair {
            raw.pairs.clear();
        } else {
            raw.receive_buffer = None;
        }
        // Refused, if the connection has ended by now.
        let _ = bad.send(vec![2; SIZE as usize]).now_or_never();
        let said = raw.goodbye().await?;
        ensure!(said.contains("RDMA has failed") && said.contains(reason), "{said}");
        eventually("the connection to have ended", BOUND, async || {
            let statistics = victim.peers.statistics();
            // The last frame waits for the next connection, if this one failed before its turn.
            let all = statistics.lost >= 2 && statistics.lost + statistics.held as u64 == statistics.frames;
            ensure!(statistics.disconnects == 1 && all, "{statistics:?}");
            Ok(())
        })
        .await?;
        victim.check_frames(&good).await?;
    }

    // Offers many slots at first, although there are four, and no memory for the rest.
    for (delivery, places) in [(Delivery::AtMostOnce, 4), (Delivery::AtLeastOnce, u16::MAX)] {
        let good = good().await?;
        let victim = Victim::of(&good, delivery).await?;
        let promise = |accept: &mut Value| {
            (accept["slots"], accept["rdma"]["places"]) = (u32::MAX.into(), places.into());
        };
        let (raw, chosen) = victim.bad.admit((1, 64, SIZE), promise).await?;
        ensure!(chosen.is_some(), "it is not connected");
        victim.is_connected().await?;
        stuck(&victim, &good, delivery).await.with_context(|| format!("{delivery:?}, {places} places"))?;
        drop(raw);
    }
    // The receiver has only the receive requests that it must have.
    let good = good().await?;
    let victim = Victim::of(&good, Delivery::AtMostOnce).await?;
    let raw = victim.connected(2).await?;
    stuck(&victim, &good, Delivery::AtMostOnce).await.context("not ready")?;
    drop(raw);
    Ok(())
}

/// Checks that the honest receiver gets frames while the other takes none, and that closing does
/// not wait for the other.
async fn stuck(victim: &Victim, good: &Listener, delivery: Delivery) -> Result<()> {
    let buffer = Buffer::host(SIZE as usize);
    let sending = async {
        loop {
            tokio::time::timeout(BOUND, victim.peers.send(Frame::new(buffer.clone()))).await??;
        }
    };
    let receiving = async {
        for _ in 0..amount(10, 60) {
            drop(tokio::time::timeout(BOUND, good.recv()).await??);
        }
        anyhow::Ok(())
    };
    tokio::select! {
        outcome = sending => outcome,
        outcome = receiving => outcome,
    }?;
    let statistics = victim.peers.statistics();
    ensure!(statistics.held <= 1024, "{delivery:?} {statistics:?}");
    tokio::time::timeout(BOUND, victim.peers.clone().close(Duration::from_millis(200))).await?;
    Ok(())
}

/// Stripes use the queue pairs that both sides have, and together make the frame that was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_frame_comes_in_parts() -> Result<()> {
    in_guest!();
    let bad = Receiver::new().await?;
    // The sender has three queue pairs.
    for (pairs, expected) in [(1, 1), (2, 2), (3, 3)] {
        let connector = connector()?.rdma(Rdma::default().stripes(3));
        let peers = follow(connector, vec![bad.endpoint()?])?;
        let (raw, chosen) = bad.admit((pairs, READY, SIZE), |_| {}).await?;
        ensure!(chosen.is_some() && raw.pairs.len() == expected, "{} pairs, {chosen:?}", raw.pairs.len());
        for _ in 0..expected {
            ensure!(raw.next_immediate().await?.1 == 0x0200_0000, "no ping");
        }
        let mut buffer = Buffer::host(SIZE as usize);
        fastrand::fill(buffer.as_mut().context("shared")?);
        // One frame is sent without a copy, the other is copied.
        for (slot, frame) in
            [Frame::new(buffer.clone()), Frame::new(buffer.bytes().to_vec())].into_iter().enumerate()
        {
            peers.send(frame.key("key")).await?;
            let mut told = Vec::new();
            for _ in 0..expected {
                told.push(raw.next_immediate().await?);
            }
            told.sort_unstable();
            let place = slot as u32;
            let mut all = vec![(0, place | if expected > 1 { 0x0300_0000 } else { 0 })];
            all.extend((1..expected as u64).map(|pair| (pair, 0x0400_0000 | place)));
            ensure!(told == all, "{told:x?}, not {all:x?}");
            let mut found = vec![0; SIZE as usize];
            let receive_buffer = raw.receive_buffer.as_ref().context("no memory")?;
            receive_buffer.read(slot * (4416 + SIZE as usize) + 4416, &mut found)?;
            ensure!(found == buffer.bytes(), "{expected} pairs, slot {slot}: other bytes");
        }
        // A small frame uses one queue pair.
        peers.send("small").await?;
        ensure!(raw.next_immediate().await? == (0, 2), "no small frame");
        if peers.statistics().disconnects > 0 {
            bail!("{:?}", peers.statistics());
        }
    }
    Ok(())
}
