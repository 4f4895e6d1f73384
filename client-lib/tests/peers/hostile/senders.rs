//! Admitted senders that break the protocol.

use std::time::Duration;

use multinet_client::Acknowledge;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;

use super::Victim;
use crate::log::{WaitFor as _, capture};
use crate::raw::{CLOSE, CONTROL, DATA, Raw, control, data, data_header, header, hello};
use crate::rig::{eventually, listener, soon};

/// Checks that a sender of these bytes is cut off, and that it and the log get this reason.
async fn is_cut_off(bytes: &[u8], reason: &str) {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let mut raw = Raw::admitted(&victim.listener, &hello(1, 1)).await;
    raw.write(bytes).await;
    let said = raw.goodbye().await;
    assert!(said.contains("the sender broke the protocol") && said.contains(reason), "{said:?} for {reason}");
    log.wait_for("WARN", reason).await;
    victim.recovers().await;
    // Earlier frames are delivered, and the session can be continued.
    assert!(Raw::connect(&victim.listener).await.greet(&hello(1, 2)).await["accept"].is_object());
}

#[tokio::test]
async fn messages_that_a_sender_may_not_send_end_its_connection() {
    is_cut_off(&control(0, 0, &[], &[]), "a receiver's message, where only frames are allowed").await;
    is_cut_off(&control(9, 9, &[1], &[]), "a receiver's message").await;
    is_cut_off(&header(0, &[]), "unknown message kind 0").await;
    is_cut_off(&header(9, &[]), "unknown message kind 9").await;
    is_cut_off(&header(CONTROL, &[(2, &[1, 1])]), "257 acknowledgements, more than the 256").await;
    is_cut_off(&header(CLOSE, &[(1, &[9])]), "close code 9").await;
    is_cut_off(&header(CLOSE, &[(2, &[2, 1])]), "close text of 513 bytes, more than the 512").await;
    is_cut_off(&header(DATA, &[(1, &[0x82])]), "unknown flags 0x82").await;
}

#[tokio::test]
async fn impossible_frames_end_the_connection() {
    is_cut_off(&header(DATA, &[(4, &[0x10, 1])]), "metadata of 4097 bytes, more than the 4096").await;
    for length in [(1 << 20) + 1, u32::MAX as usize] {
        let reason = format!("a frame of {length} bytes, where 1048576 are allowed");
        is_cut_off(&data_header(1, 1, length), &reason).await;
    }
    for (sequence, floor) in [(4, 5), (65_541, 5), (u64::MAX, 1), (0, u64::MAX)] {
        let reason = format!("sequence {sequence} is not within 65536 of the floor {floor}");
        is_cut_off(&data(sequence, floor, b"frame"), &reason).await;
    }
}

#[tokio::test]
async fn frames_beyond_the_credit_end_the_connection() {
    let frames: Vec<u8> = (1..=9).flat_map(|number| data(number, 1, b"frame")).collect();
    is_cut_off(&frames, "more frames than it has credit for").await;
}

#[tokio::test]
async fn the_largest_sequence_numbers_are_valid() {
    let victim = Victim::new().await;
    let mut raw = Raw::admitted(&victim.listener, &hello(1, u64::MAX)).await;
    // Sequence numbers may jump ahead, and earlier frames may follow.
    for (sequence, floor) in
        [(0, 0), (65_535, 0), (u64::MAX, u64::MAX - 65_535), (7, 7), (u64::MAX, u64::MAX)]
    {
        raw.write(&data(sequence, floor, b"")).await;
    }
    let mut came = Vec::new();
    for _ in 0..3 {
        came.push(soon(victim.listener.recv()).await.unwrap().id().sequence);
    }
    assert_eq!(came, [0, 65_535, u64::MAX]);
    drop(raw);
    victim.recovers().await;
}

