//! Frames that arrive, with both kinds of delivery.

use std::time::Duration;

use multinet_client::{Acknowledge, Buffer, Choice, Delivery, Frame, Transport};

use crate::rig::{connector, endpoint, follow, listener, soon};

#[tokio::test]
async fn every_frame_is_acknowledged_once() {
    let receiver = listener().acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let sender = tokio::spawn(async move {
        for number in 0..10_000_u32 {
            peers.send(Frame::new(number.to_be_bytes().to_vec())).await.unwrap();
        }
        peers.flush().await.unwrap();
        peers.statistics()
    });
    for number in 0..10_000_u32 {
        assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), number.to_be_bytes());
    }
    let statistics = soon(sender).await.unwrap();
    assert_eq!((statistics.frames, statistics.acknowledged, statistics.repeats), (10_000, 10_000, 0));
}

#[tokio::test]
async fn a_buffer_is_returned_after_its_frame() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let mut buffer = Buffer::host(1 << 20);
    for round in 0..20 {
        buffer.as_mut().unwrap().fill(round);
        let sent = soon(peers.send(buffer.clone())).await.unwrap();
        assert!(soon(receiver.recv()).await.unwrap().bytes().iter().all(|&byte| byte == round));
        soon(sent.acknowledged()).await.unwrap();
        // The kernel may use the last bytes of the buffer a moment longer than the receiver needs
        // to read them.
        while buffer.as_mut().is_none() {
            tokio::task::yield_now().await;
        }
    }
    soon(receiver.close()).await;
    assert_eq!(soon(peers.close(Duration::from_secs(1))).await.unfinished, 0);
}

/// A receiver without memory for all connections of a sender refuses some. The others carry all
/// keys.
#[tokio::test]
async fn keys_of_a_refused_connection_are_sent_by_another() {
    let memory = (1 << 20) + (1 << 19);
    let receiver = listener().acknowledge(Acknowledge::OnDrop).transport(Transport::Tcp);
    let receiver = receiver.slots(2).frame_size(1 << 20).memory(memory).bind().await.unwrap();
    let sender = connector().delivery(Delivery::AtLeastOnce).choice(Choice::ByKey).connections_per_peer(3);
    let (peers, endpoints) = follow(sender.transport(Transport::Tcp));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let sending = tokio::spawn(async move {
        for number in 0..200_u8 {
            let frame = Frame::new(vec![number]).key(vec![number % 20]);
            peers.send(frame).await.unwrap();
        }
        peers.flush().await.unwrap();
        peers.statistics()
    });
    let mut last = [None; 20];
    for _ in 0..200 {
        let frame = soon(receiver.recv()).await.unwrap();
        let (key, number) = (frame.key()[0], frame.bytes()[0]);
        assert!(last[usize::from(key)].replace(number) < Some(number), "{number} of key {key}");
    }
    let sent = soon(sending).await.unwrap();
    assert_eq!((sent.acknowledged, sent.connections, receiver.statistics().connections), (200, 1, 1));
}
