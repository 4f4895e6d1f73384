//! API server under the test's control, without sockets.
//!
//! Every request waits in [`FakeApi`] until the test answers it, so a test reads as a conversation. [`LeaseServer`] answers by
//! itself, over links that fail as the test wants them to. Both work with tokio's paused clock.

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

pub use lease::{Fate, LeaseServer, Link};

/// No test takes this long, by its own clock; what is waited for longer will not come.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The requests that a client makes, in their order.
#[derive(Debug)]
pub struct FakeApi {
    requests: mpsc::UnboundedReceiver<Request>,
}

impl FakeApi {
    /// Makes the server, and a client that talks to it only.
    pub fn new() -> (Client, Self) {
        let (send, requests) = mpsc::unbounded();
        // If the test is over, the request is dropped, and the answer is an error.
        (client(move |request| drop(send.unbounded_send(request))), Self { requests })
    }

    /// Waits for the next request. Answers what a watch that is opened again asks besides: the newest version is one that no
    /// watch has got to.
    pub async fn next(&mut self) -> Request {
        loop {
            if let Some(request) = self.next_of_all().await.unless_version_check() {
                return request;
            }
        }
    }

    /// The next request, which has to be for the newest version.
    pub async fn next_version_check(&mut self) -> Request {
        let request = self.next_of_all().await;
        assert!(request.is_version_check(), "{request:?}");
        request
    }

    async fn next_of_all(&mut self) -> Request {
        let next = tokio::time::timeout(PATIENCE, self.requests.next()).await;
        next.expect("no further request").expect("the client is gone")
    }

    /// The next request, which has to be this one: `PUT …/infer-x`, the path as far as it matters.
    pub async fn expect(&mut self, method: Method, path: &str) -> Request {
        let request = self.next().await;
        assert!(
            request.method == method && request.uri.path().contains(path),
            "{request:?} instead of {method} {path}"
        );
        request
    }

    /// The next request, which has to be for a page.
    pub async fn next_list(&mut self) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("watch"), None, "{request:?} is a watch");
        request
    }

    /// The next request, which has to be for a list in a stream.
    pub async fn next_streamed_list(&mut self) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("sendInitialEvents").as_deref(), Some("true"), "{request:?}");
        request
    }

    /// The next request, which has to be for the changes since `version`.
    pub async fn next_watch(&mut self, version: &str) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("watch").as_deref(), Some("true"), "{request:?}");
        assert_eq!(request.query("sendInitialEvents"), None, "{request:?}");
        assert_eq!(request.query("resourceVersion").as_deref(), Some(version), "{request:?}");
        request
    }

    /// The next request, if there is one without waiting for time to pass.
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

    /// Fails if there is a further request up to now.
    pub async fn quiet(&mut self) {
        if let Some(request) = self.now().await {
            panic!("unexpected: {request:?}");
        }
    }

    /// Fails if anything is asked for that long.
    pub async fn quiet_for(&mut self, time: Duration) {
        if let Ok(request) = tokio::time::timeout(time, self.next()).await {
            panic!("unexpected: {request:?}");
        }
    }
}

/// A client whose requests go to `take`.
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

/// A request that waits for its answer.
pub struct Request {
    /// How it is asked.
    pub method: Method,
    /// Path and query of the request.
    pub uri: http::Uri,
    /// The JSON that is sent; null if it is none.
    pub body: Value,
    answer: oneshot::Sender<Result<Response<Body>, BoxError>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.method, self.uri, self.body)
    }
}

impl Request {
    /// The value of a parameter, as it is in the URL.
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

    /// Part of the body, by JSON pointer.
    pub fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Does the write: the object is now at that version.
    pub fn store(self, version: &str) -> Value {
        let object = self.stored(version);
        self.json(StatusCode::OK, &object);
        object
    }

    /// The object as it is stored, whatever is answered.
    pub fn stored(&self, version: &str) -> Value {
        let mut object = self.body.clone();
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = version.into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-of-{}", metadata["name"].as_str().expect("a name")).into();
        }
        object
    }

    /// Applies the status: `object` is what it was, with that status.
    pub fn apply_to(self, object: &Value, version: &str) {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = version.into();
        object["status"] = self.body["status"].clone();
        self.json(StatusCode::OK, &object);
    }

    /// Answers with a complete list, or its last page.
    pub fn list(self, version: &str, items: &[Value]) {
        self.page(version, "", items);
    }

    /// Answers with a page and a token for the next one.
    pub fn page(self, version: &str, token: &str, items: &[Value]) {
        let metadata = json!({"resourceVersion": version, "continue": token});
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items, "metadata": metadata});
        self.json(StatusCode::OK, &list);
    }

    /// Answers with a Status, which is how API servers say no.
    pub fn status(self, code: u16, message: &str) {
        self.status_with(code, message, &Value::Null);
    }

    /// The same, with details.
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

    /// Whether the client has given up waiting.
    pub fn is_given_up(&self) -> bool {
        self.answer.is_canceled()
    }

    /// Waits until the client has given up waiting.
    async fn given_up(mut self) {
        self.answer.cancellation().await;
    }

    /// Answers with 200, and a body that the test goes on writing. Dropping the events ends the body.
    pub fn stream(self) -> Events {
        let (send, body) = mpsc::unbounded::<Result<Bytes, Error>>();
        let _ = self.answer.send(Ok(Response::new(Body::from_stream(body.into_stream()))));
        Events { send }
    }
}

/// The body of a watch.
#[derive(Debug)]
pub struct Events {
    send: mpsc::UnboundedSender<Result<Bytes, Error>>,
}

impl Events {
    /// Says that there is an object.
    pub fn added(&self, object: &Value) {
        self.event("ADDED", object);
    }

    /// Says that an object has changed.
    pub fn modified(&self, object: &Value) {
        self.event("MODIFIED", object);
    }

    /// Says that an object is gone.
    pub fn deleted(&self, object: &Value) {
        self.event("DELETED", object);
    }

    /// Says that there is nothing new up to that version.
    pub fn bookmark(&self, version: &str) {
        self.annotated_bookmark(version, &json!({}));
    }

    /// Says that all objects have been sent.
    pub fn end_of_list(&self, version: &str) {
        self.annotated_bookmark(version, &json!({"k8s.io/initial-events-end": "true"}));
    }

    fn annotated_bookmark(&self, version: &str, annotations: &Value) {
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        self.event("BOOKMARK", &json!({"kind": "X", "apiVersion": "v1", "metadata": metadata}));
    }

    /// Says that the watch fails.
    pub fn error(&self, code: u16, message: &str) {
        self.event("ERROR", &status(code, message));
    }

    /// Sends an event.
    pub fn event(&self, kind: &str, object: &Value) {
        self.text(&line(kind, object));
    }

    /// Sends text.
    pub fn text(&self, text: &str) {
        let _ = self.send.unbounded_send(Ok(Bytes::from(text.to_owned())));
    }

    /// Resets the connection.
    pub fn reset(self) {
        let _ = self.send.unbounded_send(Err(ErrorKind::ConnectionReset.into()));
    }

    /// Whether the client has gone away.
    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }
}

/// An event as it is on the wire.
pub fn line(kind: &str, object: &Value) -> String {
    // As Go writes it, the type first.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// A Status of a failure.
pub fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code})
}