#[tokio::test]
async fn a_frame_that_was_cut_off_is_not_delivered() {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let whole = data(1, 1, &[7; 10_000]);
    for (epoch, length) in [1, 39, 40, 41, whole.len() - 1].into_iter().enumerate() {
        let mut raw = Raw::admitted(&victim.listener, &hello(1, epoch as u64 + 1)).await;
        raw.write(&whole[..length]).await;
        drop(raw);
        victim.recovers().await;
    }
    // Only the complete frame is delivered.
    let mut raw = Raw::admitted(&victim.listener, &hello(1, 100)).await;
    raw.write(&whole).await;
    assert_eq!(soon(victim.listener.recv()).await.unwrap().bytes(), &[7; 10_000]);
    assert!(log.with("WARN").is_empty(), "{}", log.text());
}

#[tokio::test]
async fn an_epoch_that_was_used_before_is_refused() {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let first = Raw::admitted(&victim.listener, &hello(1, 5)).await;
    for epoch in [5, 4, 0] {
        let answer = Raw::connect(&victim.listener).await.greet(&hello(1, epoch)).await;
        assert_eq!(answer["refuse"]["code"], "epoch", "{answer}");
    }
    log.wait_for("WARN", "refused: epoch 5 of lane 0 is not later than 5").await;
    drop(first);
    victim.recovers().await;
    // The epoch is refused even after that connection has ended.
    let answer = Raw::connect(&victim.listener).await.greet(&hello(1, 5)).await;
    assert_eq!(answer["refuse"]["code"], "epoch", "{answer}");
}

#[tokio::test]
async fn a_later_epoch_replaces_a_half_open_connection() {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let mut half_open = Raw::admitted(&victim.listener, &hello(1, 1)).await;
    half_open.write(&data(1, 1, b"first")).await;
    let _held = soon(victim.listener.recv()).await.unwrap();
    half_open.write(&data_header(2, 1, 1000)).await;
    let mut later = Raw::admitted(&victim.listener, &hello(1, 2)).await;
    assert!(half_open.goodbye().await.contains("another connection of the same sender has taken its place"));
    log.wait_for("INFO", "has taken its place").await;
    // The frame that the receiving code already has is skipped. The incomplete one is delivered.
    later.write(&[data(1, 1, b"first"), data(2, 1, b"second")].concat()).await;
    assert_eq!(soon(victim.listener.recv()).await.unwrap().bytes(), b"second");
    drop(later);
    drop(_held);
    victim.recovers().await;
}

/// Acknowledgements of frames on one connection of a session do not depend on the other connection.
#[tokio::test]
async fn frames_of_one_lane_do_not_depend_on_a_broken_one() {
    let listener = listener().bind().await.unwrap();
    let mut stays = Raw::admitted(&listener, &hello(1, 1)).await;
    let mut breaks = hello(1, 2);
    breaks["lane"] = 1.into();
    let mut breaks = Raw::admitted(&listener, &breaks).await;
    stays.write(&[data(1, 1, b"1"), data(3, 1, b"3")].concat()).await;
    breaks.write(&data(2, 1, b"2")).await;
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(soon(listener.recv()).await.unwrap());
    }
    drop(breaks);
    // The sender repeats unacknowledged frames on the other lane.
    stays.write(&data(2, 1, b"2")).await;
    eventually(|| listener.statistics().duplicates == 1).await;
    for frame in frames {
        match frame.id().sequence {
            3 => drop(frame),
            _ => frame.acknowledge(),
        }
    }
    // No code waits for another frame, so that the flusher sends the acknowledgement.
    let (mut acked, mut rejected) = (Vec::new(), Vec::new());
    while acked.len() < 2 || rejected.is_empty() {
        let message = stays.message().await.unwrap();
        acked.extend(message.acked());
        rejected.extend(message.rejected());
    }
    acked.sort_unstable();
    assert_eq!((acked, rejected), (vec![1, 2], vec![3]));
}

