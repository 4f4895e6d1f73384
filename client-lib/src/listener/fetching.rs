//! The listener on connections that are opened in the other direction: this process connects to
//! fetch, or offers payloads to those that have connected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::{info, warn};

use super::accept::Receiving;
use super::control::Connection;
use super::ended::Ended;
use super::log_limit::LineKind;
use super::{Listener, ListenerState, handshake};
use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::handshake::{Delivery, Hello, SessionId, TransportKind};
use crate::identity::node_name;
use crate::peers::dial::Dialer;
use crate::reference::OfferId;
use crate::stream::Stream;

impl Listener {
    /// Returns the settings to send on connections that fetchers have opened to this listener.
    pub(crate) fn dialer(&self, service: String, window: u32) -> Dialer {
        let ListenerState { config, rdma_devices, .. } = &*self.handle.shared;
        Dialer {
            service,
            identity: config.identity.clone(),
            own_port: None,
            session: SessionId::random(),
            delivery: Delivery::AtLeastOnce,
            transport: config.transport,
            rdma_devices: Arc::clone(rdma_devices),
            gpu: None,
            window,
            network: None,
            allow_default_network: config.allow_default_network,
            tls: config.tls.clone(),
            node: node_name(),
            patience: config.limits.patience,
            silence: config.limits.silence,
        }
    }

    /// Logs that a fetcher is connected, within the limit on lines.
    pub(crate) fn log_connected(&self, transport: TransportKind, instead_of_rdma: Option<&str>) {
        if self.handle.shared.may_log(LineKind::Connected) {
            info!(%transport, instead_of_rdma, "connected");
        }
    }

    /// Logs that a fetcher was turned away in its handshake, within the limit on lines.
    pub(crate) fn log_turned_away(&self, error: &DialError) {
        self.handle.shared.counts.refused();
        if self.handle.shared.may_log(LineKind::Unreadable) {
            warn!("the fetcher was turned away: {error}");
        }
    }

    /// Logs that a fetcher is cut off because it holds a payload for so long after its deadline.
    pub(crate) fn log_overdue(&self, after: Duration) {
        if self.handle.shared.may_log(LineKind::Ended) {
            warn!(
                "the connection is closed: the fetcher has not acknowledged or dropped a payload {} s after its deadline",
                after.as_secs()
            );
        }
    }

    /// Ends the listener and its connections, as [`close`](Self::close) does, but does not wait.
    pub(crate) fn end(&self) {
        self.handle.shared.end();
    }

    /// Performs the rest of the handshake with a pod that offers payloads, to which this process
    /// has connected, and whose hello has been read.
    pub(crate) async fn connected(
        &self,
        stream: Stream,
        hello: Hello,
        endpoint: &Endpoint,
        peer: SocketAddr,
    ) -> Result<Fetching, DialError> {
        let shared = &self.handle.shared;
        let owner = stream.owner();
        let admitted = handshake::admit_connected(shared, stream, hello, owner);
        let admitted = admitted.await.map_err(|error| error.into_dial(endpoint, peer))?;
        Ok(Fetching(Receiving::new(shared, admitted, peer)))
    }
}

/// Connection to a pod that offers payloads, by which this process fetches them.
pub(crate) struct Fetching(Receiving);

/// Handle of such a connection that asks for payloads.
pub(crate) struct Asker {
    connection: Arc<Connection>,
    bytes: Arc<AtomicU64>,
}

impl Fetching {
    pub(crate) fn asker(&self) -> Asker {
        let Receiving { connection, reader, .. } = &self.0;
        Asker { connection: Arc::clone(connection), bytes: reader.count() }
    }

    /// Receives the answers until the connection ends.
    pub(crate) async fn run(self) {
        self.0.run().await;
    }
}

impl Asker {
    /// Asks for a payload. The answer names the question's number.
    pub(crate) fn ask(&self, number: u64, id: &OfferId) {
        self.connection.ask(number, id);
    }

    /// Returns how many bytes have come by TCP, also of a payload that has not come in full.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the program holds no payload, and the pod has been told of all that it held.
    pub(crate) fn is_idle(&self) -> bool {
        self.connection.is_idle() && self.connection.is_quiet()
    }

    /// Returns whether the connection has ended, or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_over()
    }

    /// Ends the connection, because nothing more is fetched by it.
    pub(crate) fn close(&self) {
        self.connection.close_with(Ended::NotNeeded);
    }
}
