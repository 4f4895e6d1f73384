//! Fake API server without sockets, under the control of a test.
//!
//! Each request waits in [`FakeApi`] until the test answers it, so that a test reads as a
//! conversation. [`LeaseServer`] answers by itself, over links whose faults the test chooses. Both
//! work with tokio's paused clock.

#![allow(clippy::expect_used, reason = "what goes wrong in a test fails it")]

mod lease;

use std::fmt;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::channel::{mpsc, oneshot};
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Method, Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tower::BoxError;

pub use lease::{Fate, LeaseLink, LeaseServer};

/// Time limit for an expected request, on the paused clock. No test takes this long.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Requests of a client, in order.
#[derive(Debug)]
pub struct FakeApi {
    requests: mpsc::UnboundedReceiver<Request>,
}

impl FakeApi {
    /// Creates the server, and a client that talks only to it.
    pub fn new() -> (Client, Self) {
        let (send, requests) = mpsc::unbounded();
        // After the test has ended, the request is dropped, and the client gets an error.
        (client(move |request| drop(send.unbounded_send(request))), Self { requests })
    }

    /// Waits for the next request, and answers version checks itself. A watch sends a version check
    /// when it is opened again; the answer is a version that no watch has reached.
    pub async fn next(&mut self) -> Request {
        loop {
            if let Some(request) = self.next_of_all().await.unless_version_check() {
                return request;
            }
        }
    }

    /// Waits for the next request, which has to be a version check.
    pub async fn next_version_check(&mut self) -> Request {
        let request = self.next_of_all().await;
        assert!(request.is_version_check(), "{request:?}");
        request
    }

    async fn next_of_all(&mut self) -> Request {
        let next = tokio::time::timeout(PATIENCE, self.requests.next()).await;
        next.expect("no request came").expect("the client has been dropped")
    }

    /// Waits for the next request, which has to have this method and a path that contains `path`,
    /// as `PUT …/infer-x`.
    pub async fn expect(&mut self, method: Method, path: &str) -> Request {
        let request = self.next().await;
        assert!(
            request.method == method && request.uri.path().contains(path),
            "got {request:?} instead of {method} {path}"
        );
        request
    }

    /// Waits for the next request, which has to be for a page of a list.
    pub async fn next_list(&mut self) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("watch"), None, "{request:?} is a watch");
        request
    }

    /// Waits for the next request, which has to be for a list in a stream.
    pub async fn next_streamed_list(&mut self) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("sendInitialEvents").as_deref(), Some("true"), "{request:?}");
        request
    }

    /// Waits for the next request, which has to be for the changes since `version`.
    pub async fn next_watch(&mut self, version: &str) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("watch").as_deref(), Some("true"), "{request:?}");
        assert_eq!(request.query("sendInitialEvents"), None, "{request:?}");
        assert_eq!(request.query("resourceVersion").as_deref(), Some(version), "{request:?}");
        request
    }

    /// Returns the next request, if it comes without time passing.
    pub async fn now(&mut self) -> Option<Request> {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        loop {
            let request = self.requests.try_recv().ok()?;
            if let Some(request) = request.unless_version_check() {
                return Some(request);
            }
        }
    }

    /// Panics if there is a further request by now.
    pub async fn expect_no_request(&mut self) {
        if let Some(request) = self.now().await {
            panic!("unexpected request: {request:?}");
        }
    }

    /// Panics if a request comes within this time, on the paused clock.
    pub async fn expect_no_request_for(&mut self, time: Duration) {
        if let Ok(request) = tokio::time::timeout(time, self.next()).await {
            panic!("unexpected request: {request:?}");
        }
    }
}

/// Returns a client that passes its requests to `take`.
fn client(take: impl Fn(Request) + Clone + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let take = take.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
            let (answer, answered) = oneshot::channel();
            take(Request { method: parts.method, uri: parts.uri, body, answer });
            answered.await.unwrap_or_else(|_| Err(refused()))
        }
    });
    Client::new(service, "default")
}

fn refused() -> BoxError {
    Box::new(Error::from(ErrorKind::ConnectionRefused))
}

/// Request that waits for its answer.
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path and query of the request.
    pub uri: http::Uri,
    /// JSON body; null if there is none.
    pub body: Value,
    answer: oneshot::Sender<Result<Response<Body>, BoxError>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.method, self.uri, self.body)
    }
}

impl Request {
    /// Returns the value of a query parameter, as encoded in the URL.
    pub fn query(&self, name: &str) -> Option<String> {
        let pairs = self.uri.query().unwrap_or_default().split('&');
        let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }

    fn is_version_check(&self) -> bool {
        self.query("limit").as_deref() == Some("1")
    }

    fn unless_version_check(self) -> Option<Self> {
        if self.is_version_check() {
            self.list(&u64::MAX.to_string(), &[]);
            return None;
        }
        Some(self)
    }

