//! Fetches payloads by reference, from the pods that offer them.
//!
//! The connections are those of a [`Listener`] without a port: this process connects, but the pod
//! is the sender, and its frames land in this listener's slots. A fetch asks the pod that the
//! reference names, and then all others of the service, again and again until one has the payload
//! or the wait is over.

mod link;
mod pending;
mod service;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::link::Parts;
use self::pending::{Pending, PodReply};
pub(crate) use self::service::Source;
use self::service::{Known, Service};
use crate::endpoint::Endpoint;
use crate::error::{BindError, DialError, FetchError};
use crate::listener::{ListenerBuilder, Received};
use crate::peers::dial::Dialer;
use crate::reference::Reference;

/// Pause after all pods of a service have been asked in vain. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Upper bound of that pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Time after which the other pods are asked, too, if the pod that the reference names has not
/// answered.
const HEAD_START: Duration = Duration::from_secs(2);

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").finish_non_exhaustive()
    }
}

/// Fetches of one connector.
pub(crate) struct Fetcher {
    parts: Parts,
    services: Mutex<HashMap<(String, String), Arc<Service>>>,
    /// Largest payload that is taken, in bytes.
    frame_size: u32,
    tasks: TaskTracker,
}

/// Results of the questions of one fetch so far.
#[derive(Default)]
struct Tally {
    /// Pods that have answered that they do not have the payload, in any round.
    asked: HashSet<String>,
    /// Why a pod could not be asked, of the last round.
    last: Option<Arc<DialError>>,
    /// Whether all failures of the last round are such that waiting cannot cure.
    all_lasting: bool,
    /// Whether a pod has answered in the last round that the payload was taken.
    taken: bool,
}

/// Outcome of a question that ends the fetch.
enum Located {
    Here(Received),
    /// The payload has this many bytes.
    TooLarge(u64),
}

impl Fetcher {
    /// Creates the listener for the payloads. No connection is made yet.
    pub(crate) fn new(listener: ListenerBuilder, frame_size: u32) -> Result<Self, BindError> {
        let (pending, tasks, end) = (Arc::<Pending>::default(), TaskTracker::new(), CancellationToken::new());
        let answers = Arc::clone(&pending);
        let listener = listener.frame_size(frame_size).without_port(move |frame| answers.answer(frame))?;
        let parts = Parts { listener, pending, numbers: Arc::new(AtomicU64::new(1)), end };
        Ok(Self { parts, services: Mutex::default(), frame_size, tasks })
    }

    /// Fetches a payload from a pod of the service with this name and port, whose endpoints and
    /// settings `open` returns for the first fetch.
    pub(crate) async fn fetch(
        &self,
        (name, port): (&str, &str),
        open: impl FnOnce() -> (Dialer, Source),
        reference: &Reference,
        wait: Duration,
    ) -> Result<Received, FetchError> {
        let service = self.service(name, port, open);
        let mut tally = Tally::default();
        let looking = self.look(&service, name, reference, &mut tally);
        let until = Instant::now() + wait;
        let outcome = tokio::select! {
            outcome = timeout_at(until, looking) => outcome,
            () = self.parts.end.cancelled() => return Err(FetchError::Closed),
        };
        outcome.unwrap_or_else(|_| {
            let asked = tally.asked.len();
            Err(match asked {
                _ if tally.taken => FetchError::Taken { reference: reference.clone() },
                0 => FetchError::NoPeer { name: name.to_owned(), waited: wait, last: tally.why(&service) },
                _ => FetchError::NotFound { reference: reference.clone(), waited: wait, asked },
            })
        })
    }

