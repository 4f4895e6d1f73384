//! The part of an API server that keeps a lease, and links to it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use http::{Method, Response};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tower::BoxError;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";

/// The lease ns/leader.
#[derive(Clone, Default)]
pub(crate) struct Server {
    store: Arc<Mutex<Store>>,
}

#[derive(Default)]
struct Store {
    lease: Option<Value>,
    /// Counts up with every write.
    version: u64,
    /// Requests that have been done.
    log: Vec<(Method, u16)>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It is done, and answered.
    Answered { there: Duration, back: Duration },
    /// It is done, but the answer does not come.
    Unheard { there: Duration },
    /// It does not arrive.
    Lost,
    /// No connection.
    Unreachable,
    /// It is refused, with this status.
    Refused(u16),
}

impl Fate {
    pub(crate) const AT_ONCE: Self = Self::Answered { there: Duration::ZERO, back: Duration::ZERO };
}

/// What decides on the fate of each request.
#[derive(Clone)]
pub(crate) struct Link {
    fate: Arc<Mutex<Decide>>,
}

type Decide = dyn FnMut(&Method) -> Fate + Send;

impl Link {
    pub(crate) fn new(fate: impl FnMut(&Method) -> Fate + Send + 'static) -> Self {
        Self { fate: Arc::new(Mutex::new(fate)) }
    }

    fn fate(&self, method: &Method) -> Fate {
        (self.fate.lock().unwrap())(method)
    }
}

impl Server {
    /// A client at the other end of `link`.
    pub(crate) fn client(&self, link: Link) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (send, answered) = oneshot::channel();
            let fate = link.fate(request.method());
            // What is under way goes on, whoever has given it up.
            tokio::spawn(server.clone().receive(request, fate, send));
            async move {
                match answered.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            }
        });
        Client::new(service, "ns")
    }

    async fn receive(
        self,
        request: http::Request<kube::client::Body>,
        fate: Fate,
        answer: oneshot::Sender<Result<Response<Body>, BoxError>>,
    ) {
        let done = match fate {
            Fate::Answered { there, .. } | Fate::Unheard { there } => {
                sleep(there).await;
                self.answer(request).await
            }
            Fate::Lost => return,
            Fate::Unreachable => {
                let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                drop(answer.send(Err(Box::new(refused))));
                return;
            }
            Fate::Refused(code) => status(code, "because"),
        };
        match fate {
            Fate::Answered { back, .. } => sleep(back).await,
            Fate::Unheard { .. } => return,
            _ => {}
        }
        let (code, body) = done;
        let response = Response::builder().status(code).body(Body::from(body.to_string())).unwrap();
        drop(answer.send(Ok(response)));
    }

    async fn answer(&self, request: http::Request<kube::client::Body>) -> (u16, Value) {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap();
        let body = (!body.is_empty()).then(|| serde_json::from_slice(&body).unwrap());
        let mut store = self.lock();
        let answer = match (parts.method.as_str(), parts.uri.path().strip_prefix(PATH).unwrap()) {
            ("GET", "/leader") => store.get(),
            ("POST", "") => store.create(body.unwrap()),
            ("PUT", "/leader") => store.replace(body.unwrap()),
            other => panic!("unexpected request: {other:?}"),
        };
        store.log.push((parts.method, answer.0));
        answer
    }

    /// The lease as it is.
    pub(crate) fn lease(&self) -> Option<Value> {
        self.lock().lease.clone()
    }

    /// A field of the lease's spec; null if there is none.
    pub(crate) fn spec(&self, field: &str) -> Value {
        self.lease().map_or(Value::Null, |lease| lease["spec"][field].clone())
    }

    /// Somebody changes the lease, if there is one.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut store = self.lock();
        if let Some(mut lease) = store.lease.take() {
            edit(&mut lease);
            store.put(lease);
        }
    }

    /// Somebody makes a lease with this spec, or replaces it.
    pub(crate) fn set(&self, spec: Value) {
        self.lock().put(json!({"metadata": {"name": "leader", "namespace": "ns", "uid": "0"}, "spec": spec}));
    }

    pub(crate) fn delete(&self) {
        self.lock().lease = None;
    }

    /// Methods and statuses of all requests since the last call.
    pub(crate) fn take_log(&self) -> Vec<String> {
        let log = std::mem::take(&mut self.lock().log);
        log.iter().map(|(method, code)| format!("{method} {code}")).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }
}

impl Store {
    fn get(&self) -> (u16, Value) {
        self.lease.clone().map_or_else(|| status(404, "not found"), |lease| (200, lease))
    }

    fn create(&mut self, mut lease: Value) -> (u16, Value) {
        if self.lease.is_some() {
            return status(409, "already exists");
        }
        assert_eq!(
            lease["metadata"]["resourceVersion"],
            Value::Null,
            "is not to be set on objects to be created"
        );
        lease["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        (201, self.put(lease))
    }

    fn replace(&mut self, lease: Value) -> (u16, Value) {
        assert!(lease["metadata"]["resourceVersion"].is_string(), "a write without a precondition: {lease}");
        let same = |old: &Value, field: &str| old["metadata"][field] == lease["metadata"][field];
        // A PUT for what is not there would create it, but for the uid.
        match &self.lease {
            Some(old) if same(old, "resourceVersion") && same(old, "uid") => (200, self.put(lease)),
            _ => status(409, "the object has been modified"),
        }
    }

    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

fn status(code: u16, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "", "code": code});
    (code, status)
}
