//! The search for one payload among the pods of a service.
//!
//! The pod that the reference names is asked first. Once it has answered, or has had some time, all
//! others are asked, too. A pod that does not have the payload, or cannot be connected, is asked
//! again after a pause, whatever the others do. The search ends when a pod has the payload, when it
//! was taken from one and the others have not answered for some time, or when no byte has come for
//! the whole wait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::pending::{PodOutcome, PodReply};
use super::service::{Known, Service};
use crate::endpoint::Endpoint;
use crate::error::{DialError, FetchError};
use crate::listener::Received;
use crate::reference::Reference;

/// Pause after a pod was asked in vain. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Upper bound of that pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Time after which the other pods are asked, too, if no byte comes from the pod that the reference
/// names. As long, other pods may answer that they have a payload which was taken from one.
const HEAD_START: Duration = Duration::from_secs(2);

/// Upper bound of the wait, beyond which the clock does not go.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 86400);

/// Name and port of an endpoint.
type PodKey = (String, u16);

pub(super) struct PayloadSearch<'s> {
    service: &'s Arc<Service>,
    name: &'s str,
    reference: &'s Reference,
    /// Largest payload that is taken, in bytes.
    most: u32,
    wait: Duration,
    known: watch::Receiver<Known>,
    pods: BTreeMap<PodKey, Pod>,
    asking: FuturesUnordered<BoxFuture<'s, (PodKey, Option<PodOutcome>)>>,
    /// Time from which on a taken payload is taken, whatever the pods do that have not answered.
    /// `None` while no pod has said that it was taken from it.
    taken: Option<Instant>,
    /// Time when bytes were last seen to have come; at first, that of the beginning.
    moved: Instant,
}

/// One pod, and what it has answered.
struct Pod {
    endpoint: Arc<Endpoint>,
    is_named: bool,
    /// When to ask next. `None` while an answer is outstanding.
    due: Option<Instant>,
    pause: Duration,
    last: LastAnswer,
    /// Bytes that had come from the pod when that was last looked at.
    bytes: u64,
}

/// Last answer of a pod.
enum LastAnswer {
    /// None yet, or the connection broke before it came.
    Missing,
    /// The pod does not have the payload.
    Unknown,
    /// The payload was taken from this pod.
    Taken,
    /// The pod could not be connected.
    Failed(Arc<DialError>),
}

impl<'s> PayloadSearch<'s> {
    pub(super) fn new(
        service: &'s Arc<Service>,
        (name, reference): (&'s str, &'s Reference),
        most: u32,
        wait: Duration,
    ) -> Self {
        let (known, pods, asking) = (service.known(), BTreeMap::new(), FuturesUnordered::new());
        let (moved, wait) = (Instant::now(), wait.min(LONGEST_WAIT));
        Self { service, name, reference, most, wait, known, pods, asking, taken: None, moved }
    }

    /// Asks pods until one has the payload.
    pub(super) async fn run(mut self) -> Result<Received, FetchError> {
        let (mut until, mut head_start) = (self.moved + self.wait, self.moved + HEAD_START);
        let (mut is_over, mut asks_others) = (false, false);
        self.read_endpoints()?;
        loop {
            let now = Instant::now();
            if until <= now {
                self.note_bytes(now);
                // A payload that is on its way may arrive, but no pod is asked any more.
                (is_over, until) = (true, self.moved + self.wait);
                if until <= now {
                    return Err(self.timed_out());
                }
            }
            if is_over && self.pods.values().all(|pod| pod.due.is_some()) {
                return Err(self.timed_out());
            }
            asks_others |= !self.pods.is_empty() && self.named_have_answered();
            if !asks_others && head_start <= now {
                self.note_bytes(now);
                head_start = self.moved + HEAD_START;
                asks_others = head_start <= now;
            }
            if !is_over {
                self.ask(now, asks_others);
            }
            if self.is_taken(now) {
                return Err(FetchError::Taken { reference: self.reference.clone() });
            }
            if let Some(last) = self.lasting() {
                return Err(FetchError::Lasting { name: self.name.to_owned(), last });
            }
            let pods = self.pods.values().filter(|pod| !is_over && (pod.is_named || asks_others));
            let due = pods.filter_map(|pod| pod.due);
            let others = if asks_others { self.taken } else { Some(head_start) };
            let next = due.chain(others).fold(until, Instant::min);
            tokio::select! {
                Some((pod, outcome)) = self.asking.next() => {
                    if let Some(found) = self.answered(&pod, outcome) {
                        return found;
                    }
                }
                _ = self.known.changed() => self.read_endpoints()?,
                () = sleep_until(next) => {}
            }
        }
    }

    /// Takes over the endpoints that DNS names. New and changed ones are asked at once.
    fn read_endpoints(&mut self) -> Result<(), FetchError> {
        let Known { endpoints, error } = self.known.borrow_and_update().clone();
        if let Some(source) = error.filter(|error| endpoints.is_empty() && error.is_permanent()) {
            return Err(FetchError::Resolve { name: self.name.to_owned(), source });
        }
        let mut before = std::mem::take(&mut self.pods);
        for endpoint in endpoints {
            let key = (endpoint.target.clone(), endpoint.port);
            let pod = match before.remove(&key) {
                Some(pod) if pod.endpoint == endpoint => pod,
                // Its connection answers, or ends, before the new address can be asked.
                Some(pod) if pod.due.is_none() => {
                    Pod { is_named: is_named(&endpoint, self.reference), endpoint, ..pod }
                }
                _ => Pod {
                    is_named: is_named(&endpoint, self.reference),
                    endpoint,
                    due: Some(Instant::now()),
                    pause: FIRST_PAUSE,
                    last: LastAnswer::Missing,
                    bytes: 0,
                },
            };
            self.pods.insert(key, pod);
        }
        Ok(())
    }