#[tokio::test]
async fn a_half_open_connection_does_not_block_its_own_sender() {
    let victim = Victim::of(listener().max_connections(2)).await;
    let mut half_open = Raw::admitted(&victim.listener, &hello(1, 1)).await;
    let mut epoch = 2;
    let later = loop {
        let mut raw = Raw::connect(&victim.listener).await;
        let answer = raw.greet(&hello(1, epoch)).await;
        if answer["accept"].is_object() {
            break raw;
        }
        assert_eq!(answer["refuse"]["code"], "full");
        assert!(epoch < 20, "it is still there");
        drop(raw);
        epoch += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(half_open.goodbye().await.contains("has taken its place"));
    drop(later);
    victim.recovers().await;
}

#[tokio::test]
async fn a_sender_that_reads_nothing_is_cut_off_in_the_end() {
    let victim = Victim::new().await;
    let socket = TcpSocket::new_v4().unwrap();
    // A small receive buffer keeps the kernel from storing the messages that the sender does not
    // read.
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = soon(socket.connect(victim.listener.local_addresses()[0])).await.unwrap();
    let mut raw = Raw(stream);
    assert!(raw.greet(&hello(1, 1)).await["accept"].is_object());
    let receiving = async {
        loop {
            drop(victim.listener.recv().await.unwrap());
        }
    };
    let sending = async {
        let mut sequence = 0_u64;
        loop {
            let frames: Vec<u8> = (0..8).flat_map(|i| data(sequence + i, sequence, b"")).collect();
            sequence += 8;
            // The sender uses its initial credit without reading it.
            if raw.0.write_all(&frames).await.is_err() {
                return sequence;
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    };
    let frames = tokio::select! {
        frames = soon(sending) => frames,
        () = receiving => unreachable!(),
    };
    assert!(frames < 1_000_000, "{frames}");
    drop(raw);
    victim.recovers().await;
}

#[tokio::test]
async fn slots_are_bounded_over_all_senders() {
    // The memory holds the slots of three senders and of the well-behaved one.
    let victim = Victim::of(listener().frame_size(1000).slots(1).memory(4 * (1000 + 4440))).await;
    let mut admitted = Vec::new();
    for session in 1..=3 {
        admitted.push(Raw::admitted(&victim.listener, &hello(session, 1)).await);
    }
    let answer = Raw::connect(&victim.listener).await.greet(&hello(9, 1)).await;
    assert_eq!(answer["refuse"]["code"], "full");
    let said = answer["refuse"]["message"].as_str().unwrap();
    assert!(
        said.contains("4 senders share 4 slots of 5440 bytes") && said.contains("raise memory"),
        "{said}"
    );
    admitted.clear();
    victim.recovers().await;
    drop(Raw::admitted(&victim.listener, &hello(9, 2)).await);
}

#[tokio::test]
async fn connections_are_bounded() {
    let victim = Victim::of(listener().max_connections(4)).await;
    let mut admitted = Vec::new();
    for session in 1..=3 {
        admitted.push(Raw::admitted(&victim.listener, &hello(session, 1)).await);
    }
    for session in 10..30 {
        let answer = Raw::connect(&victim.listener).await.greet(&hello(session, 1)).await;
        assert_eq!(answer["refuse"]["code"], "full");
    }
    victim.serves().await;
    admitted.clear();
    victim.recovers().await;
    // Sessions of departed senders are remembered, but only so many that new senders still get in.
    for session in 100..150 {
        drop(Raw::admitted(&victim.listener, &hello(session, 1)).await);
        eventually(|| victim.listener.statistics().connections == 1).await;
    }
    victim.recovers().await;
}

#[tokio::test]
async fn frames_of_a_departed_sender_hold_memory_only_while_kept() {
    let listener = listener().acknowledge(Acknowledge::Explicitly).bind().await.unwrap();
    let mut raw = Raw::admitted(&listener, &hello(1, 1)).await;
    raw.write(&data(1, 1, b"frame")).await;
    let frame = soon(listener.recv()).await.unwrap();
    drop(raw);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((frame.bytes(), listener.statistics().connections), (&b"frame"[..], 1));
    frame.acknowledge();
    eventually(|| listener.statistics().connections == 0).await;
}
