//! DNS over HTTPS (RFC 8484) over HTTP/2 and HTTP/1.1, with hyper for HTTP.
//!
//! [`crate::net::tcp`] accepts the connections, under a limit of their own. A connection may hold a
//! handful of replies that its client does not read, and ends when no request has come for a while.
//! Incoming queries and waiting replies count toward the memory budget of all connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hickory_proto::op::Message;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::https::{
    IDLE_TIME, MAX_HEAD, PING, REPLIES, REQUEST_TIME, STREAM_WINDOW, STREAMS, WINDOW,
};
use crate::net::connections::{ConnectionPermit, MemoryAccount};
use crate::net::engine::{Handled, Worker};

/// ALPN protocols of HTTPS listeners, from which a TLS client chooses.
pub const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Path of DNS queries in HTTP requests, which all clients use by default.
const PATH: &str = "/dns-query";

/// Media type of DNS messages (RFC 8484 §6).
const MEDIA_TYPE: &str = "application/dns-message";

/// Limit on the bytes of a query: the largest length that DNS over TCP can state.
const MAX_QUERY: usize = 65_535;

/// Serves one connection, after a handshake in which the client has chosen HTTP/2 or not.
///
/// # Errors
///
/// If the connection breaks.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_http2: bool,
    peer: SocketAddr,
    worker: Worker,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (worker, replies) = (Arc::new(Mutex::new(worker)), Arc::new(Semaphore::new(REPLIES)));
    let (requested, requests) = watch::channel(());
    let service = service_fn(move |request| {
        requested.send_replace(());
        permit.place.touch(tokio::time::Instant::now());
        let (worker, replies, memory) = (Arc::clone(&worker), Arc::clone(&replies), permit.memory_account());
        async move { Ok::<_, Infallible>(answer(request, peer, &worker, replies, memory).await) }
    });
    let io = TokioIo::new(stream);
    if is_http2 {
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(MAX_HEAD);
        server.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
        server.max_send_buf_size(STREAM_WINDOW as usize);
        server.keep_alive_interval(PING).keep_alive_timeout(PING);
        let connection = pin!(server.serve_connection(io, service));
        drive(connection, http2::Connection::graceful_shutdown, requests, shutdown).await
    } else {
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(IDLE_TIME).max_buf_size(4 * MAX_HEAD as usize);
        let connection = pin!(server.serve_connection(io, service));
        drive(connection, http1::Connection::graceful_shutdown, requests, shutdown).await
    }
}

/// Drives a connection until it ends or no request has come for [`IDLE_TIME`]. Without that limit,
/// a client that answers pings but does not read its replies would keep its place forever.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    end_gracefully: impl FnOnce(Pin<&mut C>),
    mut requests: watch::Receiver<()>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let idle = async { while timeout(IDLE_TIME, requests.changed()).await.is_ok_and(|seen| seen.is_ok()) {} };
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        () = idle => {}
        () = shutdown.cancelled() => {}
    }
    end_gracefully(connection.as_mut());
    timeout(REQUEST_TIME, connection).await?.map_err(io::Error::other)
}

/// HTTP status of a rejected request, and the message in the response's body.
type HttpError = (StatusCode, &'static str);

/// A reply body. Its memory stays accounted for until hyper has sent all of it.
struct Reply {
    bytes: Vec<u8>,
    _memory: MemoryAccount,
    _slot: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Answers one HTTP request with a DNS reply, or with an HTTP error.
async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    worker: &Mutex<Worker>,
    replies: Arc<Semaphore>,
    memory: MemoryAccount,
) -> Response<Full<Bytes>> {
    let (head, mut body) = request.into_parts();
    let response = respond(&head, &mut body, (peer, worker), replies, memory).await.unwrap_or_else(refuse);
    if !body.is_end_stream() {
        tokio::spawn(timeout(REQUEST_TIME, drain(body)));
    }
    if head.method == Method::HEAD { without_body(response) } else { response }
}

/// Reads the rest of a request that was answered early. Clients such as curl ignore the response if
/// their stream is reset, or their connection closed, while they send.
async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Turns a response into that to HEAD. hyper drops the body by itself over HTTP/1.1 only.
fn without_body(response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.insert(CONTENT_LENGTH, length.into());
    }
    Response::from_parts(head, Full::default())
}

