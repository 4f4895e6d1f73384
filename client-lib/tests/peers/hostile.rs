//! Peers that are broken, wrong, or out for trouble: each is refused or cut off with the reason, and nobody else notices.

mod admission;
mod flood;
mod greetings;
mod receivers;
mod room;
mod senders;
mod slow;
mod wrong;

use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use multinet_client::gid::local_ports;
use multinet_client::{Acknowledge, Endpoint, Frame, Listener, ListenerBuilder, PeerSet, Transport};

use crate::rig::{connector, endpoint, follow, listener, rdma, soon};

/// A listener with somebody who behaves.
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
        // Where there are devices, that frames do not go by them is a warning, unless it is what was asked for.
        let mut sender = connector();
        if rdma().is_none() && local_ports().is_ok_and(|ports| !ports.is_empty()) {
            sender = sender.transport(Transport::Tcp);
        }
        let (peers, endpoints) = follow(sender);
        endpoints.unbounded_send(vec![endpoint(&listener, "a", None)]).unwrap();
        soon(peers.connected(1)).await;
        Self { listener, peers, _endpoints: endpoints }
    }

    /// A frame of whoever behaves arrives, behind those of others.
    async fn serves(&self) {
        soon(self.peers.send(Frame::new("behaved").key("behaved"))).await.unwrap();
        while soon(self.listener.recv()).await.unwrap().key() != b"behaved" {}
    }

    /// Only whoever behaves is left.
    async fn recovers(&self) {
        self.serves().await;
        eventually(|| self.listener.statistics().connections == 1).await;
    }
}

/// Waits until something holds.
async fn eventually(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
