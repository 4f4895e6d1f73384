//! HTTPS server of the webhook, for API servers and whoever else reaches the port: each step has a
//! time limit, and connections and memory are bounded.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use multinet_runtime::{ConnectionLimit, ConnectionSlot, TerminalSafe, drain, ipv4_fallback};
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::ResolvesServerCert;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::webhook::{
    HANDSHAKE_TIME, IDLE_TIME, MAX_BODY, MAX_CONNECTIONS, MEMORY, REQUEST_TIME, SMALL_BODY,
};
use crate::webhook::{HttpError, PATH, Webhook};

/// Pause after a failure to accept, whose usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the address of the flag `--listen`; 0.0.0.0 instead of `[::]` on a host without IPv6.
///
/// # Errors
///
/// The error of the operating system.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => match ipv4_fallback(address, &error) {
            Some(instead) => TcpListener::bind(instead).await,
            None => Err(error),
        },
    }
}

/// HTTPS server of the webhook.
#[derive(Clone)]
pub struct Server {
    webhook: Arc<Webhook>,
    tls: TlsAcceptor,
    /// Permits for bytes of large bodies.
    memory: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Server {
    /// Creates a server that presents the certificate of `certificate`.
    pub fn new(
        webhook: Webhook,
        certificate: Arc<dyn ResolvesServerCert>,
        shutdown: CancellationToken,
    ) -> Self {
        #[expect(clippy::expect_used, reason = "fails only if a provider has no suite for a version")]
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        let tls = TlsAcceptor::from(Arc::new(config));
        Self { webhook: Arc::new(webhook), tls, memory: Arc::new(Semaphore::new(MEMORY)), shutdown }
    }

    /// Serves until the shutdown, then finishes the requests under way.
    pub async fn serve(self, listener: TcpListener) {
        let connections = TaskTracker::new();
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(self.accept(&listener, &connections)).await;
        drop(listener);
        if let Err(unfinished) = drain::finish(&connections, REQUEST_TIME).await {
            tracing::debug!("the webhook's connections: {unfinished}");
        }
    }

    async fn accept(&self, listener: &TcpListener, connections: &TaskTracker) {
        let limit = ConnectionLimit::new(MAX_CONNECTIONS, Counter::default());
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let (server, slot) = (self.clone(), limit.admit(peer.ip()));
                    connections.spawn(async move {
                        tokio::select! {
                            () = slot.evicted() => tracing::debug!(%peer, "closed a connection for a new one"),
                            ended = server.connection(stream, &slot) => if let Err(error) = ended {
                                tracing::debug!(%peer, %error, "a connection to the webhook failed");
                            }
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the webhook; retrying");
                    // Frees a file descriptor, which is most likely what is missing.
                    limit.evict();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(&self, stream: TcpStream, slot: &ConnectionSlot) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let stream = timeout(HANDSHAKE_TIME, self.tls.accept(stream)).await??;
        let service = service_fn(|request| {
            slot.touch(Instant::now());
            async move { Ok::<_, Infallible>(self.respond(request).await) }
        });
        // Between two requests, the wait for a head is the connection's idle time.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIME)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = self.shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.map_err(io::Error::other)
    }

    /// Answers a request, or says why not.
    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let answer = timeout(REQUEST_TIME, self.answer(request)).await;
        let late = |_| Err((StatusCode::REQUEST_TIMEOUT, "the request took too long".to_owned()));
        let (status, kind, body) = match answer.unwrap_or_else(late) {
            Ok(body) => (StatusCode::OK, "application/json", body),
            Err((status, text)) => {
                tracing::debug!("the webhook refuses a request: {status}: {}", TerminalSafe(&text));
                (status, "text/plain; charset=utf-8", text.into_bytes())
            }
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Vec<u8>, HttpError> {
        let refuse = |status, text: &str| Err((status, text.to_owned()));
        if request.uri().path() != PATH || request.method() != Method::POST {
            return refuse(StatusCode::NOT_FOUND, "AdmissionReviews go to /vertices, by POST");
        }
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_none_or(|length: usize| length > MAX_BODY) {
            return refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "an AdmissionReview has a Content-Length of at most 8 MiB",
            );
        }
        let received = timeout(HANDSHAKE_TIME, receive(request.into_body(), &self.memory)).await;
        let Ok(Some((body, _memory))) = received else {
            return refuse(StatusCode::BAD_REQUEST, "the body did not arrive as a whole in time");
        };
        self.webhook.review(&body).await
    }
}

/// Receives a body; `None` if it breaks off, or is too large. The permits are for its bytes beyond
/// those of a small body, and taken as these arrive: a client that sends nothing delays no other.
async fn receive<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    memory: &Semaphore,
) -> Option<(Vec<u8>, Option<SemaphorePermit<'_>>)> {
    let (mut received, mut permits) = (Vec::new(), None::<SemaphorePermit<'_>>);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        received.extend_from_slice(&data);
        if received.len() > MAX_BODY {
            return None;
        }
        let held = permits.as_ref().map_or(0, SemaphorePermit::num_permits);
        let missing = received.len().saturating_sub(SMALL_BODY + held);
        if missing > 0 {
            let more = memory.acquire_many(u32::try_from(missing).ok()?).await.ok()?;
            match &mut permits {
                Some(permits) => permits.merge(more),
                None => permits = Some(more),
            }
        }
    }
    Some((received, permits))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Returns a body that arrives as a whole, or breaks off before its end.
    fn body(size: usize, ends: bool) -> impl Body<Data = Bytes> + Unpin {
        let data = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; size])))]);
        let rest = if ends { stream::empty().left_stream() } else { stream::pending().right_stream() };
        StreamBody::new(data.chain(rest))
    }

    #[tokio::test]
    async fn a_body_that_has_not_arrived_holds_no_memory() {
        let memory = Semaphore::new(MEMORY);
        let mut stalled: Vec<_> = (0..12).map(|_| Box::pin(receive(body(1, false), &memory))).collect();
        for receiving in &mut stalled {
            assert!(receiving.now_or_never().is_none());
        }
        assert_eq!(memory.available_permits(), MEMORY);
        let (received, _permits) = receive(body(MAX_BODY, true), &memory).await.unwrap();
        assert_eq!((received.len(), memory.available_permits()), (MAX_BODY, MEMORY - MAX_BODY + SMALL_BODY));
        assert!(receive(body(MAX_BODY + 1, true), &memory).await.is_none());
    }

    #[tokio::test]
    async fn a_small_body_never_waits_for_large_ones() {
        let memory = Semaphore::new(0);
        let (received, _permits) = receive(body(SMALL_BODY, true), &memory).await.unwrap();
        assert_eq!(received.len(), SMALL_BODY);
        let mut large = Box::pin(receive(body(SMALL_BODY + 1, true), &memory));
        assert!((&mut large).now_or_never().is_none());
        memory.add_permits(1);
        assert!(large.await.is_some());
    }
}
