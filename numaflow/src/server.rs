//! HTTPS server of the webhook, for API servers and whoever else reaches the port: each step has a
//! time limit, and connections and memory are bounded.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
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
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::webhook::{HANDSHAKE_TIME, IDLE_TIME, MAX_BODY, MAX_CONNECTIONS, MEMORY, REQUEST_TIME};
use crate::webhook::{PATH, Refusal, Webhook};

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
    /// Permits for bytes of requests' bodies.
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

    async fn answer(&self, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let refuse = |status, text: &str| Err((status, text.to_owned()));
        if request.uri().path() != PATH || request.method() != Method::POST {
            return refuse(StatusCode::NOT_FOUND, "AdmissionReviews go to /vertices, by POST");
        }
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let Some(length) = length.filter(|length: &usize| *length <= MAX_BODY) else {
            return refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "an AdmissionReview has a Content-Length of at most 8 MiB",
            );
        };
        // The semaphore is never closed, so acquiring cannot fail.
        let _memory = self.memory.acquire_many(u32::try_from(length).unwrap_or(u32::MAX)).await.ok();
        let body = Limited::new(request.into_body(), MAX_BODY).collect();
        let body = match timeout(HANDSHAKE_TIME, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return refuse(StatusCode::BAD_REQUEST, "the body did not arrive as a whole"),
        };
        self.webhook.review(&body).await
    }
}
