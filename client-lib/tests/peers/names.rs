//! One listener that DNS knows by several addresses.

use multinet_client::Delivery;

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
