//! The ends of frames that are not delivered, of peer sets and of listeners.

use std::time::Duration;

use futures::FutureExt as _;
use multinet_client::{Acknowledge, Delivery, ListenerClosed, Unacknowledged};

use crate::log::trap;
use crate::rig::{connector, endpoint, follow, listener, soon};

/// The receiver's program ends before it has taken a frame. Dropping the listener must not
/// acknowledge it.
#[tokio::test]
async fn a_frame_that_was_not_taken_is_not_acknowledged() {
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
async fn a_flush_waits_only_for_the_frames_sent_before() {
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
async fn waiting_for_an_abandoned_frame_reports_its_loss() {
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
    // Each handle reports the loss once.
    for handle in [&peers, &clone] {
        assert_eq!(soon(handle.flush()).await, Err(Unacknowledged::GivenUp));
        assert_eq!(soon(handle.flush()).await, Ok(()));
    }
}

#[tokio::test]
async fn closing_a_peer_set_ends_all_waiting() {
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

/// An application's log may panic in the task of a connection. Another connection then replaces it.
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

/// The tasks of the dropped listener have not run yet.
#[tokio::test]
async fn a_port_is_free_once_its_listener_is_dropped() {
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