    /// Closes all connections, after the pods have been told of the payloads that are acknowledged.
    pub(crate) async fn close(&self) {
        self.end();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn end(&self) {
        self.parts.end.cancel();
        self.parts.listener.end();
    }

    fn service(&self, name: &str, port: &str, open: impl FnOnce() -> (Dialer, Source)) -> Arc<Service> {
        let mut services = self.services.lock();
        let make = || {
            let (dialer, source) = open();
            Arc::new(Service::new(dialer, source, self.parts.clone(), self.tasks.clone()))
        };
        Arc::clone(services.entry((name.to_owned(), port.to_owned())).or_insert_with(make))
    }

    /// Asks all pods of the service until one of them has the payload.
    async fn look(
        &self,
        service: &Arc<Service>,
        name: &str,
        reference: &Reference,
        tally: &mut Tally,
    ) -> Result<Received, FetchError> {
        let (mut known, mut pause) = (service.known(), FIRST_PAUSE);
        loop {
            let Known { endpoints, error } = known.borrow_and_update().clone();
            if let Some(source) = error.filter(|error| endpoints.is_empty() && error.is_permanent()) {
                return Err(FetchError::Resolve { name: name.to_owned(), source });
            }
            match ask_all(service, &endpoints, reference, tally).await {
                Some(Located::Here(frame)) => return Ok(frame),
                Some(Located::TooLarge(length)) => {
                    let (reference, most) = (reference.clone(), self.frame_size.into());
                    return Err(FetchError::TooLarge { reference, length, most });
                }
                // A message that was delivered again may have put it on offer at another pod.
                None if tally.taken => return Err(FetchError::Taken { reference: reference.clone() }),
                None => {}
            }
            if let Some(last) = tally.last.clone().filter(|_| tally.all_lasting && !endpoints.is_empty()) {
                return Err(FetchError::Lasting { name: name.to_owned(), last });
            }
            service.query_soon();
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(LONGEST_PAUSE),
                _ = known.changed() => {}
            }
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.end();
    }
}

impl Tally {
    /// Returns why no pod of the service could be asked.
    fn why(&self, service: &Service) -> String {
        let Known { endpoints, error } = service.known().borrow().clone();
        match (&self.last, error) {
            (Some(last), _) => last.to_string(),
            (None, Some(error)) => error.to_string(),
            (None, None) if endpoints.is_empty() => "DNS has not answered yet".to_owned(),
            (None, None) => "no pod has answered".to_owned(),
        }
    }
}

/// Asks the pod that the reference names, and then all others. `None` if no pod has the payload.
async fn ask_all(
    service: &Arc<Service>,
    endpoints: &[Arc<Endpoint>],
    reference: &Reference,
    tally: &mut Tally,
) -> Option<Located> {
    let ask = |endpoint: Arc<Endpoint>| {
        let (service, id, host) = (Arc::clone(service), reference.id().clone(), endpoint.host.clone());
        async move { (host, service.ask(endpoint, id).await) }
    };
    let (named, others): (Vec<_>, Vec<_>) =
        endpoints.iter().cloned().partition(|endpoint| is_named(endpoint, reference));
    let mut asking: FuturesUnordered<_> = named.into_iter().map(ask).collect();
    let mut others = Some(others);
    let mut head_start = std::pin::pin!(sleep(HEAD_START));
    (tally.last, tally.all_lasting, tally.taken) = (None, true, false);
    loop {
        if asking.is_empty() {
            asking.extend(others.take()?.into_iter().map(ask));
        }
        tokio::select! {
            Some((host, outcome)) = asking.next() => match outcome {
                Some(Ok(PodReply::Here(frame))) => return Some(Located::Here(frame)),
                Some(Ok(PodReply::TooLarge(length))) => return Some(Located::TooLarge(length)),
                Some(Ok(reply @ (PodReply::Unknown | PodReply::Taken))) => {
                    tally.asked.insert(host);
                    tally.all_lasting = false;
                    tally.taken |= matches!(reply, PodReply::Taken);
                }
                Some(Err(error)) => {
                    tally.all_lasting &= error.is_lasting();
                    tally.last = Some(error);
                }
                // The connection has broken.
                None => tally.all_lasting = false,
            },
            () = &mut head_start, if others.is_some() => {
                asking.extend(others.take().into_iter().flatten().map(ask));
            }
            else => return None,
        }
    }
}

/// Returns whether a reference names this endpoint, by its host name or its pod's name.
fn is_named(endpoint: &Endpoint, reference: &Reference) -> bool {
    let pod = endpoint.pod.as_ref().and_then(|pod| pod.name.as_deref());
    [Some(&*endpoint.host), pod].into_iter().flatten().any(|name| name.eq_ignore_ascii_case(reference.host()))
}
