//! HTTP server for untrusted clients: one request per connection, and a time limit on each step
//! that a client could draw out.
//!
//! **A new connection is always accepted**, so that probes are answered however many connections
//! other clients hold. Beyond [`MAX_CONNECTIONS`] an older connection is closed for it: the idlest
//! one of the client with the most connections, in the network with the most ([`ConnectionLimit`]).

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::time::{Instant, timeout};
use tokio_util::io::{InspectReader, InspectWriter};
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
    // The slot counts as used whenever bytes are read or written.
    let touch = |_: &[u8]| slot.touch(Instant::now());
    let stream = TokioIo::new(InspectReader::new(InspectWriter::new(stream, touch), touch));
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
