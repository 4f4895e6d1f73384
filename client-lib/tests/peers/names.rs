//! Who a peer is: by its name, by its uid, or ourselves.

use std::time::Duration;

use multinet_client::{Delivery, Identity, PeerClosed};

use crate::rig::{connector, endpoint, follow, listener, soon};

/// Both names are connected, and stay so: neither takes the other's place.
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
        soon(sent.acknowledged()).await;
    }
    assert_eq!((peers.statistics().disconnects, receiver.statistics().connections), (0, 2));
}

/// A peer that goes says why.
#[tokio::test]
async fn a_peer_that_goes_says_why() {
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

/// An instance that is an endpoint of the service itself passes itself over: by its uid, or by its address and port.
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
