//! Has the API server know what the [`ClusterIndex`] has decided, for as long as this process leads.
//!
//! ```text
//!  Queue ──> WorkItem ──> ClusterIndex::work ──> creates, then updates, then deletes ──> ClusterIndex::stored…
//!              ▲                        │ not what we knew, or no answer
//!              │                        └──> list ──> ClusterIndex::refreshed ──> again
//!              └── pause ── failed <── ClusterIndex::outcome ──> status, events
//! ```
//!
//! - Nothing waits for a rate limit of our own. What is bounded is how many services of a namespace
//!   are in work, how much is written for one in a turn, and how many requests are under way at a
//!   time; where that is too much for the API server it says so, and gets the pause that it asks
//!   for.
//! - Whatever has to wait waits for its [turn](crate::fair_queue), and not for all that another
//!   namespace has to be done.
//! - A service is worked on by one task at a time, so that the requests for an object follow each other.
//! - Leadership is asked before every request, which is given up when it ends.
//! - Every write names the version that it replaces, so that nothing overwrites what it has not
//!   seen, even if it is late. The status is applied: conditions of other types stay.
//! - Addresses are added before others are taken away: a ready one that moves between slices is never missing.

mod apply;
mod failure;
mod outages;
mod pace;
mod permits;
mod repack;
mod request;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use multinet_runtime::{Escaped, Leadership, ObjectKey, Refresh, drain};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::apply::{Abandoned, Progress};
use self::failure::Failure;
use self::outages::Outages;
use self::pace::{StatusPacer, When};
use self::permits::Permits;
use self::repack::Repack;
use crate::events::Events;
use crate::fair_queue::Limits;
use crate::index::ClusterIndex;
use crate::metrics::WriterMetrics;
use crate::queue::{Backoff, Queue, WorkItem};
use crate::work::StatusWrite;

/// How old the lists may be that a new leader begins with: those of a process that has just started
/// need not be made again.
const FRESH: Duration = Duration::from_secs(5);

/// How long a new leader waits for lists. By then it goes on with what it knows, as a leader does
/// whose watch fails: one kind that cannot be listed should not keep all the others from being
/// written.
const LISTING: Duration = Duration::from_secs(30);

/// How long what is under way at a graceful end may take.
const FINISH: Duration = Duration::from_secs(5);

/// How often a service fails in a row, for a reason that may pass by itself, before its status says so.
const FAILURES_BEFORE_STATUS: u32 = 3;

/// Writes what the world decides.
pub struct Writer {
    client: Client,
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
    leadership: Leadership,
    /// All watches that feed the world.
    refresh: Refresh,
    events: Events,
    metrics: WriterMetrics,
    /// For each request under way.
    requests: Arc<Permits>,
    /// For the one look at the world that is taken at a time.
    planning: Arc<Permits>,
    state: Mutex<State>,
}

/// What is remembered from one turn to the next.
#[derive(Debug, Default)]
struct State {
    outages: Outages,
    pace: StatusPacer,
    repack: Repack,
}

/// A service in work, and the term in which it is.
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    service: &'a ObjectKey,
    term: u64,
}

/// What is left to do for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followup {
    /// Nothing.
    Done,
    /// Its status, then.
    At(Instant),
    /// Its status, once the watch has told what the service is now.
    Again,
}

impl Writer {
    /// A writer with at most so many requests under way at a time. It does nothing until [`run`](Self::run).
    pub fn new(
        client: Client,
        (index, queue): (Arc<ClusterIndex>, Arc<Queue>),
        (leadership, refresh): (Leadership, Refresh),
        events: Events,
        metrics: WriterMetrics,
        concurrency: usize,
    ) -> Self {
        Self {
            client,
            index,
            queue,
            leadership,
            refresh,
            events,
            metrics,
            requests: Permits::new(Limits::of_requests(concurrency)),
            planning: Permits::new(Limits::ONE),
            state: Mutex::default(),
        }
    }

    /// Writes whenever this process leads, until `shutdown`; what is under way then is finished or given up.
    pub async fn run(self, shutdown: CancellationToken) {
        let writer = Arc::new(self);
        let tasks = TaskTracker::new();
        let mut leadership = writer.leadership.clone();
        while shutdown.run_until_cancelled(leadership.changed(false)).await.is_some() {
            let term = leadership.term();
            Self::lead(&writer, term, &tasks, &shutdown).await;
        }
        if let Err(unfinished) = drain::finish(&tasks, FINISH).await {
            tracing::warn!("writes are given up: {unfinished}");
        }
    }