async fn respond(
    head: &Parts,
    body: &mut Incoming,
    (peer, worker): (SocketAddr, &Mutex<Worker>),
    replies: Arc<Semaphore>,
    mut memory: MemoryAccount,
) -> Result<Response<Full<Bytes>>, HttpError> {
    let begun = Instant::now();
    let received = async {
        let query = read(head, body, &mut memory).await?;
        // The semaphore is never closed, so acquiring cannot fail.
        Ok((query, replies.acquire_owned().await.ok()))
    };
    let (query, slot) = timeout(REQUEST_TIME, received)
        .await
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the request took too long"))??;
    let mut reply = Vec::with_capacity(512);
    let handled = {
        let mut worker = worker.lock();
        let handled = worker.answer(&query, peer, &mut reply);
        worker.record_duration(1, begun.elapsed());
        handled
    };
    if !matches!(handled, Handled::Reply) {
        return Err((StatusCode::BAD_REQUEST, "the message is not a DNS query"));
    }
    drop(query);
    reply.shrink_to_fit();
    if !memory.set(reply.len()) {
        return Err(NO_ROOM);
    }
    let cache_control = format!("max-age={}", max_age(&reply));
    let reply = Bytes::from_owner(Reply { bytes: reply, _memory: memory, _slot: slot });
    let mut response = Response::new(Full::from(reply));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, MEDIA_TYPE.parse().map_err(|_| INTERNAL)?);
    headers.insert(CACHE_CONTROL, cache_control.parse().map_err(|_| INTERNAL)?);
    Ok(response)
}

const INTERNAL: HttpError = (StatusCode::INTERNAL_SERVER_ERROR, "a header could not be written");

const NO_ROOM: HttpError =
    (StatusCode::SERVICE_UNAVAILABLE, "the server's memory for clients is used up; try again");

/// Reads the query of a request by GET or POST (RFC 8484 §4.1).
async fn read(head: &Parts, body: &mut Incoming, memory: &mut MemoryAccount) -> Result<Vec<u8>, HttpError> {
    if head.uri.path() != PATH {
        return Err((StatusCode::NOT_FOUND, "queries go to /dns-query"));
    }
    match head.method {
        Method::GET | Method::HEAD => {
            let parameters = head.uri.query().unwrap_or_default();
            let dns = parameters
                .split('&')
                .find_map(|parameter| parameter.strip_prefix("dns="))
                .ok_or((StatusCode::BAD_REQUEST, "the URL has no parameter 'dns'"))?;
            URL_SAFE_NO_PAD.decode(dns).map_err(|_| {
                (StatusCode::BAD_REQUEST, "the parameter 'dns' is not base64url without padding")
            })
        }
        Method::POST => {
            if head.headers.get(CONTENT_TYPE).is_none_or(|kind| !is_dns_message(kind)) {
                return Err((
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "the media type is not application/dns-message",
                ));
            }
            receive(body, memory).await
        }
        _ => Err((StatusCode::METHOD_NOT_ALLOWED, "the method is neither GET nor POST")),
    }
}

/// Tells whether `kind` is the media type of DNS messages, ignoring case and parameters (RFC 9110
/// §8.3.1).
fn is_dns_message(kind: &HeaderValue) -> bool {
    let kind = kind.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(MEDIA_TYPE.as_bytes())
}

/// Reads the body of a request, and accounts for its memory as it grows.
async fn receive(body: &mut Incoming, memory: &mut MemoryAccount) -> Result<Vec<u8>, HttpError> {
    const TOO_LARGE: HttpError = (StatusCode::PAYLOAD_TOO_LARGE, "a DNS message has at most 65535 bytes");
    // Rejects an announced length early, so that the client need not send the body.
    if body.size_hint().lower() > MAX_QUERY as u64 {
        return Err(TOO_LARGE);
    }
    let mut query = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the request ended within its body"))?;
        // Frames other than data are trailers, which are ignored.
        let Ok(data) = frame.into_data() else { continue };
        if query.len() + data.len() > MAX_QUERY {
            return Err(TOO_LARGE);
        }
        query.extend_from_slice(&data);
        if !memory.set(query.capacity()) {
            return Err(NO_ROOM);
        }
    }
    Ok(query)
}

fn refuse((status, reason): HttpError) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{reason}\n")));
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
    }
    response
}

/// Returns the seconds for which HTTP caches may keep a reply: the lowest TTL of its records (RFC
/// 8484 §5.1).
fn max_age(reply: &[u8]) -> u32 {
    let Ok(message) = Message::from_vec(reply) else { return 0 };
    message.all_sections().map(|record| record.ttl).min().unwrap_or(0)
}
