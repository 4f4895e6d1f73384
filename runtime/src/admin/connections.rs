//! HTTP server for untrusted clients: one request per connection, and a time limit on each step
//! that a client could draw out.
//!
//! **A new connection is always accepted**, so that probes are answered however many connections
//! other clients hold. Beyond [`MAX_CONNECTIONS`] an older connection is closed for it: the idlest
//! one of the client with the most connections, in the network with the most ([`ConnectionLimit`]).

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

use crate::limits::admin::{CONNECTION_TIME, HEAD_TIME, LAST_REQUESTS, MAX_CONNECTIONS, MAX_HEAD};
use crate::{ConnectionLimit, ConnectionSlot};

/// Pause after a failure to accept, whose usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Extension of a request: the address of its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves `router` on `listener` until `shutdown` is cancelled.
pub(super) async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    shutdown.run_until_cancelled(accept(&listener, router, &connections)).await;
    drop(listener);
    // Requests that do not finish in time are probes and scrapes, which no client needs any more.
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
                        () = slot.evicted() => tracing::debug!(%peer, "closed an idle connection for a new one"),
                        () = answer(stream, &slot, router) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin endpoints; retrying");
                // Frees a file descriptor, which is most likely what is missing.
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

/// Connection that marks its slot as used whenever bytes are read or written.
struct Tracked<'p> {
    stream: TcpStream,
    slot: &'p ConnectionSlot,
}

impl Tracked<'_> {
    fn touch<T>(&self, transferred: Poll<T>) -> Poll<T> {
        if transferred.is_ready() {
            self.slot.touch(Instant::now());
        }
        transferred
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.touch(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
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
