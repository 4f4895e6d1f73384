//! Identity of peers: names, uids, and the instance itself.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use multinet_client::{
    Delivery, DialError, Endpoint, Identity, Listener, ListenerBuilder, PeerClosed, RefusalCode,
    ResolveError, SendError, Transport, TrySendError,
};

use crate::rig::{connector, endpoint, follow, listener, soon};

/// Both names stay connected; neither replaces the other.
#[tokio::test]
async fn one_listener_may_have_several_names() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None), endpoint(&receiver, "b", None)]).unwrap();
    soon(peers.connected(2)).await;
    for number in 0..200_u32 {
        let sent = soon(peers.send(number.to_be_bytes().to_vec())).await.unwrap();
        let frame = soon(receiver.recv()).await.unwrap();
        assert_eq!((frame.bytes(), frame.is_repeat()), (&number.to_be_bytes()[..], false));
        frame.acknowledge();
        soon(sent.acknowledged()).await.unwrap();
    }
    assert_eq!((peers.statistics().disconnects, receiver.statistics().connections), (0, 2));
}

/// A stream of endpoints from another source than DNS may end. The last endpoints then stay.
#[tokio::test]
async fn a_stream_of_endpoints_is_not_polled_after_its_end() {
    let receiver = listener().bind().await.unwrap();
    let endpoints = vec![endpoint(&receiver, "a", None)];
    // A stream of `unfold` panics when it is polled after its end.
    let once = futures::stream::unfold(Some(endpoints), |endpoints| async move { Some((endpoints?, None)) });
    let peers = connector().build().unwrap().follow("infer.vision.svc.multinet", once);
    for number in 0..10_u8 {
        soon(peers.send(vec![number])).await.unwrap();
        assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), [number]);
    }
    // The end of a connection wakes the manager.
    receiver.close().await;
    assert!(soon(peers.close(Duration::from_millis(100))).await.unfinished == 0);
}

/// A removed peer has no successor, whichever task notices the removal first.
#[tokio::test]
async fn a_peer_that_is_gone_is_not_replaced_by_itself() {
    for _ in 0..20 {
        let receiver = listener().bind().await.unwrap();
        let (peers, endpoints) = follow(connector());
        endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
        soon(peers.connected(1)).await;
        let peer = peers.peer("a").unwrap();
        let closed = tokio::spawn(async move { peer.closed().await });
        tokio::task::yield_now().await;
        endpoints.unbounded_send(Vec::new()).unwrap();
        assert_eq!(soon(closed).await.unwrap(), PeerClosed::Removed);
    }
}

/// This ends both a call of `recv` and a stream of frames.
#[tokio::test]
async fn waiting_for_frames_ends_when_the_listener_closes() {
    let receiver = Arc::new(listener().bind().await.unwrap());
    let (one, all) = (Arc::clone(&receiver), Arc::clone(&receiver));
    let one = tokio::spawn(async move { one.recv().await.is_err() });
    let all = tokio::spawn(async move { all.frames().count().await });
    tokio::task::yield_now().await;
    soon(receiver.close()).await;
    assert!(soon(one).await.unwrap());
    assert_eq!(soon(all).await.unwrap(), 0);
    assert!(receiver.recv().await.is_err() && receiver.try_recv().is_none());
}

/// Other tasks that go on sending do not delay the close.
#[tokio::test]
async fn a_peer_set_that_closes_takes_no_more_frames() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    soon(peers.connected(1)).await;
    let (other, waiting) = (peers.clone(), peers.clone());
    let sending = tokio::spawn(async move { while other.send(vec![1]).await.is_ok() {} });
    let company = tokio::spawn(async move { waiting.connected(2).await });
    let receiving = tokio::spawn(async move { while receiver.recv().await.is_ok() {} });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(soon(peers.close(Duration::from_secs(30))).await.unfinished, 0);
    soon(sending).await.unwrap();
    soon(company).await.unwrap();
    receiving.abort();
}

#[tokio::test]
async fn a_departed_peer_has_a_reason() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    let tell = |uids: &[(&str, &str)]| {
        let named = uids.iter().map(|(host, uid)| endpoint(&receiver, host, Some(uid))).collect();
        endpoints.unbounded_send(named).unwrap();
    };
    tell(&[("a", "1"), ("b", "2"), ("c", "3")]);
    soon(peers.connected(3)).await;
    let [a, b, c] = ["a", "b", "c"].map(|host| peers.peer(host).unwrap());
    tell(&[("a", "1"), ("b", "4")]);
    assert_eq!(soon(c.closed()).await, PeerClosed::Removed);
    assert_eq!(soon(b.closed()).await, PeerClosed::Replaced);
    soon(peers.close(Duration::from_secs(1))).await;
    assert_eq!(soon(a.closed()).await, PeerClosed::PeerSet);
}

