//! HTTP for strangers: one request per connection, limits on everything that a client can drag out.
//!
//! **A newcomer is always let in**, so that probes are answered however many connections others hold: beyond
//! [`MAX_CONNECTIONS`] another goes for it, of the network and the client with the most connections the one on which
//! nothing has moved for longest ([`ConnectionLimit`]).

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{ConnectionLimit, ConnectionSlot};

/// Connections at the same time.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Within this time a client has to have sent the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// Octets of a request's head, and of what is read at a time.
const MAX_HEAD: usize = 16 << 10;

/// After this time a connection is closed, wherever it is. It is ample for a scrape over a slow line.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// How long requests may still take once the process shuts down.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// The pause after a failure to accept, which is a lack of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Address of the client that asks, an extension of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves until `shutdown` is cancelled.
pub(super) async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    shutdown.run_until_cancelled(accept(&listener, router, &connections)).await;
    drop(listener);
    // The unfinished ones are probes and scrapes that come too late to be of use.
    let _ = crate::drain::finish(&connections, LAST_REQUESTS).await;
}

async fn accept(listener: &TcpListener, router: Router, connections: &TaskTracker) {
    let limit = ConnectionLimit::new(MAX_CONNECTIONS, Counter::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let slot = limit.admit(peer.ip());
                let router = router.clone().layer(Extension(Peer(peer)));
                connections.spawn(async move {
                    select! {
                        () = slot.evicted() => tracing::debug!(%peer, "a connection ended for another"),
                        () = answer(stream, &slot, router) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin endpoints");
                limit.evict();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, slot: &ConnectionSlot, router: Router) {
    let stream = TokioIo::new(Tracked { stream, slot });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(stream, TowerToHyperService::new(router));
    match timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin endpoints failed"),
        Err(_) => tracing::debug!("a connection to the admin endpoints took too long"),
    }
}

/// A connection that is in use whenever something moves.
struct Tracked<'p> {
    stream: TcpStream,
    slot: &'p ConnectionSlot,
}

impl Tracked<'_> {
    fn touch<T>(&self, moved: Poll<T>) -> Poll<T> {
        if moved.is_ready() {
            self.slot.touch(Instant::now());
        }
        moved
    }
}

impl AsyncRead for Tracked<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.touch(read)
    }
}

impl AsyncWrite for Tracked<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, octets);
        self.touch(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, octets);
        self.touch(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
