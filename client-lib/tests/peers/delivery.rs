//! Frames arrive as they were sent, in both ways of delivery.

use std::time::{Duration, SystemTime};

use multinet_client::{Acknowledge, Buffer, Delivery, Frame};

use crate::rig::{connector, endpoint, follow, listener, soon};

#[tokio::test]
async fn a_frame_arrives_as_it_was_sent() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let now = SystemTime::now();
    let frame = Frame::new(vec![1; 1000]).and(vec![2; 500_000]).key("camera").metadata("pts").timestamp(now);
    let sent = soon(peers.send(frame)).await.unwrap();
    let frame = soon(receiver.recv()).await.unwrap();
    assert_eq!((frame.key(), frame.metadata(), frame.id()), (&b"camera"[..], &b"pts"[..], sent.id()));
    assert_eq!(frame.bytes().len(), 501_000);
    assert!(frame.bytes()[..1000].iter().all(|&byte| byte == 1));
    assert!(frame.bytes()[1000..].iter().all(|&byte| byte == 2));
    let late = now.duration_since(frame.timestamp().unwrap()).unwrap();
    assert!(late < Duration::from_micros(1) && !frame.is_repeat());
}

#[tokio::test]
async fn every_frame_is_acknowledged_once() {
    let receiver = listener().acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let sender = tokio::spawn(async move {
        for number in 0..10_000_u32 {
            peers.send(Frame::new(number.to_be_bytes().to_vec())).await.unwrap();
        }
        peers.flush().await;
        peers.statistics()
    });
    for number in 0..10_000_u32 {
        assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), number.to_be_bytes());
    }
    let statistics = soon(sender).await.unwrap();
    assert_eq!((statistics.frames, statistics.acknowledged, statistics.repeats), (10_000, 10_000, 0));
}

#[tokio::test]
async fn a_buffer_comes_back() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let mut buffer = Buffer::host(1 << 20);
    for round in 0..20 {
        buffer.as_mut().unwrap().fill(round);
        let sent = soon(peers.send(buffer.clone())).await.unwrap();
        assert!(soon(receiver.recv()).await.unwrap().bytes().iter().all(|&byte| byte == round));
        soon(sent.acknowledged()).await;
        // Its last bytes may be in the kernel's hands a moment longer than the receiver needs to read them.
        while buffer.as_mut().is_none() {
            tokio::task::yield_now().await;
        }
    }
    soon(receiver.close()).await;
    assert_eq!(soon(peers.close(Duration::from_secs(1))).await.unfinished, 0);
}
