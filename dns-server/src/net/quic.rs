//! DNS over QUIC (RFC 9250): quinn in front of our answers, one stream for each query.
//!
//! This file accepts connections and streams; what happens on one stream is told in `quic/stream.rs`.
//!
//! **Nobody waits for anybody.** Every handshake, connection and stream has a task of its own; what is slow,
//! reset or lost ends nothing but itself. Who breaks the protocol loses the connection (§4.3.3).
//!
//! **Bounds.** Connections have a limit of their own, so that they cannot use up that of other listeners;
//! beyond it another goes for a new one. When several handshakes are under way, or the limit is reached, a
//! client that has not shown that it receives at its address must do so first, which costs us no state (RFC
//! 9000 §8.1.2): forged addresses put nobody out. A connection has few streams and small windows. Over all connections,
//! queries that are coming and replies that wait are counted.
//!
//! All of it has threads of its own ([`CryptoRuntime`]): a flood of handshakes takes no more than those.
//!
//! On shutdown nothing more is accepted, and [`QuicListener::run`] returns when the queries under way are
//! answered. Early data is not taken: it could be replayed (§4.5).

mod stream;

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use tokio::select;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use crate::answer::peer::Proto;
use crate::net::crypto_runtime::CryptoRuntime;
use crate::net::engine::Engine;
use crate::net::tcp::{ConnectionPermit, Connections};
use crate::net::tls::Certificates;

/// The ALPN protocol of DNS over QUIC (RFC 9250 §8.1).
const ALPN: &[u8] = b"doq";

/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// How long a connection may be without a packet, and without a query; the same as for TCP. More than a
/// stream can last, so that none is under way when it has passed.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// How long queries under way have when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// How long peers may take to see that we have closed.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Handshakes under way from which on addresses must be proven.
const MAX_UNVALIDATED: usize = 8;

/// Connections that the endpoint keeps until we look; we look at once.
const MAX_PENDING: usize = 256;

/// What each of them may have sent by then.
const PENDING_BYTES: u64 = 16 << 10;

/// Queries under way on one connection.
const STREAMS: u8 = 16;

/// What of a query may be on its way, or have come without what is before it. Longer ones come in parts.
const STREAM_WINDOW: u32 = 4 << 10;

/// What of replies may be on its way in one connection.
const WINDOW: u32 = 256 << 10;

/// DOQ_NO_ERROR (RFC 9250 §4.3).
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// DOQ_EXCESSIVE_LOAD.
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(4);

/// Accepts connections at one address.
pub struct QuicListener {
    /// Where all of it runs: handshakes hold the lock of the endpoint.
    runtime: CryptoRuntime,
    endpoint: Endpoint,
    engine: Engine,
    connections: Connections,
}

impl QuicListener {
    /// A listener at a bound socket that does not block. To be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the socket, or there are no more threads.
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
        Ok(Self { runtime, endpoint, engine, connections })
    }

    /// Serves until `shutdown`, and then until the queries under way are answered.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { runtime, endpoint, engine, connections } = self;
        let running = runtime.handle().spawn(Acceptor { endpoint, engine, connections }.run(shutdown));
        // A panic is in the log, and ends this listener only.
        let _ = running.await;
    }
}

/// The listener without its threads.
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
                error!("a QUIC listener has lost its socket; restart the server");
                break;
            };
            // One count is ours.
            let is_crowded = Arc::strong_count(&handshakes) > MAX_UNVALIDATED || self.connections.is_full();
            if is_crowded && !incoming.remote_address_validated() {
                if let Err(error) = incoming.retry() {
                    debug!(%error, "address not proven");
                }
                continue;
            }
            let permit = self.connections.admit(incoming.remote_address().ip());
            let (engine, shutdown) = (self.engine.clone(), shutdown.child_token());
            let handshake = Arc::clone(&handshakes);
            tasks.spawn(async move {
                let peer = incoming.remote_address();
                if let Err(error) = serve_connection(incoming, handshake, &engine, &permit, shutdown).await {
                    debug!(%peer, %error, "connection ended");
                }
            });
        }
        tasks.close();
        // Who comes now can go elsewhere at once.
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
        // Who does not see it in time will time out.
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
        // The size of a reply is not to tell what was asked (RFC 9250 §5.4).
        .pad_to_mtu(true);
    transport
}

/// The whole life of one connection.
async fn serve_connection(
    incoming: Incoming,
    handshake: Arc<()>,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> Result<(), ConnectionError> {
    let connection = select! {
        () = shutdown.cancelled() => return Ok(()),
        () = permit.evicted() => return Ok(()),
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
            () = permit.evicted() => {
                connection.close(EXCESSIVE_LOAD, b"");
                return Ok(());
            }
            stream = timeout(IDLE_TIME, connection.accept_bi()) => stream,
        };
        match stream {
            Ok(stream) => {
                permit.used(Instant::now());
                serve(stream?);
            }
            Err(_) => break,
        }
    }
    // What had come before the shutdown; there are no more streams than these at a time.
    for _ in 0..STREAMS {
        let Ok(stream) = timeout(Duration::ZERO, connection.accept_bi()).await else { break };
        serve(stream?);
    }
    streams.close();
    if timeout(GRACE, streams.wait()).await.is_err() {
        debug!(peer = %connection.remote_address(), "queries under way given up");
    }
    connection.close(NO_ERROR, b"");
    Ok(())
}
