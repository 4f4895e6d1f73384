//! Pods of one service that payloads are fetched from: their endpoints in DNS, and connections.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use super::link::{self, Parts, PayloadQuestion, Up};
use super::pending::PodOutcome;
use crate::endpoint::Endpoint;
use crate::peers::dial::Dialer;
use crate::reference::OfferId;
use crate::resolve::{Change, ResolveError, Resolved, Watch};

/// Number of questions that wait for a connection to be made.
const WAITING: usize = 16;

/// Endpoints of a service, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// Last error of DNS, if it has not answered since.
    pub(super) error: Option<ResolveError>,
}

/// Source of a service's endpoints.
pub(crate) enum Source {
    Dns(Box<Watch>),
    /// The caller knows them, and [`Service::set`] gets them.
    Caller,
}

impl Known {
    fn set(&mut self, endpoints: Vec<Endpoint>) {
        *self = Self { endpoints: endpoints.into_iter().map(Arc::new).collect(), error: None };
    }
}

/// A service that payloads are fetched from.
pub(crate) struct Service {
    dialer: Arc<Dialer>,
    parts: Parts,
    known: watch::Sender<Known>,
    /// Notified when DNS should be queried soon.
    soon: Arc<Notify>,
    /// Connections by the endpoint's name and port. A connection that has ended is made again by
    /// the next question.
    links: Mutex<HashMap<(String, u16), PodLink>>,
    tasks: TaskTracker,
    /// Time of the last fetch's beginning.
    used: Mutex<Instant>,
    /// Ends the task that follows the service in DNS.
    _following: DropGuard,
}

/// A connection, which is made or up.
#[derive(Clone)]
struct PodLink {
    /// Queue of questions while the connection is made, or the pod is asked too much.
    questions: mpsc::Sender<PayloadQuestion>,
    up: Arc<OnceLock<Up>>,
}

impl Service {
    pub(super) fn new(dialer: Dialer, source: Source, parts: Parts, tasks: TaskTracker) -> Self {
        let known = watch::Sender::default();
        let (soon, end) = (Arc::new(Notify::new()), parts.end.child_token());
        if let Source::Dns(watch) = source {
            let following = follow(*watch, known.clone(), Arc::clone(&soon));
            tasks.spawn(end.clone().run_until_cancelled_owned(following));
        }
        let used = Mutex::new(Instant::now());
        let (dialer, links, _following) = (Arc::new(dialer), Mutex::default(), end.drop_guard());
        Self { dialer, parts, known, soon, links, tasks, used, _following }
    }

    /// Notes that a fetch begins.
    pub(super) fn begin(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Returns the time of the last fetch if no connection is left. `None` otherwise.
    pub(super) fn rests_since(&self) -> Option<Instant> {
        let has_links = self.links.lock().values().any(|link| !link.questions.is_closed());
        (!has_links).then(|| *self.used.lock())
    }

    /// Returns a view of the endpoints, which tells of changes, too.
    pub(super) fn known(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Sets the endpoints, which the caller knows without DNS.
    pub(crate) fn set(&self, endpoints: Vec<Endpoint>) {
        self.known.send_modify(|known| known.set(endpoints));
    }

    /// Returns how many bytes have come from a pod by the present connection.
    pub(super) fn bytes(&self, endpoint: &Endpoint) -> u64 {
        let name = (endpoint.target.clone(), endpoint.port);
        self.links.lock().get(&name).and_then(|link| link.up.get()).map_or(0, Up::bytes)
    }

    /// Has DNS queried soon, because a pod is missing.
    pub(super) fn query_soon(&self) {
        self.soon.notify_one();
    }

    /// Asks a pod for a payload. `None` if the connection ends before the answer.
    pub(super) async fn ask(&self, endpoint: Arc<Endpoint>, id: OfferId) -> Option<PodOutcome> {
        let (reply, answered) = oneshot::channel();
        let question = PayloadQuestion { id, reply };
        let link = self.link(&endpoint);
        let question = match link.up.get() {
            None => Err(question),
            Some(up) => up.try_ask(&self.parts, question),
        };
        if let Err(question) = question
            && let Err(mpsc::error::SendError(question)) = link.questions.send(question).await
        {
            // The connection has just ended.
            self.link(&endpoint).questions.send(question).await.ok()?;
        }
        answered.await.ok()
    }

    /// Returns the connection to a pod. It makes a new one if there is none.
    fn link(&self, endpoint: &Arc<Endpoint>) -> PodLink {
        let mut links = self.links.lock();
        links.retain(|_, link| !link.questions.is_closed());
        let name = (endpoint.target.clone(), endpoint.port);
        let make = || {
            let (sender, questions) = mpsc::channel(WAITING);
            let (parts, dialer) = (self.parts.clone(), Arc::clone(&self.dialer));
            let up = Arc::<OnceLock<Up>>::default();
            self.tasks.spawn(link::run(parts, dialer, Arc::clone(endpoint), questions, Arc::clone(&up)));
            PodLink { questions: sender, up }
        };
        links.entry(name).or_insert_with(make).clone()
    }
}

/// Follows the service in DNS.
async fn follow(mut watch: Watch, known: watch::Sender<Known>, soon: Arc<Notify>) {
    loop {
        let change = tokio::select! {
            change = watch.next() => change,
            () = soon.notified() => {
                watch.ask_soon();
                continue;
            }
        };
        let Some(change) = change else { return };
        known.send_modify(|known| match change {
            Change::Endpoints(Resolved { endpoints, .. }) => {
                known.set(endpoints);
            }
            Change::Recovered => known.error = None,
            Change::Held { error, .. } => known.error = Some(error),
            Change::Lost { error } => *known = Known { endpoints: Vec::new(), error: Some(error) },
        });
    }
}
