//! DNS over HTTPS with HTTP/2 in memory, without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use multinet_dns::answer::proto::Proto;
use multinet_dns::net::connections::Connections;
use multinet_dns::net::https;
use multinet_dns::ops::metrics::ConnectionMetrics;
use tokio::io::duplex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::{A, BIG, BIG_ADDRESSES, PEER, SMALL, answers, engine, query};

/// A body whose rest never arrives.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |octets| Poll::Ready(Some(Ok(Frame::data(octets)))))
    }
}

/// A body of `count` chunks. The sender reports when all of them were read.
struct Chunks(usize, Option<oneshot::Sender<()>>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(left) = self.0.checked_sub(1) {
            self.0 = left;
            return Poll::Ready(Some(Ok(Frame::data(vec![0; 16 << 10].into()))));
        }
        if let Some(taken) = self.1.take() {
            taken.send(()).unwrap();
        }
        Poll::Ready(None)
    }
}

/// Connects a client with a receive window of this many bytes per stream.
async fn connect<B>(connections: &Connections, window: u32) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let (client, server) = duplex(1 << 16);
    let (worker, permit) = (engine().worker(Proto::Https), connections.admit(PEER));
    tokio::spawn(async move {
        https::serve(server, true, SocketAddr::new(PEER, 53), worker, &permit, CancellationToken::new()).await
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).initial_stream_window_size(window);
    let (requests, connection) = builder.handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn post<B>(requests: &mut SendRequest<B>, body: B) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    post_as(requests, "application/dns-message", body).await
}

async fn post_as<B>(requests: &mut SendRequest<B>, media_type: &str, body: B) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let request = Request::post("https://dns.test/dns-query").header("content-type", media_type);
    requests.ready().await.unwrap();
    requests.send_request(request.body(body).unwrap()).await.unwrap()
}

/// Returns a query padded to this many bytes.
fn padded(name: &str, octets: usize) -> Full<Bytes> {
    let mut packet = query(0, name, A);
    packet.resize(packet.len().max(octets), 0);
    packet.into()
}

/// Sends this many requests on each of `count` connections. Returns the status codes that came
/// after a while, and the requests.
async fn post_many<B>(
    connections: &Connections,
    (count, window): (usize, u32),
    body: impl Fn() -> B,
) -> (Vec<StatusCode>, JoinSet<Response<Incoming>>)
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let (codes, mut posting) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for _ in 0..count {
        let requests = connect(connections, window).await;
        for _ in 0..10 {
            let (mut requests, body, codes) = (requests.clone(), body(), Arc::clone(&codes));
            posting.spawn(async move {
                let response = post(&mut requests, body).await;
                codes.lock().unwrap().push(response.status());
                response
            });
        }
    }
    sleep(Duration::from_millis(100)).await;
    let codes = codes.lock().unwrap().clone();
    (codes, posting)
}

/// Returns the status codes for a small query, a long query, and a query with a large reply, on a
/// new connection.
async fn ask(connections: &Connections) -> [StatusCode; 3] {
    let mut requests = connect(connections, 1 << 16).await;
    let small = post(&mut requests, padded(SMALL, 0)).await.status();
    let long = post(&mut requests, padded(SMALL, 65_535)).await.status();
    let much = post(&mut requests, padded(BIG, 0)).await;
    let status = much.status();
    let reply = much.into_body().collect().await.unwrap().to_bytes();
    assert!(status != StatusCode::OK || u32::from(answers(&reply)) == BIG_ADDRESSES);
    [small, long, status]
}

#[tokio::test]
async fn a_query_in_the_url_is_answered() {
    let connections = Connections::new(100, ConnectionMetrics::default());
    let mut requests = connect(&connections, 1 << 16).await;
    let dns = URL_SAFE_NO_PAD.encode(query(0, SMALL, A));
    for (parameters, expected) in [
        (format!("?dns={dns}"), StatusCode::OK),
        (format!("?x=y&dns={dns}"), StatusCode::OK),
        (format!("?dns={dns}="), StatusCode::BAD_REQUEST),
        ("?x=y".to_owned(), StatusCode::BAD_REQUEST),
        (String::new(), StatusCode::BAD_REQUEST),
    ] {
        let request = Request::get(format!("https://dns.test/dns-query{parameters}"));
        requests.ready().await.unwrap();
        let response = requests.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected, "{parameters:?}");
    }
}

