//! DNS over streams: TCP (RFC 7766) and, behind a handshake, TLS (RFC 7858).
//!
//! This file accepts connections; what happens on one is told in `tcp/connection.rs`.
//!
//! All stream listeners share one limit on connections. Beyond it a new one is let in and another goes, and so
//! it is when the system has no more descriptors. A TLS connection counts from the beginning of its handshake.
//! On shutdown nothing more is accepted, and [`StreamListener::run`] returns when the last connection has ended.

mod buffers;
mod connection;
mod connections;
mod handshakes;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

pub use connection::serve;
use connections::GUARANTEED;
pub(crate) use connections::MemoryAccount;
pub use connections::{ConnectionPermit, Connections};
use handshakes::Handshakes;

use crate::answer::peer::{Peer, Proto};
use crate::net::engine::Engine;
use crate::net::https;
use crate::net::tls::Certificates;

/// Pause after a failure to accept that is not about a single connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often failures to accept are logged: what is wrong with the host stays wrong for a while.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Time for a connection to end, so that its descriptor is free for the one that waits.
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// The ALPN protocol of DNS over TLS, as registered with IANA.
const ALPN: &[u8] = b"dot";

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
    /// This one behind a TLS handshake.
    Secured(TlsAcceptor, Proto, Arc<Handshakes>),
}

impl Protocol {
    fn secured(acceptor: TlsAcceptor, proto: Proto) -> io::Result<Self> {
        Ok(Self::Secured(acceptor, proto, Arc::new(Handshakes::new()?)))
    }
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
    /// If the runtime cannot register the listener, or there are no more threads.
    pub fn tls(
        listener: std::net::TcpListener,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(certificates.server_config(&[ALPN]));
        Self::new(listener, Protocol::secured(acceptor, Proto::Tls)?, engine, connections)
    }

    /// DNS over HTTPS; otherwise as [`Self::tcp`].
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener, or there are no more threads.
    pub fn https(
        listener: std::net::TcpListener,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(certificates.server_config(&https::ALPN));
        Self::new(listener, Protocol::secured(acceptor, Proto::Https)?, engine, connections)
    }

    /// Serves until `shutdown`, and then until all that its connections have read is answered.
    pub async fn run(self, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut warned_at: Option<Instant> = None;
        loop {
            let accepted = select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let permit = self.connections.admit(peer.ip());
                    // A token of its own: waiting for it takes a lock.
                    tasks.spawn(self.serve_connection(stream, peer.into(), permit, shutdown.child_token()));
                }
                Err(error) if is_about_one_connection(&error) => {
                    debug!(%error, "connection lost before it began")
                }
                Err(error) => {
                    if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                        warned_at = Some(Instant::now());
                        warn!(%error, "cannot accept connections; trying on");
                    }
                    // Not for ENFILE: what the host lacks may be others'.
                    let is_out_of_files = error.raw_os_error() == Some(libc::EMFILE);
                    let pause = if is_out_of_files && self.connections.evict() {
                        EVICTION_PAUSE
                    } else {
                        ACCEPT_PAUSE
                    };
                    sleep(pause).await;
                }
            }
        }
        drop(self);
        tasks.close();
        tasks.wait().await;
    }

    /// The whole life of one connection.
    fn serve_connection(
        &self,
        stream: TcpStream,
        peer: Peer,
        permit: ConnectionPermit,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (engine, protocol) = (self.engine.clone(), self.protocol.clone());
        async move {
            // Replies are written whole; waiting for more of them only delays.
            let _ = stream.set_nodelay(true);
            // An evicted connection ends at once: it is idle, or one of too many of its client.
            select! {
                biased;
                () = permit.evicted() => debug!(%peer, "connection ended for another"),
                ended = serve_as(protocol, stream, peer, &engine, &permit, shutdown) => {
                    if let Err(error) = ended {
                        debug!(%peer, %error, "connection broken off");
                    }
                }
            }
        }
    }
}

async fn serve_as(
    protocol: Protocol,
    stream: TcpStream,
    peer: Peer,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    match protocol {
        Protocol::Tcp => serve(stream, peer, engine.worker(Proto::Tcp), permit, shutdown).await,
        // On the heap: a plain connection should not have to hold room for what only these need.
        Protocol::Secured(acceptor, proto, handshakes) => {
            let handshake = async move { handshakes.perform(&acceptor, stream, peer.ip).await };
            Box::pin(serve_secured(handshake, proto, peer, engine, permit, shutdown)).await
        }
    }
}

async fn serve_secured(
    handshake: impl Future<Output = io::Result<TlsStream<TcpStream>>>,
    proto: Proto,
    peer: Peer,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut stream = select! {
        () = shutdown.cancelled() => return Ok(()),
        stream = handshake => stream?,
    };
    // What it takes and has not sent, nobody counts.
    stream.get_mut().1.set_buffer_limit(Some(GUARANTEED));
    match proto {
        Proto::Https => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Box::pin(https::serve(stream, is_http2, peer, engine.worker(proto), permit, shutdown)).await
        }
        _ => serve(stream, peer, engine.worker(proto), permit, shutdown).await,
    }
}

/// Whether a failure to accept is that of the connection, so that the next may do well (accept(2)).
fn is_about_one_connection(error: &io::Error) -> bool {
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