    /// Takes services from the queue for as long as the term lasts.
    async fn lead(writer: &Arc<Self>, term: u64, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let mut leadership = writer.leadership.clone();
        let ended = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = leadership.ended(term) => {}
            }
        };
        let mut ended = std::pin::pin!(ended);
        // A standby may long have heard nothing without knowing: a connection can die without a word.
        let unlisted = tokio::select! {
            () = &mut ended => return,
            unlisted = writer.refresh.refresh(FRESH, LISTING) => unlisted,
        };
        if !unlisted.is_empty() {
            let (seconds, kinds) = (LISTING.as_secs(), unlisted.join(", "));
            tracing::warn!("not listed within {seconds} s: {kinds}; what was known of them before counts");
        }
        // Whatever was decided before may have been overtaken by somebody else's term.
        writer.queue.open();
        let services = writer.index.all_services();
        tracing::info!(term, services = services.len(), "this process writes from now on");
        services.iter().for_each(|service| writer.queue.add(service));
        loop {
            let item = tokio::select! {
                biased;
                () = &mut ended => break,
                item = writer.queue.next() => item,
            };
            let writer = Arc::clone(writer);
            tasks.spawn(async move { writer.work(item, term).await });
        }
        writer.queue.close();
        let mut state = writer.state();
        state.outages.clear();
        state.pace.clear();
        state.repack.clear();
    }

    /// One turn of a service.
    async fn work(&self, mut item: WorkItem, term: u64) {
        let begun = Instant::now();
        let service = item.service().clone();
        let job = Job { service: &service, term };
        let merges = self.state().repack.is_due(&service, begun);
        let written = self.sync_slices(job, merges).await;
        self.metrics.synced(begun.elapsed());
        let written = match written {
            Ok(Progress::Part) => {
                self.index.abandon(&service);
                return item.requeue();
            }
            Ok(Progress::Nothing) => Ok(Progress::Nothing),
            Ok(done) => {
                item.record_write();
                Ok(done)
            }
            Err(Abandoned::NotLeader) => return self.index.abandon(&service),
            Err(Abandoned::Failed(failure)) => Err(failure),
        };
        if let Err(failure) = &written {
            self.failed(&service, failure);
            if failure.is_passing() && item.failures() + 1 < FAILURES_BEFORE_STATUS {
                return item.failed(failure.pause());
            }
        }
        let why = written.as_ref().err().map(ToString::to_string);
        let outcome = {
            let _permit = self.planning.acquire(&service).await;
            self.index.outcome(&service, why.as_deref().map_or(Ok(()), Err))
        };
        self.events.publish(outcome.notices);
        let status = self.write_due_status(job, outcome.status).await;
        if let Err(Abandoned::Failed(failure)) = &status {
            self.failed(&service, failure);
        }
        match (written, status) {
            (_, Err(Abandoned::NotLeader)) => {}
            (Err(failure), _) | (_, Err(Abandoned::Failed(failure))) => item.failed(failure.pause()),
            (Ok(done), Ok(Followup::Done)) => {
                self.succeeded(&service);
                // Some slices stay as they are, such as those of a service that breaks a rule.
                let could_merge = (done == Progress::All || !merges) && self.index.could_merge(&service);
                let repack = self.state().repack.next(&service, could_merge, Instant::now());
                match repack {
                    Some(time) => item.requeue_at(time),
                    None => item.done(),
                }
            }
            (Ok(_), Ok(Followup::At(time))) => item.requeue_at(time),
            (Ok(_), Ok(Followup::Again)) => item.failed(Backoff::Service),
        }
    }

    /// Writes a status, if it is time.
    async fn write_due_status(
        &self,
        job: Job<'_>,
        status: Option<StatusWrite>,
    ) -> Result<Followup, Abandoned> {
        let service = job.service;
        let urgent = status.as_ref().map(|status| status.urgent);
        let when = self.state().pace.when(service, urgent, Instant::now());
        match (when, status) {
            (When::At(time), _) => Ok(Followup::At(time)),
            (When::Now, Some(status)) => {
                let next = self.write_status(job, status).await?;
                if next == Followup::Done {
                    self.state().pace.written(service, Instant::now());
                }
                Ok(next)
            }
            _ => Ok(Followup::Done),
        }
    }

    /// Says in the log that a service could not be written, unless the like has been said.
    fn failed(&self, service: &ObjectKey, failure: &Failure) {
        self.metrics.retry(failure.reason);
        let is_news = self.state().outages.failed(service, failure.reason.label(), Instant::now());
        let service = service.to_string();
        let service = Escaped(&service);
        if is_news {
            tracing::warn!(%service, "cannot write; trying again: {failure}");
        } else {
            tracing::debug!(%service, "cannot write; trying again: {failure}");
        }
    }

    /// Says in the log that all services are written, if that is news.
    fn succeeded(&self, service: &ObjectKey) {
        if let Some(outage) = self.state().outages.succeeded(service, Instant::now()) {
            tracing::info!("all services are written again, after {} s", outage.as_secs());
        }
    }

    /// No code panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