    /// Returns whether the pods that the reference names, if there are any, have answered.
    fn named_have_answered(&self) -> bool {
        self.pods.values().all(|pod| !pod.is_named || !matches!(pod.last, LastAnswer::Missing))
    }

    /// Asks the pods that are due.
    fn ask(&mut self, now: Instant, asks_others: bool) {
        for (key, pod) in &mut self.pods {
            if !(pod.is_named || asks_others) || pod.due.is_none_or(|due| due > now) {
                continue;
            }
            (pod.due, pod.bytes) = (None, self.service.bytes(&pod.endpoint));
            let (key, endpoint) = (key.clone(), Arc::clone(&pod.endpoint));
            let (service, id) = (self.service, self.reference.id().clone());
            self.asking.push(Box::pin(async move { (key, service.ask(endpoint, id).await) }));
        }
    }

    /// Takes the answer of a pod. Returns what ends the search.
    fn answered(
        &mut self,
        pod: &PodKey,
        outcome: Option<PodOutcome>,
    ) -> Option<Result<Received, FetchError>> {
        let last = match outcome {
            Some(Ok(PodReply::Here(frame))) => return Some(Ok(frame)),
            Some(Ok(PodReply::TooLarge(length))) => {
                let (reference, most) = (self.reference.clone(), self.most.into());
                return Some(Err(FetchError::TooLarge { reference, length, most }));
            }
            Some(Ok(PodReply::Unknown)) => LastAnswer::Unknown,
            Some(Ok(PodReply::Taken)) => {
                self.taken.get_or_insert_with(|| Instant::now() + HEAD_START);
                LastAnswer::Taken
            }
            Some(Err(error)) => LastAnswer::Failed(error),
            None => LastAnswer::Missing,
        };
        // Another pod may have the payload by now.
        self.service.query_soon();
        let pod = self.pods.get_mut(pod)?;
        (pod.last, pod.due) = (last, Some(Instant::now() + pod.pause));
        pod.pause = (2 * pod.pause).min(LONGEST_PAUSE);
        None
    }

    /// Notes if bytes have come since the last call from a pod whose answer is outstanding.
    fn note_bytes(&mut self, now: Instant) {
        for pod in self.pods.values_mut().filter(|pod| pod.due.is_none()) {
            let before = std::mem::replace(&mut pod.bytes, self.service.bytes(&pod.endpoint));
            if pod.bytes > before {
                self.moved = now;
            }
        }
    }

    /// Returns whether the payload was taken from a pod, and no pod has it that answers in time. A
    /// message that was delivered again may have put it on offer at another one.
    fn is_taken(&mut self, now: Instant) -> bool {
        let Some(until) = self.taken else { return false };
        if until <= now {
            self.note_bytes(now);
            let until = self.moved + HEAD_START;
            self.taken = Some(until);
            return until <= now;
        }
        let has_answered = |pod: &Pod| pod.due.is_some() && !matches!(pod.last, LastAnswer::Missing);
        self.pods.values().all(has_answered)
    }

    /// Returns why one of the pods cannot be connected, if waiting cures none of them.
    fn lasting(&self) -> Option<Arc<DialError>> {
        let failures = self.pods.values().map(|pod| match &pod.last {
            LastAnswer::Failed(error) if error.is_lasting() && pod.due.is_some() => Some(error),
            _ => None,
        });
        let failures: Vec<_> = failures.collect::<Option<_>>()?;
        failures.last().map(|&last| Arc::clone(last))
    }

    fn timed_out(&self) -> FetchError {
        let (name, reference, waited) = (self.name.to_owned(), self.reference.clone(), self.wait);
        if self.taken.is_some() {
            return FetchError::Taken { reference };
        }
        let is_unknown = |pod: &&Pod| matches!(pod.last, LastAnswer::Unknown);
        let asked = self.pods.values().filter(is_unknown).count();
        match self.pods.values().find(|pod| pod.is_named && !is_unknown(pod)) {
            _ if asked == 0 => FetchError::NoPeer { name, waited, last: self.why() },
            Some(pod) => FetchError::NoAnswer { reference, waited, last: pod.last.to_string() },
            None => FetchError::NotFound { reference, waited, asked },
        }
    }

    /// Returns why no pod of the service has answered.
    fn why(&self) -> String {
        let failed = self.pods.values().find(|pod| matches!(pod.last, LastAnswer::Failed(_)));
        match (failed.or_else(|| self.pods.values().next()), &self.known.borrow().error) {
            (Some(pod), _) => pod.last.to_string(),
            (None, Some(error)) => error.to_string(),
            (None, None) => "DNS has not answered yet".to_owned(),
        }
    }
}

impl fmt::Display for LastAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no pod has answered"),
            Self::Unknown | Self::Taken => f.write_str("no pod has the payload"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// Returns whether a reference names this endpoint, by its host name or its pod's name.
fn is_named(endpoint: &Endpoint, reference: &Reference) -> bool {
    let pod = endpoint.pod.as_ref().and_then(|pod| pod.name.as_deref());
    [Some(&*endpoint.host), pod].into_iter().flatten().any(|name| name.eq_ignore_ascii_case(reference.host()))
}
