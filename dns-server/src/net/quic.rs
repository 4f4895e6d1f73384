//! DNS over QUIC (RFC 9250), with quinn for QUIC. Each query has a stream of its own.
//!
//! This file accepts connections and streams. `quic/stream.rs` serves each stream.
//!
//! **Isolation.** Every handshake, connection and stream has a task of its own. A slow, reset or
//! lost one ends only itself. A client that breaks the protocol loses its connection (§4.3.3).
//!
//! **Bounds.** Connections have a limit of their own, so that they cannot use up that of other
//! listeners. At the limit a new connection evicts another. When several handshakes are in
//! progress, or the limit is reached, a client must first prove its address by a Retry packet, for
//! which the server keeps no state (RFC 9000 §8.1.2). Forged addresses therefore evict no genuine
//! client. A connection has few streams and small windows. Incoming queries and waiting replies
//! count toward the memory budget of all connections.
//!
//! The listener runs on threads of its own ([`CryptoRuntime`]): a flood of handshakes takes no
//! other threads.
//!
//! After a shutdown no connection is accepted, and [`QuicListener::run`] returns when the queries
//! in progress are answered. Early data (0-RTT) are not accepted, since they could be replayed
//! (§4.5).

mod stream;

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use tokio::select;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use crate::answer::proto::Proto;
use crate::limits::quic::{
    CLOSE_TIME, GRACE, HANDSHAKE_TIME, IDLE_TIME, MAX_PENDING, MAX_UNVALIDATED, PENDING_BYTES, STREAM_WINDOW,
    STREAMS, WINDOW,
};
use crate::net::connections::{ConnectionPermit, Connections};
use crate::net::crypto_runtime::CryptoRuntime;
use crate::net::engine::Engine;
use crate::net::tls::Certificates;

/// ALPN protocol of DNS over QUIC (RFC 9250 §8.1).
const ALPN: &[u8] = b"doq";

/// Error code DOQ_NO_ERROR, for a connection that the server closes in good order (RFC 9250 §4.3).
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// Error code DOQ_EXCESSIVE_LOAD, for an evicted connection or a stream without memory (§4.3).
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(4);

/// Listener for DNS over QUIC at one address.
pub struct QuicListener {
    /// Runtime of the endpoint and its connections, since handshakes hold the endpoint's lock.
    runtime: CryptoRuntime,
    acceptor: Acceptor,
}

impl QuicListener {
    /// Returns a listener on a bound, nonblocking socket. Requires a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the socket, or the system has no more threads.
    pub fn new(
        socket: std::net::UdpSocket,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let crypto =
            QuicServerConfig::try_from(certificates.server_config(&[ALPN])).map_err(io::Error::other)?;
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(transport())).max_incoming(MAX_PENDING);
        config
            .incoming_buffer_size(PENDING_BYTES)
            .incoming_buffer_size_total(PENDING_BYTES * MAX_PENDING as u64);
        let runtime = CryptoRuntime::new("quic")?;
        let endpoint = {
            let _within = runtime.handle().enter();
            Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?
        };
        Ok(Self { runtime, acceptor: Acceptor { endpoint, engine, connections } })
    }

    /// Accepts connections until `shutdown`, then waits until the queries in progress are answered.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { runtime, acceptor } = self;
        let running = runtime.handle().spawn(acceptor.run(shutdown));
        // A panic is logged by its task, and ends only this listener.
        let _ = running.await;
    }
}

/// Accept loop of a [`QuicListener`], which runs on the listener's own threads.
struct Acceptor {
    endpoint: Endpoint,
    engine: Engine,
    connections: Connections,
}

impl Acceptor {
    async fn run(self, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let handshakes = Arc::new(());
        loop {
            let incoming = select! {
                biased;
                () = shutdown.cancelled() => break,
                incoming = self.endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else {
                error!("a QUIC listener lost its socket; restart the server");
                break;
            };
            // The accept loop itself holds one of the counted references.
            let is_crowded =
                Arc::strong_count(&handshakes) > MAX_UNVALIDATED || self.connections.places.is_full();
            if is_crowded && !incoming.remote_address_validated() {
                if let Err(error) = incoming.retry() {
                    debug!(%error, "could not ask the client to prove its address");
                }
                continue;
            }
            let permit = self.connections.admit(incoming.remote_address().ip());
            let (engine, shutdown) = (self.engine.clone(), shutdown.child_token());
            let handshake = Arc::clone(&handshakes);
            tasks.spawn(async move {
                let peer = incoming.remote_address();
                if let Err(error) = serve_connection(incoming, handshake, &engine, &permit, shutdown).await {
                    debug!(%peer, %error, "QUIC connection ended");
                }
            });
        }
        tasks.close();
        // New clients are refused, so that they can go elsewhere at once.
        let refusing = async {
            while let Some(incoming) = self.endpoint.accept().await {
                incoming.refuse();
            }
            pending::<()>().await;
        };
        select! {
            () = tasks.wait() => {}
            () = refusing => {}
        }
        self.endpoint.close(NO_ERROR, b"");
        // A client that misses the close will time out.
        let _ = timeout(CLOSE_TIME, self.endpoint.wait_idle()).await;
    }
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(STREAMS.into())
        .max_concurrent_uni_streams(0u8.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIME.as_millis() as u32).into()))
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window((u32::from(STREAMS) * STREAM_WINDOW).into())
        .send_window(WINDOW.into())
        // Padding hides the size of a reply, which could tell the name that was asked for (RFC 9250
        // §5.4).
        .pad_to_mtu(true);
    transport
}

/// Completes the handshake of one QUIC connection, and serves its streams until it ends.
async fn serve_connection(
    incoming: Incoming,
    handshake: Arc<()>,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    let connection = select! {
        () = shutdown.cancelled() => return Ok(()),
        () = permit.place.evicted() => return Ok(()),
        connection = timeout(HANDSHAKE_TIME, incoming) => connection.map_err(|_| ConnectionError::TimedOut)??,
    };
    drop(handshake);
    let worker = Arc::new(Mutex::new(engine.worker(Proto::Quic)));
    let streams = TaskTracker::new();
    let serve = |(to, from)| {
        streams.spawn(stream::serve_stream(
            connection.clone(),
            Arc::clone(&worker),
            to,
            from,
            permit.memory_account(),
        ));
    };
    loop {
        let stream = select! {
            biased;
            () = shutdown.cancelled() => break,
            () = permit.place.evicted() => {
                connection.close(EXCESSIVE_LOAD, b"");
                return Ok(());
            }
            stream = timeout(IDLE_TIME, connection.accept_bi()) => stream,
        };
        match stream {
            Ok(stream) => {
                permit.place.touch(Instant::now());
                serve(stream?);
            }
            Err(_) => break,
        }
    }
    // Accepts the streams that arrived before the shutdown; there cannot be more than this limit.
    for _ in 0..STREAMS {
        let Ok(stream) = timeout(Duration::ZERO, connection.accept_bi()).await else { break };
        serve(stream?);
    }
    streams.close();
    if timeout(GRACE, streams.wait()).await.is_err() {
        debug!(peer = %connection.remote_address(), "closing a QUIC connection before all of its queries are answered");
    }
    connection.close(NO_ERROR, b"");
    Ok(())
}
