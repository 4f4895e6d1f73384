//! Peers that break the protocol over RDMA: each gets the reason and is cut off, and no other is
//! affected.

mod flood;
mod raw;
mod receivers;
mod senders;

use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_client::{
    Connector, ConnectorBuilder, Endpoint, Listener, ListenerBuilder, PeerSet, Rdma, Transport, TransportKind,
};

use super::{HERE, follow, no_resolver};

/// The longest time that one step may take.
const BOUND: Duration = Duration::from_secs(60);

/// Long, since the guest is slow.
const PATIENCE: Duration = Duration::from_secs(20);

fn listener() -> ListenerBuilder {
    Listener::builder().address(HERE.into()).port(0).slots(4).patience(PATIENCE)
}

fn connector() -> Result<ConnectorBuilder> {
    Ok(Connector::builder()
        .resolver(no_resolver()?)
        .transport(Transport::Rdma)
        .patience(PATIENCE)
        .rdma(Rdma::default().stripes(3)))
}

/// Returns a sender that keeps to the protocol.
async fn honest(listener: &Listener) -> Result<PeerSet> {
    let honest = follow(connector()?, vec![Endpoint::at(listener.local_addresses()[0])])?;
    tokio::time::timeout(BOUND, honest.connected(1)).await?;
    ensure!(honest.status()[0].transport == Some(TransportKind::Rdma), "{:#?}", honest.status());
    Ok(honest)
}