/// Handles of peers do not own the peer set. A task that waits for a peer's end learns of the end
/// of the set.
#[tokio::test]
async fn peers_do_not_keep_a_peer_set_open() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    soon(peers.connected(1)).await;
    let peer = peers.peer("a").unwrap();
    let waiting = tokio::spawn({
        let peer = peer.clone();
        async move { peer.closed().await }
    });
    tokio::task::yield_now().await;
    let sent = soon(peer.send("a frame")).await.unwrap();
    drop(peers);
    soon(peer.send("another")).await.unwrap();
    drop(sent);
    assert_eq!(soon(waiting).await.unwrap(), PeerClosed::PeerSet);
    assert_eq!(soon(peer.send("one more")).await.unwrap_err(), SendError::Closed);
    for _ in 0..2 {
        drop(soon(receiver.recv()).await.unwrap());
    }
    soon(async {
        while receiver.statistics().connections > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Peers are numbered within a PeerSet, so that two sets use the same numbers.
#[tokio::test]
async fn a_peer_of_another_peer_set_is_refused() {
    let receiver = listener().bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    let (others, of_others) = follow(connector());
    for endpoints in [endpoints.clone(), of_others.clone()] {
        endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    }
    soon(peers.connected(1)).await;
    soon(others.connected(1)).await;
    let theirs = others.peer("a").unwrap();
    assert_eq!(soon(peers.send_to(&theirs, "a frame")).await.unwrap_err(), SendError::Gone);
    soon(others.send_to(&theirs, "a frame")).await.unwrap();
}

/// The pod leaves while the receiver still holds a frame. From then on DNS names another pod.
#[tokio::test]
async fn a_peer_that_has_left_is_no_longer_listed() {
    let (receiver, next) = (listener().bind().await.unwrap(), listener().bind().await.unwrap());
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", Some("1"))]).unwrap();
    soon(peers.connected(1)).await;
    let old = peers.peer("a").unwrap();
    let sent = soon(old.send("before")).await.unwrap();
    let held = soon(receiver.recv()).await.unwrap();
    endpoints.unbounded_send(vec![endpoint(&next, "a", Some("2"))]).unwrap();
    soon(async {
        while peers.peer("a").is_none_or(|peer| peer.endpoint().uid() == Some("1")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!((peers.peers().len(), peers.status().len()), (1, 1));
    assert_eq!(soon(old.send("after")).await.unwrap_err(), SendError::Gone);
    // An acknowledgement of the departed peer still counts.
    held.acknowledge();
    soon(sent.acknowledged()).await.unwrap();
    assert_eq!(peers.statistics().acknowledged, 1);
    let sent = soon(peers.peer("a").unwrap().send("to the next")).await.unwrap();
    soon(next.recv()).await.unwrap().acknowledge();
    soon(sent.acknowledged()).await.unwrap();
}

/// An instance that is an endpoint of the service recognises itself by its uid, or by its address
/// and port.
#[tokio::test]
async fn an_instance_does_not_connect_to_itself() {
    let (me, other) = (listener().bind().await.unwrap(), listener().bind().await.unwrap());
    let own_port = me.local_addresses()[0].port();
    let by_uid = connector().identity(Identity::new("me").uid("1"));
    for (connector, uid) in [(by_uid, Some("1")), (connector().own_port(own_port), None)] {
        let (peers, endpoints) = follow(connector);
        endpoints
            .unbounded_send(vec![endpoint(&me, "a", uid), endpoint(&other, "b", uid.map(|_| "2"))])
            .unwrap();
        soon(peers.connected(1)).await;
        let hosts: Vec<String> = peers.peers().iter().map(|peer| peer.endpoint().host.clone()).collect();
        assert_eq!(hosts, ["b"]);
    }
    assert_eq!(me.statistics().connections, 0);
}

/// A refusal with all names would not fit into a message.
#[tokio::test]
async fn a_sender_to_none_of_many_services_gets_some_of_their_names() {
    let services = (0..300).map(|number| format!("service-{number}.vision"));
    let receiver = services.fold(listener(), ListenerBuilder::service).bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
    let error = soon(async {
        loop {
            if let Some(error) = peers.status().iter().find_map(|peer| peer.last_error.clone()) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let error = error.await;
    let DialError::Refused { code: RefusalCode::Service, message, .. } = &*error else { panic!("{error}") };
    assert!(message.ends_with("service-7.vision and 292 more"), "{message}");
}

/// A listener for IPv6 also accepts IPv4, whose addresses must not appear as IPv4-mapped.
#[tokio::test]
async fn a_sender_over_ipv4_has_an_ipv4_address() {
    let receiver =
        Listener::builder().address(Ipv6Addr::UNSPECIFIED.into()).port(0).transport(Transport::Tcp);
    let receiver = receiver.bind().await.unwrap();
    let port = receiver.local_addresses()[0].port();
    let (peers, endpoints) = follow(connector().transport(Transport::Tcp));
    endpoints.unbounded_send(vec![Endpoint::at((Ipv4Addr::LOCALHOST, port).into())]).unwrap();
    soon(peers.send("a frame")).await.unwrap();
    let frame = soon(receiver.recv()).await.unwrap();
    assert_eq!(frame.sender().address().ip(), Ipv4Addr::LOCALHOST);
}

/// Such a name can never be resolved, so that waiting is useless.
#[tokio::test]
async fn sending_to_an_invalid_name_fails_at_once() {
    let peers = connector().build().unwrap().start("infer..vision", "rdma");
    for _ in 0..2 {
        let error = soon(peers.send("a frame")).await.unwrap_err();
        assert!(matches!(error, SendError::Resolve(ResolveError::BadName { .. })), "{error}");
    }
    let (_, error) = peers.try_send("a frame").unwrap_err();
    assert!(matches!(error, TrySendError::Never(SendError::Resolve(_))), "{error}");
    assert!(matches!(soon(peers.broadcast("a frame")).await, Err(SendError::Resolve(_))));
}
