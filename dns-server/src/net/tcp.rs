//! DNS over streams: TCP (RFC 7766), and TLS (RFC 7858) behind a handshake.
//!
//! This file accepts connections. `tcp/connection.rs` serves each of them.
//!
//! All stream listeners share one limit on connections. At the limit, and when the process has no
//! file descriptors left, a new connection is admitted and another one is evicted. A TLS connection
//! counts from the beginning of its handshake. After a shutdown no connection is accepted, and
//! [`StreamListener::run`] returns when the last connection has ended.

mod buffers;
mod connection;
mod handshakes;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
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
use handshakes::Handshakes;

use crate::answer::proto::Proto;
use crate::limits::tcp::{ACCEPT_PAUSE, GUARANTEED, WARN_INTERVAL};
use crate::net::connections::{ConnectionPermit, Connections};
use crate::net::engine::Engine;
use crate::net::https;
use crate::net::tls::Certificates;

/// Pause after an eviction, so that the connection can end and free its file descriptor.
const EVICTION_PAUSE: Duration = Duration::from_millis(5);

/// ALPN protocol of DNS over TLS, as registered with IANA (RFC 7858).
const ALPN: &[u8] = b"dot";

/// Listener for DNS over TCP, TLS or HTTPS at one address.
pub struct StreamListener {
    listener: TcpListener,
    protocol: Protocol,
    engine: Engine,
    connections: Connections,
}

/// Protocol that a [`StreamListener`] speaks on its connections.
#[derive(Clone)]
enum Protocol {
    Tcp,
    /// DNS over TLS or HTTPS, behind a TLS handshake.
    Secured(TlsAcceptor, Proto, Arc<Handshakes>),
}

impl StreamListener {
    /// Returns a listener for DNS over TCP. Requires a tokio runtime, and a `listener` that is
    /// nonblocking.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener.
    pub fn tcp(
        listener: std::net::TcpListener,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)?, protocol: Protocol::Tcp, engine, connections })
    }

    /// Returns a listener for DNS over TLS or HTTPS, otherwise like [`Self::tcp`].
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the listener, or the system has no more threads.
    pub fn secured(
        listener: std::net::TcpListener,
        proto: Proto,
        certificates: &Certificates,
        engine: Engine,
        connections: Connections,
    ) -> io::Result<Self> {
        let alpn = if proto == Proto::Https { &https::ALPN[..] } else { &[ALPN] };
        let acceptor = TlsAcceptor::from(certificates.server_config(alpn));
        let protocol = Protocol::Secured(acceptor, proto, Arc::new(Handshakes::new()?));
        Ok(Self { protocol, ..Self::tcp(listener, engine, connections)? })
    }

    /// Serves until `shutdown`, and then until every query that was read has been answered.
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
                    // A child token per connection: waiting on the shared one would contend for its
                    // lock.
                    tasks.spawn(self.serve_connection(stream, peer, permit, shutdown.child_token()));
                }
                Err(error) if is_about_one_connection(&error) => {
                    debug!(%error, "connection lost before it was accepted");
                }
                Err(error) => {
                    if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                        warned_at = Some(Instant::now());
                        warn!(%error, "cannot accept connections; retrying");
                    }
                    // Not for ENFILE: other processes may hold the files that the host lacks.
                    let is_out_of_files = error.raw_os_error() == Some(libc::EMFILE);
                    let pause = if is_out_of_files && self.connections.places.evict() {
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

    /// Returns the task that serves one accepted connection until it ends or is evicted.
    fn serve_connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (engine, protocol) = (self.engine.clone(), self.protocol.clone());
        async move {
            // Replies are written whole, so Nagle's algorithm would only delay them.
            let _ = stream.set_nodelay(true);
            // An evicted connection ends at once: it is idle, or its client has the most
            // connections.
            select! {
                biased;
                () = permit.place.evicted() => debug!(peer = %peer.ip(), "connection evicted in favor of another"),
                ended = serve_as(protocol, stream, peer, &engine, &permit, shutdown) => {
                    if let Err(error) = ended {
                        debug!(peer = %peer.ip(), %error, "connection failed");
                    }
                }
            }
        }
    }
}

async fn serve_as(
    protocol: Protocol,
    stream: TcpStream,
    peer: SocketAddr,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    match protocol {
        Protocol::Tcp => serve(stream, peer, engine.worker(Proto::Tcp), permit, shutdown).await,
        // Boxed, so that a plain TCP connection does not reserve memory for the state of TLS and
        // HTTPS.
        Protocol::Secured(acceptor, proto, handshakes) => {
            let handshake = async move { handshakes.perform(&acceptor, stream, peer.ip()).await };
            Box::pin(serve_secured(handshake, proto, peer, engine, permit, shutdown)).await
        }
    }
}

async fn serve_secured(
    handshake: impl Future<Output = io::Result<TlsStream<TcpStream>>>,
    proto: Proto,
    peer: SocketAddr,
    engine: &Engine,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut stream = select! {
        () = shutdown.cancelled() => return Ok(()),
        stream = handshake => stream?,
    };
    // The TLS session's buffer is not in any memory account, so it must stay small.
    stream.get_mut().1.set_buffer_limit(Some(GUARANTEED));
    match proto {
        Proto::Https => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Box::pin(https::serve(stream, is_http2, peer, engine.worker(proto), permit, shutdown)).await
        }
        _ => serve(stream, peer, engine.worker(proto), permit, shutdown).await,
    }
}

/// Tells whether an accept error concerns only that connection, so that accepting may go on at once
/// (accept(2)).
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
