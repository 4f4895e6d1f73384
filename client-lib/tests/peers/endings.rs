//! What senders are told of frames that come to no good end, and when.

use std::time::Duration;

use futures::FutureExt as _;
use multinet_client::{Acknowledge, Delivery, ListenerClosed, Unacknowledged};

use crate::log::trap;
use crate::rig::{connector, endpoint, follow, listener, soon};

/// A receiver's program ends before it has looked at a frame: its last act must not be to acknowledge it.
#[tokio::test]
async fn what_nobody_took_is_not_acknowledged() {
    let there = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (bound, binding) = tokio::sync::oneshot::channel();
    let (came, coming) = tokio::sync::oneshot::channel();
    there.spawn(async move {
        let receiver = listener().slots(1).acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
        bound.send(endpoint(&receiver, "a", None)).unwrap();
        while receiver.statistics().frames == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        came.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(receiver);
    });
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![soon(binding).await.unwrap()]).unwrap();
    soon(peers.send("a frame")).await.unwrap();
    soon(coming).await.unwrap();
    there.shutdown_background();
    let has_gone = async {
        while peers.statistics().disconnects == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(has_gone).await;
    assert_eq!((peers.statistics().acknowledged, peers.statistics().held), (0, 1));
}

#[tokio::test]
async fn a_flush_waits_for_what_was_sent_before_and_for_nothing_else() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    soon(peers.send("before")).await.unwrap();
    let mut flush = Box::pin(peers.flush());
    assert_eq!((&mut flush).now_or_never(), None);
    soon(peers.send("after")).await.unwrap();
    soon(receiver.recv()).await.unwrap().acknowledge();
    let after = soon(receiver.recv()).await.unwrap();
    assert_eq!(soon(flush).await, Ok(()));
    after.acknowledge();
}

#[tokio::test]
async fn who_waits_for_a_frame_hears_that_it_was_given_up() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    soon(peers.connected(1)).await;
    let good = soon(peers.send("good")).await.unwrap();
    soon(receiver.recv()).await.unwrap().acknowledge();
    soon(peers.flush()).await.unwrap();
    let clone = peers.clone();
    let lost = soon(peers.peer("a").unwrap().send("for this peer only")).await.unwrap();
    endpoints.unbounded_send(Vec::new()).unwrap();
    soon(receiver.close()).await;
    assert_eq!(soon(lost.acknowledged()).await, Err(Unacknowledged::GivenUp));
    assert_eq!(soon(good.acknowledged()).await, Ok(()));
    // Each handle hears of it once.
    for handle in [&peers, &clone] {
        assert_eq!(soon(handle.flush()).await, Err(Unacknowledged::GivenUp));
        assert_eq!(soon(handle.flush()).await, Ok(()));
    }
}

#[tokio::test]
async fn one_that_is_closed_ends_all_waiting() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let sent = soon(peers.send("a frame")).await.unwrap();
    let (patient, flushed) = (peers.clone(), peers.clone());
    let closing = tokio::spawn(patient.close(Duration::from_secs(3600)));
    let flushing = tokio::spawn(async move { flushed.flush().await });
    let watched = peers.clone();
    let mut watching = Box::pin(watched.closed());
    assert_eq!((&mut watching).now_or_never(), None);
    let _frame = soon(receiver.recv()).await.unwrap();
    assert_eq!(soon(peers.close(Duration::ZERO)).await.unfinished, 1);
    assert_eq!(soon(closing).await.unwrap().unfinished, 1);
    assert_eq!(soon(watching).await.unfinished, 1);
    assert_eq!(soon(flushing).await.unwrap(), Err(Unacknowledged::Closed));
    assert_eq!(soon(sent.acknowledged()).await, Err(Unacknowledged::Closed));
}

/// An application's log may panic in a connection's task: that connection has ended then, and another is made.
#[tokio::test]
async fn a_log_that_panics_ends_one_connection() {
    let _guard = trap("multinet_client::peers::serve: connected");
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    soon(peers.send("a frame")).await.unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), b"a frame");
    assert_eq!(peers.statistics().disconnects, 0);
    soon(peers.close(Duration::from_secs(5))).await;
}

/// The tasks of the one that was dropped have not had their turn yet.
#[tokio::test]
async fn a_port_is_free_when_its_listener_has_been_dropped() {
    let first = listener().bind().await.unwrap();
    let address = first.local_addresses()[0];
    drop(first);
    let second = listener().port(address.port()).bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&second, "a", None)]).unwrap();
    soon(peers.send("a frame")).await.unwrap();
    assert_eq!(soon(second.recv()).await.unwrap().bytes(), b"a frame");
}

#[tokio::test]
async fn a_listener_ends_with_its_last_handle_or_when_it_is_closed() {
    let first = listener().bind().await.unwrap();
    let second = first.clone();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&first, "a", None)]).unwrap();
    soon(peers.connected(1)).await;
    drop(first);
    soon(peers.send("a frame")).await.unwrap();
    assert_eq!(soon(second.recv()).await.unwrap().bytes(), b"a frame");
    let watched = second.clone();
    let mut watching = Box::pin(watched.closed());
    assert_eq!((&mut watching).now_or_never(), None);
    soon(second.close()).await;
    assert_eq!(soon(watching).await, ListenerClosed);
}
