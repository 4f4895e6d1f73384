//! Admitted senders that break the protocol.

use anyhow::{Context as _, Result, bail, ensure};
use multinet_client::verbs::RemoteAddress;
use multinet_client::{Acknowledge, Listener, Received};
use multinet_testing::in_guest;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::raw::{HEADER, Raw, hello, no_end, receive_json, send_json};
use super::{BOUND, honest, listener};

/// Large enough for stripes, so that there are several queue pairs.
const FRAME_SIZE: u32 = 256 << 10;

/// An action of a sender.
#[derive(Clone, Copy)]
enum Action {
    /// Announces a slot that contains this header.
    Frame(u32, [u8; HEADER]),
    /// Sends this immediate alone.
    Immediate(u32),
    /// Sends this immediate by the second of two queue pairs.
    OnSecondPair(u32),
    /// Sends this header by TCP.
    Stream([u8; HEADER]),
}

/// Returns the header of a frame with this length of payload.
fn data(sequence: u8, payload: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = 1;
    header[8..12].copy_from_slice(&payload.to_be_bytes());
    (header[23], header[31]) = (sequence, sequence);
    header
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_that_break_the_rules_are_cut_off() -> Result<()> {
    in_guest!();
    let listener = listener().frame_size(FRAME_SIZE).acknowledge(Acknowledge::OnDrop).bind().await?;
    let honest = honest(&listener).await?;

    // The other violations are covered by the tests of the ledger, of the layout, of stripes, and
    // of peers over TCP.
    let cases: &[(usize, &[Action], &str)] = &[
        (1, &[Action::Immediate(0x0500_0000)], "the immediate 0x05000000, which has no meaning"),
        (1, &[Action::Immediate(0x0100_0000)], "it acknowledges more ring entries than it was sent"),
        (
            1,
            &[Action::Frame(0, data(1, 10)), Action::Frame(0, data(2, 10))],
            "slot 0, which is not the sender's to write to",
        ),
        (1, &[Action::Frame(1, [0; HEADER])], "unknown message kind 0"),
        (
            1,
            &[Action::Frame(3, data(1, FRAME_SIZE + 1))],
            "a frame of 262145 bytes, where 262144 are allowed",
        ),
        (1, &[Action::Immediate(0x0200_0000), Action::Immediate(0x0200_0000)], "it sends a second ping"),
        (1, &[Action::Stream(data(1, 10))], "a frame by TCP, where RDMA was agreed"),
        // With several queue pairs: a stripe on the first one, a frame on another one, and one
        // stripe twice.
        (2, &[Action::Immediate(0x0400_0000)], "the immediate 0x04000000, which has no meaning"),
        (2, &[Action::OnSecondPair(0x0000_0000)], "the immediate 0x00000000, which has no meaning"),
        (
            2,
            &[Action::OnSecondPair(0x0400_0001), Action::OnSecondPair(0x0400_0001)],
            "it sends the stripe of queue pair 1 for slot 1 twice",
        ),
        (
            2,
            &[Action::OnSecondPair(0x0200_0000), Action::OnSecondPair(0x0200_0000)],
            "it sends a second ping",
        ),
    ];
    for (number, (pairs, actions, reason)) in (1..).zip(cases) {
        let mut raw =
            Raw::connect_to(&listener, number, *pairs).await.with_context(|| format!("case {number}"))?;
        for action in *actions {
            perform(&mut raw, *action).await?;
        }
        let said = raw.goodbye().await.with_context(|| format!("{reason:?} is not said"))?;
        ensure!(
            said.contains("the sender broke the protocol") && said.contains(reason),
            "{said:?}, not {reason:?}"
        );
    }
    handshakes_that_lie(&listener).await?;
    // The frame from before the violation has arrived, no other has, and the honest sender is not
    // affected.
    let frame = next(&listener).await?;
    ensure!(frame.sender().name() == "stranger" && frame.bytes().len() == 10, "{frame:?}");
    drop(frame);
    pairs_that_fail(&listener).await?;
    honest.send("honest").await?;
    let frame = next(&listener).await?;
    ensure!(frame.bytes() == b"honest", "{frame:?}");
    ensure!(honest.statistics().disconnects == 0, "{:?}", honest.statistics());
    drop(frame);
    eventually("the others to be gone", BOUND, async || match listener.statistics().connections {
        1 => Ok(()),
        count => bail!("{count} connections"),
    })
    .await
}

async fn next(listener: &Listener) -> Result<Received> {
    Ok(tokio::time::timeout(BOUND, listener.recv()).await??)
}

async fn perform(raw: &mut Raw, action: Action) -> Result<()> {
    match action {
        Action::Stream(header) => Ok(raw.stream.write_all(&[&header[..], &[0; 10]].concat()).await?),
        Action::Immediate(immediate) => raw.write_message(0, 0, (&[], &[]), immediate).await,
        Action::OnSecondPair(immediate) => raw.write_message(1, 0, (&[], &[]), immediate).await,
        // There are four slots.
        Action::Frame(slot, header) => raw.write_message(0, (slot % 4).into(), (&header, &[]), slot).await,
    }
}

/// Checks that none of these senders is admitted: one whose GID is a third party's, some that offer
/// impossible memory, and one that chooses what was not offered.
async fn handshakes_that_lie(listener: &Listener) -> Result<()> {
    let address = listener.local_addresses()[0];
    // The address that the kernel chooses.
    let own = TcpStream::connect(address).await?.local_addr()?.ip();
    let changed = |name: &str, value: Value| {
        let mut end = no_end(own);
        end[name] = value;
        end
    };
    let cases = [
        (
            changed("gid", "::ffff:10.9.0.77".into()),
            "RDMA cannot be used: the peer's GID is not that of its address",
        ),
        (changed("psn", u32::MAX.into()), "of more than 24 bits"),
        (changed("prefix", 0.into()), "the peer offers too little memory for RDMA"),
    ];
    for (number, (end, reason)) in (1000..).zip(cases) {
        let mut stream = TcpStream::connect(address).await?;
        send_json(&mut stream, &hello(number, &end)).await?;
        let answer = receive_json(&mut stream).await?;
        let message = answer["refuse"]["message"].as_str().unwrap_or_default();
        ensure!(message.contains(reason), "{answer}, not {reason:?}");
    }
    let mut stream = TcpStream::connect(address).await?;
    send_json(&mut stream, &hello(101, &no_end(own))).await?;
    let answer = receive_json(&mut stream).await?;
    ensure!(answer["accept"]["transport"] == "rdma", "{answer}");
    send_json(&mut stream, &json!({"transport": "tcp"})).await?;
    let mut rest = Vec::new();
    tokio::time::timeout(BOUND, stream.read_to_end(&mut rest)).await??;
    ensure!(rest.is_empty(), "{rest:?}");
    Ok(())
}

/// Checks that a fault which the device finds ends the connection and frees its memory: a wrong
/// key, a write beyond the memory, a queue pair that is gone while its connection stays, and
/// messages that cannot be written to the sender.
async fn pairs_that_fail(listener: &Listener) -> Result<()> {
    for (session, key, beyond) in [(2000, 1, 0), (2001, 0, 1 << 30)] {
        let mut raw = Raw::connect_to(listener, session, 1).await?;
        let RemoteAddress { address, key: theirs } = raw.theirs;
        let remote = RemoteAddress { address: address + beyond, key: theirs ^ key };
        let outcome = raw.write_to(0, remote, 8, 0).await?;
        ensure!(outcome.is_err(), "it has been written");
        let said = raw.goodbye().await?;
        ensure!(said.starts_with("RDMA has failed: from rxe0"), "{said}");
    }
    let mut raw = Raw::connect_to(listener, 2002, 1).await?;
    perform(&mut raw, Action::Frame(0, data(1, 10))).await?;
    raw.pairs.clear();
    drop(next(listener).await?);
    let said = raw.goodbye().await?;
    ensure!(said.contains("transport retry counter exceeded"), "{said}");
    let mut raw = Raw::connect_to(listener, 2003, 1).await?;
    raw.receive_buffer = None;
    perform(&mut raw, Action::Frame(0, data(1, 10))).await?;
    drop(next(listener).await?);
    let said = raw.goodbye().await?;
    ensure!(said.contains("remote access error"), "{said}");
    Ok(())
}