#[tokio::test]
async fn a_head_request_gets_the_headers_of_get_without_a_body() {
    let connections = Connections::new(100, ConnectionMetrics::default());
    let mut requests = connect(&connections, 1 << 16).await;
    let dns = URL_SAFE_NO_PAD.encode(query(0, SMALL, A));
    for path in [format!("/dns-query?dns={dns}"), "/other".to_owned()] {
        let mut ask = async |method| {
            let request = Request::builder().method(method).uri(format!("https://dns.test{path}"));
            requests.ready().await.unwrap();
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let response = requests.send_request(request).await.unwrap();
            let (mut head, body) = response.into_parts();
            head.headers.remove("date");
            (head.status, head.headers, body.collect().await.unwrap().to_bytes())
        };
        let (get, head) = (ask(Method::GET).await, ask(Method::HEAD).await);
        assert_eq!((&head.0, &head.1), (&get.0, &get.1));
        assert_eq!(head.1["content-length"], get.2.len().to_string());
        assert!(head.2.is_empty() && !get.2.is_empty());
    }
}

/// curl reports an error if its stream is reset while it sends, whatever the response is.
#[tokio::test]
async fn a_refused_request_is_read_to_its_end() {
    let connections = Connections::new(100, ConnectionMetrics::default());
    let mut requests = connect(&connections, 1 << 16).await;
    for (media_type, expected) in [
        ("text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("application/dns-message", StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let (all, taken) = oneshot::channel();
        let response = post_as(&mut requests, media_type, Chunks(100, Some(all))).await;
        assert_eq!(response.status(), expected);
        taken.await.unwrap();
        assert!(!response.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_concurrent_requests_are_answered() {
    let connections = Connections::new(100, ConnectionMetrics::default());
    let mut requests = connect(&connections, 1 << 16).await;
    let begun = Instant::now();
    let mut under_way = Vec::new();
    for _ in 0..100 {
        // Refused, but the rest of the request may still arrive.
        under_way.push(post_as(&mut requests, "text/plain", Half(Some(vec![0; 9].into()))).await);
    }
    // If requests waited for each other, this would take as long as a request may take.
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_media_type_with_capitals_and_parameters_is_accepted() {
    let connections = Connections::new(100, ConnectionMetrics::default());
    let mut requests = connect(&connections, 1 << 16).await;
    for (media_type, expected) in [
        ("application/dns-message", StatusCode::OK),
        ("Application/DNS-Message", StatusCode::OK),
        ("application/dns-message; charset=utf-8", StatusCode::OK),
        ("application/dns-message ;x=y;z", StatusCode::OK),
        ("application/dns-messages", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("text/plain; application/dns-message", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let response = post_as(&mut requests, media_type, padded(SMALL, 0)).await;
        assert_eq!(response.status(), expected, "{media_type:?}");
    }
}

const FULL: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

#[tokio::test(start_paused = true)]
async fn incomplete_requests_of_all_connections_are_bounded() {
    let connections = Connections::with_memory_limit(100, 1 << 20, ConnectionMetrics::default());
    let half = || Half(Some(vec![0; 40_000].into()));
    let (codes, posting) = post_many(&connections, (4, 1 << 16), half).await;
    assert!((24..=36).contains(&codes.len()) && codes.iter().all(|&code| code == FULL), "{codes:?}");
    // A small query is not affected.
    assert_eq!(ask(&connections).await[0], StatusCode::OK);
    // The memory is free again when the requests have ended.
    sleep(Duration::from_secs(11)).await;
    assert_eq!(ask(&connections).await, [StatusCode::OK; 3]);
    drop(posting);
}

#[tokio::test(start_paused = true)]
async fn unread_replies_of_all_connections_are_bounded() {
    let connections = Connections::with_memory_limit(100, 1 << 20, ConnectionMetrics::default());
    // The client reads one byte of each reply.
    let (codes, posting) = post_many(&connections, (4, 1), || padded(BIG, 0)).await;
    let refused = codes.iter().filter(|&&code| code == FULL).count();
    assert!(codes.len() == 40 && (22..=26).contains(&refused), "{codes:?}");
    assert_eq!(ask(&connections).await, [StatusCode::OK, FULL, FULL]);
    drop(posting);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&connections).await, [StatusCode::OK; 3]);
}
