//! Peers that break the rules by RDMA: each is told why it is cut off, and nobody else is affected.

mod flood;
mod raw;
mod receivers;
mod senders;

use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_client::{
    Connector, ConnectorBuilder, Endpoint, Listener, ListenerBuilder, PeerSet, Rdma, Transport, TransportKind,
};

use super::{HERE, follow, nobody};

/// How long one thing may take.
const BOUND: Duration = Duration::from_secs(60);

/// The guest is slow.
const PATIENCE: Duration = Duration::from_secs(20);

fn listener() -> ListenerBuilder {
    Listener::builder().address(HERE.into()).port(0).slots(4).patience(PATIENCE)
}

fn connector() -> Result<ConnectorBuilder> {
    Ok(Connector::builder()
        .resolver(nobody()?)
        .transport(Transport::Rdma)
        .patience(PATIENCE)
        .rdma(Rdma::default().stripes(3)))
}

/// A sender that behaves.
async fn honest(listener: &Listener) -> Result<PeerSet> {
    let honest = follow(connector()?, vec![Endpoint::at(listener.local_addresses()[0])])?;
    tokio::time::timeout(BOUND, honest.connected(1)).await?;
    ensure!(honest.status()[0].transport == Some(TransportKind::Rdma), "{:#?}", honest.status());
    Ok(honest)
}
