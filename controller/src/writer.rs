//! Applies the decisions of the [`ClusterIndex`] to the API server while this process is the
//! leader.
//!
//! ```text
//!  Queue ──> WorkItem ──> ClusterIndex::work ──> creates, updates, deletes ──> record_stored_…
//!              ▲                                   │ version conflict, or no answer
//!              │                                   └──> list ──> replace_listed ──> again
//!              └── pause ── failed <── ClusterIndex::outcome ──> status, events
//! ```
//!
//! - The controller has no request rate limit of its own. Instead it limits the number of services
//!   of a namespace that are in progress, the writes per turn of a service, and the number of
//!   concurrent requests. If that is too much for the API server, it answers with the pause that it
//!   needs, which is respected.
//! - Everything that must wait does so in a [fair queue](crate::fair_queue), not behind all the
//!   work of another namespace.
//! - One task at a time works on a service, so that the requests for an object are sent in order.
//! - Leadership is checked before every request, and a request is abandoned when leadership ends.
//! - Every write names the version that it replaces, so that even a late one cannot overwrite
//!   unseen changes. The status is written by server-side apply, which keeps conditions of other
//!   types.
//! - Addresses are added before others are removed. A ready address that moves between slices is
//!   thus never missing.

mod apply;
mod failure;
mod outages;
mod pace;
mod permits;
mod repack;
mod request;

use std::sync::Arc;

use kube::Client;
use multinet_runtime::{Leadership, ObjectKey, Refresh, TerminalSafe, drain};
use parking_lot::Mutex;
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
use crate::limits::leader::{FRESH, LISTING};
use crate::limits::writes::{FAILURES_BEFORE_STATUS, FINISH};
use crate::metrics::WriterMetrics;
use crate::queue::{Backoff, Queue, WorkItem};
use crate::work::StatusWrite;

/// Writer of slices, mirrors and statuses to the API server.
pub struct Writer {
    client: Client,
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
    leadership: Leadership,
    /// Makes all watches list again when this process becomes the leader.
    refresh: Refresh,
    events: Events,
    metrics: WriterMetrics,
    /// Permits for requests to the API server, which limit the number of concurrent ones.
    requests: Arc<Permits>,
    /// Permit for planning, of which there is one, since planning holds the index's lock.
    planning: Arc<Permits>,
    state: Mutex<WriterState>,
}

/// State of the writer that outlives a service's turn.
#[derive(Debug, Default)]
struct WriterState {
    outages: Outages,
    pace: StatusPacer,
    repack: Repack,
}

/// A service in progress, and the leadership term in which the work began.
#[derive(Clone, Copy, Debug)]
struct Job<'a> {
    service: &'a ObjectKey,
    term: u64,
}

/// Work that remains for a service's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followup {
    Done,
    /// Decide again at this time whether to write the status.
    At(Instant),
    /// Write the status again after the watch has shown the service's new version.
    Again,
}

impl Writer {
    /// Creates a writer with at most `concurrency` concurrent requests. It does nothing until
    /// [`run`](Self::run).
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

    /// Writes whenever this process is the leader, until `shutdown`. Then it finishes requests, or
    /// abandons those that take too long.
    pub async fn run(self, shutdown: CancellationToken) {
        let writer = Arc::new(self);
        let tasks = TaskTracker::new();
        let mut leadership = writer.leadership.clone();
        while shutdown.run_until_cancelled(leadership.changed(false)).await.is_some() {
            let term = leadership.term();
            Self::lead(&writer, term, &tasks, &shutdown).await;
        }
        if let Err(unfinished) = drain::finish(&tasks, FINISH).await {
            tracing::warn!("the writer abandons its requests: {unfinished}");
        }
    }

    /// Starts work on services from the queue until the leadership term ends.
    async fn lead(writer: &Arc<Self>, term: u64, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let mut leadership = writer.leadership.clone();
        let ended = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = leadership.term_ended(term) => {}
            }
        };
        let mut ended = std::pin::pin!(ended);
        // The watches of a standby may have died silently, for example with their connections.
        // Fresh lists make sure that the index is current.
        let unlisted = tokio::select! {
            () = &mut ended => return,
            unlisted = writer.refresh.refresh(FRESH, LISTING) => unlisted,
        };
        if !unlisted.is_empty() {
            let (seconds, kinds) = (LISTING.as_secs(), unlisted.join(", "));
            tracing::warn!(
                "the API server has not listed {kinds} within {seconds} s; writing with the objects known so far"
            );
        }
        // Another leader may have written since earlier decisions, so all services are planned
        // again.
        writer.queue.open();
        let services = writer.index.all_services();
        tracing::info!(term, services = services.len(), "this process is the leader and writes from now on");
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
        let mut state = writer.state.lock();
        state.outages.clear();
        state.pace.clear();
        state.repack.clear();
    }

    /// Works on a service for one turn: writes its slices, then its status and events.
    async fn work(&self, mut item: WorkItem, term: u64) {
        let begun = Instant::now();
        let service = item.service().clone();
        let job = Job { service: &service, term };
        let merges = self.state.lock().repack.is_due(&service, begun);
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
                return item.failed(failure.pause);
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
            (Err(failure), _) | (_, Err(Abandoned::Failed(failure))) => item.failed(failure.pause),
            (Ok(done), Ok(Followup::Done)) => {
                self.succeeded(&service);
                // Slices of a service that breaks a rule are never merged. Without this check they
                // would be tried forever.
                let could_merge = (done == Progress::All || !merges) && self.index.could_merge(&service);
                let repack = self.state.lock().repack.next(&service, could_merge, Instant::now());
                match repack {
                    Some(time) => item.requeue_at(time),
                    None => item.done(),
                }
            }
            (Ok(_), Ok(Followup::At(time))) => item.requeue_at(time),
            (Ok(_), Ok(Followup::Again)) => item.failed(Backoff::Service),
        }
    }

    /// Writes a service's status if its time has come. Returns what remains to do.
    async fn write_due_status(
        &self,
        job: Job<'_>,
        status: Option<StatusWrite>,
    ) -> Result<Followup, Abandoned> {
        let service = job.service;
        let urgent = status.as_ref().map(|status| status.urgent);
        let when = self.state.lock().pace.when(service, urgent, Instant::now());
        match (when, status) {
            (When::At(time), _) => Ok(Followup::At(time)),
            (When::Now, Some(status)) => {
                let next = self.write_status(job, status).await?;
                if next == Followup::Done {
                    self.state.lock().pace.written(service, Instant::now());
                }
                Ok(next)
            }
            _ => Ok(Followup::Done),
        }
    }

    /// Logs a failed write: as a warning for the first of its kind in an outage, and else for
    /// debugging.
    fn failed(&self, service: &ObjectKey, failure: &Failure) {
        self.metrics.retry(failure.reason);
        let is_news = self.state.lock().outages.failed(service, failure.reason.into(), Instant::now());
        let service = service.to_string();
        let service = TerminalSafe(&service);
        if is_news {
            tracing::warn!(%service, "cannot write slices or status of the service; retrying: {failure}");
        } else {
            tracing::debug!(%service, "cannot write slices or status of the service; retrying: {failure}");
        }
    }

    /// Logs the end of an outage when the last failing service has been written.
    fn succeeded(&self, service: &ObjectKey) {
        if let Some(outage) = self.state.lock().outages.succeeded(service, Instant::now()) {
            tracing::info!("all services are written again, after {} s", outage.as_secs());
        }
    }
}
