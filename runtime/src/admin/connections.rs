//! HTTP for strangers: one request per connection, limits on everything that a client can drag out.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at the same time. More of them wait to be accepted.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Within this time a client has to have sent the head of its request.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// After this time a connection is closed, wherever it is. It is ample for a scrape over a slow line.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// How long requests may still take once the process shuts down.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// The pause after a failure to accept, which is a lack of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled.
pub(super) async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    shutdown.run_until_cancelled(accept(&listener, router, &connections)).await;
    drop(listener);
    // The unfinished ones are probes and scrapes that come too late to be of use.
    let _ = crate::drain::finish(&connections, LAST_REQUESTS).await;
}

async fn accept(listener: &TcpListener, router: Router, connections: &TaskTracker) {
    let places = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    answer(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the admin endpoints");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin endpoints failed"),
        Err(_) => tracing::debug!("a connection to the admin endpoints took too long"),
    }
}
