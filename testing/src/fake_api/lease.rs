//! Fake API server that keeps a lease, and the links to it.

#![allow(clippy::expect_used, reason = "what goes wrong in a test fails it")]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Request, client, status};

/// API server with one lease and conditional writes. Clones share the lease.
#[derive(Clone, Debug)]
pub struct LeaseServer {
    store: Arc<Mutex<Store>>,
}

#[derive(Debug)]
struct Store {
    namespace: String,
    name: String,
    lease: Option<Value>,
    /// Number of writes so far, which is the resourceVersion.
    version: u64,
    /// Method and status of each request that was carried out.
    log: Vec<String>,
}

/// Fate of a request on a link.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// The server carries the request out, and the client gets the answer.
    Answered {
        /// Time until the request arrives.
        there: Duration,
        /// Time until the answer arrives.
        back: Duration,
    },
    /// The server carries the request out, but its answer is lost.
    AnswerLost {
        /// Time until the request arrives.
        there: Duration,
    },
    /// The request is lost.
    Lost,
    /// The connection is refused.
    Unreachable,
    /// The server refuses the request with this status.
    Refused(u16),
}

impl Fate {
    /// Fate of a request that is carried out and answered at once.
    pub const AT_ONCE: Self = Self::Answered { there: Duration::ZERO, back: Duration::ZERO };
}

/// Link that decides on the fate of each request.
#[derive(Clone)]
pub struct LeaseLink {
    fate: Arc<Mutex<Decide>>,
}

type Decide = dyn FnMut(&Method) -> Fate + Send;

impl fmt::Debug for LeaseLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseLink")
    }
}

impl LeaseLink {
    /// Creates a link on which `fate` decides.
    pub fn new(fate: impl FnMut(&Method) -> Fate + Send + 'static) -> Self {
        Self { fate: Arc::new(Mutex::new(fate)) }
    }
}

impl LeaseServer {
    /// Creates a server for a lease of this namespace and name, which does not exist yet.
    pub fn new(namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let store = Store { namespace, name, lease: None, version: 0, log: Vec::new() };
        Self { store: Arc::new(Mutex::new(store)) }
    }

    /// Returns a client that reaches the server over `link`.
    pub fn client(&self, link: LeaseLink) -> Client {
        let server = self.clone();
        client(move |request| {
            let fate = (link.fate.lock().expect("a link"))(&request.method);
            // A request under way goes on even if the client has cancelled it.
            tokio::spawn(server.clone().receive(request, fate));
        })
    }

    async fn receive(self, request: Request, fate: Fate) {
        match fate {
            Fate::Answered { there, back } => {
                sleep(there).await;
                let (code, body) = self.lock().answer(&request);
                sleep(back).await;
                request.json(code, &body);
            }
            Fate::AnswerLost { there } => {
                sleep(there).await;
                self.lock().answer(&request);
                request.cancelled().await;
            }
            Fate::Lost => request.cancelled().await,
            Fate::Unreachable => request.refuse(),
            Fate::Refused(code) => request.status(code, "because"),
        }
    }

    /// Returns the lease; `None` if it does not exist.
    pub fn lease(&self) -> Option<Value> {
        self.lock().lease.clone()
    }

    /// Returns a field of the lease's spec; null if there is none.
    pub fn spec(&self, field: &str) -> Value {
        self.lease().map_or(Value::Null, |lease| lease["spec"][field].clone())
    }

    /// Edits the lease, if it exists.
    pub fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut store = self.lock();
        if let Some(mut lease) = store.lease.take() {
            edit(&mut lease);
            store.put(lease);
        }
    }

    /// Creates or replaces the lease, with this spec.
    pub fn set(&self, spec: &Value) {
        let mut store = self.lock();
        let metadata = json!({"name": store.name, "namespace": store.namespace, "uid": "0"});
        store.put(json!({"metadata": metadata, "spec": spec}));
    }

    /// Deletes the lease.
    pub fn delete(&self) {
        self.lock().lease = None;
    }

    /// Returns method and status of all requests since the last call.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().log)
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("a store")
    }
}

impl Store {
    fn answer(&mut self, request: &Request) -> (StatusCode, Value) {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let one = format!("{all}/{}", self.name);
        let (code, body) = match (request.method.as_str(), request.uri.path()) {
            ("GET", path) if path == one => self.get(),
            ("POST", path) if path == all => self.create(request.body.clone()),
            ("PUT", path) if path == one => self.replace(request.body.clone()),
            _ => panic!("unexpected request: {request:?}"),
        };
        self.log.push(format!("{} {code}", request.method));
        (StatusCode::from_u16(code).expect("a status"), body)
    }

    fn get(&self) -> (u16, Value) {
        self.lease.clone().map_or_else(|| (404, status(404, "not found")), |lease| (200, lease))
    }

    fn create(&mut self, mut lease: Value) -> (u16, Value) {
        if self.lease.is_some() {
            return (409, status(409, "already exists"));
        }
        assert_eq!(
            lease["metadata"]["resourceVersion"],
            Value::Null,
            "an object to create must have no resourceVersion"
        );
        lease["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        (201, self.put(lease))
    }

    fn replace(&mut self, lease: Value) -> (u16, Value) {
        assert!(lease["metadata"]["resourceVersion"].is_string(), "a write without a precondition: {lease}");
        let same = |old: &Value, field: &str| old["metadata"][field] == lease["metadata"][field];
        // A real server would create the missing object on PUT, were it not for the uid in it.
        match &self.lease {
            Some(old) if same(old, "resourceVersion") && same(old, "uid") => (200, self.put(lease)),
            _ => (409, status(409, "the object has been modified")),
        }
    }

    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}
