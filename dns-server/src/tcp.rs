//! DNS over streams: TCP (RFC 7766) and, behind a handshake, TLS (RFC 7858).
//!
//! This file accepts connections; what happens on one is told in `tcp/connection.rs`.
//!
//! All stream listeners share one limit on connections. Beyond it a new one is closed at once: its client
//! then knows where it stands and can go elsewhere, which it could not while waiting in a backlog. A TLS
//! connection counts from the beginning of its handshake. On shutdown nothing more is accepted, and
//! [`StreamListener::run`] returns when the last connection has ended.

mod buffers;
mod connection;

use std::future::Future;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

pub use connection::serve;

use crate::engine::{Engine, Proto};
use crate::https;
use crate::tls::Certificates;

/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Pause after a failure to accept that is not about a single connection, such as no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The ALPN protocol of DNS over TLS, as registered with IANA.
const ALPN: &[u8] = b"dot";

/// The limit on connections that all stream listeners share.
#[derive(Debug, Clone)]
pub struct Connections {
    free: Arc<Semaphore>,
    refused: Counter,
}

impl Connections {
    /// At most `most` at one time; those that are closed for that are counted in `refused`.
    pub fn new(most: usize, refused: Counter) -> Self {
        Self { free: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), refused }
    }

    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok();
        if permit.is_none() {
            self.refused.inc();
        }
        permit
    }
}

/// Accepts connections at one address.
pub struct StreamListener {
    listener: TcpListener,
    protocol: Protocol,
    engine: Engine,
    connections: Connections,
}

/// What is spoken on a connection.
#[derive(Clone)]
enum Protocol {
    Tcp,
    Tls(TlsAcceptor),
    Https(TlsAcceptor),
}

impl StreamListener {
    /// DNS over TCP. To be called within a tokio runtime, with a listener that does not block.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener.
    pub fn tcp(
        listener: std::net::TcpListener,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        Self::new(listener, Protocol::Tcp, engine, connections)
    }

    fn new(
        listener: std::net::TcpListener,
        protocol: Protocol,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)?, protocol, engine, connections })
    }

    /// DNS over TLS; otherwise as [`Self::tcp`].
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener.
    pub fn tls(
        listener: std::net::TcpListener,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(certificates.server_config(&[ALPN]));
        Self::new(listener, Protocol::Tls(acceptor), engine, connections)
    }

    /// DNS over HTTPS; otherwise as [`Self::tcp`].
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener.
    pub fn https(
        listener: std::net::TcpListener,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(certificates.server_config(&https::ALPN));
        Self::new(listener, Protocol::Https(acceptor), engine, connections)
    }

    /// Serves until `shutdown`, and then until all that its connections have read is answered.
    pub async fn run(self, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut is_failing = false;
        loop {
            let accepted = select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    is_failing = false;
                    if let Some(permit) = self.connections.admit() {
                        // A token of its own: waiting for it takes a lock.
                        tasks.spawn(self.converse(stream, peer.ip(), permit, shutdown.child_token()));
                    }
                }
                Err(error) if is_of_connection(&error) => debug!(%error, "connection lost before it began"),
                Err(error) => {
                    if !mem::replace(&mut is_failing, true) {
                        warn!(%error, "cannot accept connections; trying on");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self);
        tasks.close();
        tasks.wait().await;
    }

    /// The whole life of one connection.
    fn converse(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        permit: OwnedSemaphorePermit,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (engine, protocol) = (self.engine.clone(), self.protocol.clone());
        async move {
            // Replies are written whole; waiting for more of them only delays.
            let _ = stream.set_nodelay(true);
            if let Err(error) = serve_as(protocol, stream, peer, &engine, shutdown).await {
                debug!(%peer, %error, "connection broken off");
            }
            drop(permit);
        }
    }
}

async fn serve_as(
    protocol: Protocol,
    stream: TcpStream,
    peer: IpAddr,
    engine: &Engine,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (acceptor, proto) = match protocol {
        Protocol::Tcp => return serve(stream, peer, engine.worker(Proto::Tcp), shutdown).await,
        Protocol::Tls(acceptor) => (acceptor, Proto::Tls),
        Protocol::Https(acceptor) => (acceptor, Proto::Https),
    };
    let stream = select! {
        () = shutdown.cancelled() => return Ok(()),
        handshake = timeout(HANDSHAKE_TIME, acceptor.accept(stream)) => handshake??,
    };
    match proto {
        Proto::Https => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            https::serve(stream, is_http2, peer, engine.worker(proto), shutdown).await
        }
        _ => serve(stream, peer, engine.worker(proto), shutdown).await,
    }
}

/// Whether a failure to accept is that of the connection, so that the next may do well (accept(2)).
fn is_of_connection(error: &io::Error) -> bool {
    const CODES: [i32; 11] = [
        libc::ECONNABORTED,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EINTR,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EPROTO,
    ];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}
