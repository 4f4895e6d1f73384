//! An API server under the test's control, without sockets.

use axum::body::{Body, Bytes};
use futures::channel::{mpsc, oneshot};
use futures::{StreamExt, TryStreamExt};
use http::{Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tower::BoxError;

type Answer = Result<Response<Body>, BoxError>;

/// The requests that a client makes, in their order.
pub(crate) struct FakeApi {
    requests: mpsc::UnboundedReceiver<Request>,
}

impl FakeApi {
    /// The server, and a client that talks to it only.
    pub(crate) fn new() -> (Client, Self) {
        let (send, requests) = mpsc::unbounded();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (answer, answered) = oneshot::channel();
            // If the test is over, the answer is an error.
            let _ = send.unbounded_send(Request { uri: request.uri().clone(), answer });
            async move { answered.await.unwrap_or_else(|_| Err(refused())) }
        });
        (Client::new(service, "default"), Self { requests })
    }

    pub(crate) async fn next(&mut self) -> Request {
        self.requests.next().await.expect("the client is gone")
    }

    /// The next request, which has to be for a page.
    pub(crate) async fn next_list(&mut self) -> Request {
        let request = self.next().await;
        assert!(request.query("watch").is_none(), "{} is a watch", request.uri);
        request
    }

    /// The next request, which has to be for a list in a stream.
    pub(crate) async fn next_streamed_list(&mut self) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("sendInitialEvents").as_deref(), Some("true"), "{}", request.uri);
        request
    }

    /// The next request, which has to be for the changes since `version`.
    pub(crate) async fn next_watch(&mut self, version: &str) -> Request {
        let request = self.next().await;
        assert_eq!(request.query("watch").as_deref(), Some("true"), "{}", request.uri);
        assert_eq!(request.query("sendInitialEvents"), None, "{}", request.uri);
        assert_eq!(request.query("resourceVersion").as_deref(), Some(version), "{}", request.uri);
        request
    }
}

/// A request that waits for its answer.
pub(crate) struct Request {
    pub(crate) uri: http::Uri,
    answer: oneshot::Sender<Answer>,
}

impl Request {
    /// The value of a parameter.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let pairs = self.uri.query().unwrap_or_default().split('&');
        pairs
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }

    /// A complete list, or its last page.
    pub(crate) fn list(self, version: &str, items: &[Value]) {
        self.page(version, "", items);
    }

    /// A page with a token for the next one.
    pub(crate) fn page(self, version: &str, token: &str, items: &[Value]) {
        self.json(
            StatusCode::OK,
            &json!({
                "kind": "ConfigMapList", "apiVersion": "v1",
                "items": items, "metadata": {"resourceVersion": version, "continue": token},
            }),
        );
    }

    /// A Status, which is how API servers say no.
    pub(crate) fn status(self, code: u16, message: &str) {
        self.json(StatusCode::from_u16(code).unwrap(), &status(code, message));
    }

    pub(crate) fn json(self, code: StatusCode, body: &Value) {
        self.text(code, &body.to_string());
    }

    pub(crate) fn text(self, code: StatusCode, body: &str) {
        let _ =
            self.answer.send(Ok(Response::builder().status(code).body(Body::from(body.to_owned())).unwrap()));
    }

    /// No connection.
    pub(crate) fn refuse(self) {
        let _ = self.answer.send(Err(refused()));
    }

    /// 200, and a body that the test goes on writing. Dropping the stream ends the body.
    pub(crate) fn stream(self) -> Events {
        let (send, body) = mpsc::unbounded::<Result<Bytes, std::io::Error>>();
        let body = Body::from_stream(body.into_stream());
        let _ = self.answer.send(Ok(Response::new(body)));
        Events { send }
    }
}

fn refused() -> BoxError {
    Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
}

/// The body of a watch.
pub(crate) struct Events {
    send: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
}

impl Events {
    pub(crate) fn added(&self, object: &Value) {
        self.event("ADDED", object);
    }

    pub(crate) fn modified(&self, object: &Value) {
        self.event("MODIFIED", object);
    }

    pub(crate) fn deleted(&self, object: &Value) {
        self.event("DELETED", object);
    }

    pub(crate) fn bookmark(&self, version: &str) {
        self.event("BOOKMARK", &bookmark(version, &json!({})));
    }

    /// What tells that all objects have been sent.
    pub(crate) fn end_of_list(&self, version: &str) {
        self.event("BOOKMARK", &bookmark(version, &json!({"k8s.io/initial-events-end": "true"})));
    }

    pub(crate) fn error(&self, code: u16, message: &str) {
        self.event("ERROR", &status(code, message));
    }

    pub(crate) fn event(&self, kind: &str, object: &Value) {
        self.text(&line(kind, object));
    }

    pub(crate) fn text(&self, text: &str) {
        let _ = self.send.unbounded_send(Ok(Bytes::from(text.to_owned())));
    }

    /// The connection is reset.
    pub(crate) fn reset(self) {
        let _ = self.send.unbounded_send(Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
    }
}

/// An event as it is on the wire.
pub(crate) fn line(kind: &str, object: &Value) -> String {
    // As Go writes it, the type first.
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

pub(crate) fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code})
}

fn bookmark(version: &str, annotations: &Value) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version, "annotations": annotations}})
}
