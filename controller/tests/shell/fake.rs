//! An API server under the test's control, without sockets.

use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::channel::{mpsc, oneshot};
use futures::{StreamExt, TryStreamExt};
use http::{Method, Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tower::BoxError;

type Answer = Result<Response<Body>, BoxError>;

/// No test takes this long, by its own clock; what is waited for longer will not come.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The requests that a client makes, in their order.
pub(crate) struct FakeApi {
    requests: mpsc::UnboundedReceiver<Request>,
}

impl FakeApi {
    /// The server, and a client that talks to it only.
    pub(crate) fn new() -> (Client, Self) {
        let (send, requests) = mpsc::unbounded();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let send = send.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let (answer, answered) = oneshot::channel();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                // If the test is over, the answer is an error.
                let _ = send.unbounded_send(Request { method: parts.method, uri: parts.uri, body, answer });
                answered.await.unwrap_or_else(|_| Err(refused()))
            }
        });
        (Client::new(service, "default"), Self { requests })
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Request {
        let next = tokio::time::timeout(PATIENCE, self.requests.next()).await;
        next.expect("no further request").expect("the client is gone")
    }

    /// The next request, which has to be this one: `PUT …/infer-x`, the path as far as it matters.
    pub(crate) async fn expect(&mut self, method: Method, path: &str) -> Request {
        let request = self.next().await;
        assert!(
            request.method == method && request.uri.path().contains(path),
            "{request:?} instead of {method} {path}"
        );
        request
    }

    /// The next request, if there is one without waiting for time to pass.
    pub(crate) async fn now(&mut self) -> Option<Request> {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.requests.try_recv().ok()
    }

    /// There is no further request up to now.
    pub(crate) async fn quiet(&mut self) {
        if let Some(request) = self.now().await {
            panic!("unexpected: {request:?}");
        }
    }

    /// Nothing is asked for that long.
    pub(crate) async fn quiet_for(&mut self, time: Duration) {
        if let Ok(request) = tokio::time::timeout(time, self.requests.next()).await {
            panic!("unexpected: {request:?}");
        }
    }
}

/// A request that waits for its answer.
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: http::Uri,
    pub(crate) body: Value,
    answer: oneshot::Sender<Answer>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.method, self.uri, self.body)
    }
}

impl Request {
    /// The value of a parameter, as it is in the URL.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let pairs = self.uri.query().unwrap_or_default().split('&');
        pairs
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }

    /// Part of the body, by JSON pointer.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The write is done; the object is now at that version.
    pub(crate) fn store(self, version: &str) -> Value {
        let object = self.stored(version);
        self.json(StatusCode::OK, &object);
        object
    }

    /// The object as it is stored, whatever is answered.
    pub(crate) fn stored(&self, version: &str) -> Value {
        let mut object = self.body.clone();
        object["metadata"]["resourceVersion"] = version.into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] =
                format!("uid-of-{}", object["metadata"]["name"].as_str().unwrap()).into();
        }
        object
    }

    /// The status is applied: the service is what it was, with that status.
    pub(crate) fn apply_to(self, service: &Value, version: &str) {
        let mut object = service.clone();
        object["metadata"]["resourceVersion"] = version.into();
        object["status"] = self.body["status"].clone();
        self.json(StatusCode::OK, &object);
    }

    /// A list of these.
    pub(crate) fn list(self, kind: &str, items: &[Value]) {
        let list = json!({
            "kind": format!("{kind}List"), "apiVersion": "v1", "items": items, "metadata": {"resourceVersion": "9999"},
        });
        self.json(StatusCode::OK, &list);
    }

    /// A Status, which is how API servers say no.
    pub(crate) fn status(self, code: u16, message: &str) {
        self.status_with(code, message, &Value::Null);
    }

    /// The same, with details.
    pub(crate) fn status_with(self, code: u16, message: &str, details: &Value) {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
        status["message"] = message.into();
        status["reason"] = "".into();
        if !details.is_null() {
            status["details"] = details.clone();
        }
        self.json(StatusCode::from_u16(code).unwrap(), &status);
    }

    pub(crate) fn json(self, code: StatusCode, body: &Value) {
        self.text(code, &body.to_string());
    }

    pub(crate) fn text(self, code: StatusCode, body: &str) {
        let body = Body::from(body.to_owned());
        let _ = self.answer.send(Ok(Response::builder().status(code).body(body).unwrap()));
    }

    /// No connection.
    pub(crate) fn refuse(self) {
        let _ = self.answer.send(Err(refused()));
    }

    /// Whether the client has given up waiting.
    pub(crate) fn is_given_up(&self) -> bool {
        self.answer.is_canceled()
    }

    /// 200, and a body that the test goes on writing.
    pub(crate) fn stream(self) -> Stream {
        let (send, body) = mpsc::unbounded::<Result<Bytes, std::io::Error>>();
        let _ = self.answer.send(Ok(Response::new(Body::from_stream(body.into_stream()))));
        Stream { send }
    }
}

/// The body of a watch.
pub(crate) struct Stream {
    send: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
}

impl Stream {
    /// All objects have been sent.
    pub(crate) fn end_of_list(&self) {
        self.bookmark(&json!({"k8s.io/initial-events-end": "true"}));
    }

    /// There is nothing new, but the connection is alive.
    pub(crate) fn nothing_new(&self) {
        self.bookmark(&json!({}));
    }

    fn bookmark(&self, annotations: &Value) {
        let metadata = json!({"resourceVersion": "7", "annotations": annotations});
        let object = json!({"kind": "X", "apiVersion": "v1", "metadata": metadata});
        // As Go writes it, the type first.
        let line = format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n");
        let _ = self.send.unbounded_send(Ok(Bytes::from(line)));
    }

    /// Whether the client has gone away.
    pub(crate) fn is_closed(&self) -> bool {
        self.send.is_closed()
    }
}

fn refused() -> BoxError {
    Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
}