    /// Returns the part of the body at a JSON pointer.
    pub fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Answers a write with success. Returns the object, which now has this version.
    pub fn store(self, version: &str) -> Value {
        let object = self.stored(version);
        self.json(StatusCode::OK, &object);
        object
    }

    /// Returns the object as a successful write would store it. Does not answer.
    pub fn stored(&self, version: &str) -> Value {
        let mut object = self.body.clone();
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = version.into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-of-{}", metadata["name"].as_str().expect("a name")).into();
        }
        object
    }

    /// Answers a write of a status with success: `object` with that status.
    pub fn apply_to(self, object: &Value, version: &str) {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = version.into();
        object["status"] = self.body["status"].clone();
        self.json(StatusCode::OK, &object);
    }

    /// Answers with a complete list, or with its last page.
    pub fn list(self, version: &str, items: &[Value]) {
        self.page(version, "", items);
    }

    /// Answers with a page, and a token for the next one.
    pub fn page(self, version: &str, token: &str, items: &[Value]) {
        let metadata = json!({"resourceVersion": version, "continue": token});
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items, "metadata": metadata});
        self.json(StatusCode::OK, &list);
    }

    /// Answers with a Status of failure.
    pub fn status(self, code: u16, message: &str) {
        self.status_with(code, message, &Value::Null);
    }

    /// Answers with a Status of failure that has details.
    pub fn status_with(self, code: u16, message: &str, details: &Value) {
        let mut status = status(code, message);
        if !details.is_null() {
            status["details"] = details.clone();
        }
        self.json(StatusCode::from_u16(code).expect("a status"), &status);
    }

    /// Answers with JSON.
    pub fn json(self, code: StatusCode, body: &Value) {
        self.text(code, &body.to_string());
    }

    /// Answers with text.
    pub fn text(self, code: StatusCode, body: &str) {
        let mut response = Response::new(Body::from(body.to_owned()));
        *response.status_mut() = code;
        let _ = self.answer.send(Ok(response));
    }

    /// Refuses the connection.
    pub fn refuse(self) {
        let _ = self.answer.send(Err(refused()));
    }

    /// Returns whether the client has cancelled the request.
    pub fn is_cancelled(&self) -> bool {
        self.answer.is_canceled()
    }

    /// Waits until the client cancels the request.
    async fn cancelled(mut self) {
        self.answer.cancellation().await;
    }

    /// Answers with status 200, and a body that the test goes on writing. Dropping the stream ends
    /// the body.
    pub fn stream(self) -> WatchStream {
        let (send, body) = mpsc::unbounded::<Result<Bytes, Error>>();
        let _ = self.answer.send(Ok(Response::new(Body::from_stream(body.into_stream()))));
        WatchStream { send }
    }
}

/// Body of a watch.
#[derive(Debug)]
pub struct WatchStream {
    send: mpsc::UnboundedSender<Result<Bytes, Error>>,
}

impl WatchStream {
    /// Sends the event of an added object.
    pub fn added(&self, object: &Value) {
        self.event("ADDED", object);
    }

    /// Sends the event of a modified object.
    pub fn modified(&self, object: &Value) {
        self.event("MODIFIED", object);
    }

    /// Sends the event of a deleted object.
    pub fn deleted(&self, object: &Value) {
        self.event("DELETED", object);
    }

    /// Sends a bookmark with this version.
    pub fn bookmark(&self, version: &str) {
        self.annotated_bookmark(version, &json!({}));
    }

    /// Sends the bookmark that ends the list within a stream.
    pub fn end_of_list(&self, version: &str) {
        self.annotated_bookmark(version, &json!({"k8s.io/initial-events-end": "true"}));
    }

    fn annotated_bookmark(&self, version: &str, annotations: &Value) {
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        self.event("BOOKMARK", &json!({"kind": "X", "apiVersion": "v1", "metadata": metadata}));
    }

    /// Sends an error event.
    pub fn error(&self, code: u16, message: &str) {
        self.event("ERROR", &status(code, message));
    }

    /// Sends an event.
    pub fn event(&self, kind: &str, object: &Value) {
        self.text(&line(kind, object));
    }

    /// Sends raw text.
    pub fn text(&self, text: &str) {
        let _ = self.send.unbounded_send(Ok(Bytes::from(text.to_owned())));
    }

    /// Resets the connection.
    pub fn reset(self) {
        let _ = self.send.unbounded_send(Err(ErrorKind::ConnectionReset.into()));
    }

    /// Returns whether the client has closed the stream.
    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }
}

/// Returns an event in its wire format.
pub fn line(kind: &str, object: &Value) -> String {
    // The type comes first, as Go writes it.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// Returns a Status of failure.
pub fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code})
}
