//! Peers that are broken, wrong or malicious. Each is refused or cut off with a reason, and others
//! are not affected.

mod admission;
mod flood;
mod greetings;
mod receivers;
mod room;
mod senders;
mod slow;
mod wrong;

use futures::channel::mpsc::UnboundedSender;
use multinet_client::gid::local_ports;
use multinet_client::{Acknowledge, Endpoint, Frame, Listener, ListenerBuilder, PeerSet, Transport};

use crate::rig::{connector, endpoint, eventually, follow, listener, rdma, soon};

/// Listener with a sender that follows the protocol.
struct Victim {
    listener: Listener,
    peers: PeerSet,
    _endpoints: UnboundedSender<Vec<Endpoint>>,
}

impl Victim {
    async fn new() -> Self {
        Self::of(listener()).await
    }

    async fn of(listener: ListenerBuilder) -> Self {
        let listener = listener.acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
        // On a machine with RDMA devices, the listener would warn that frames do not use them.
        let mut sender = connector();
        if rdma().is_none() && local_ports().is_ok_and(|ports| !ports.is_empty()) {
            sender = sender.transport(Transport::Tcp);
        }
        let (peers, endpoints) = follow(sender);
        endpoints.unbounded_send(vec![endpoint(&listener, "a", None)]).unwrap();
        soon(peers.connected(1)).await;
        Self { listener, peers, _endpoints: endpoints }
    }

    /// Waits until a frame of the well-behaved sender arrives, after those of others.
    async fn serves(&self) {
        soon(self.peers.send(Frame::new("behaved").key("behaved"))).await.unwrap();
        while soon(self.listener.recv()).await.unwrap().key() != b"behaved" {}
    }

    /// Waits until only the well-behaved sender is connected.
    async fn recovers(&self) {
        self.serves().await;
        eventually(|| self.listener.statistics().connections == 1).await;
    }
}
