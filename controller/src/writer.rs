//! Has the API server know what the [`World`] has decided, for as long as this process leads.
//!
//! ```text
//!  Queue ──> Turn ──> World::work ──> creates, then updates, then deletes ──> World::stored…
//!              ▲                        │ not what we knew, or no answer
//!              │                        └──> list ──> World::refreshed ──> again
//!              └── pause ── failed <── World::outcome ──> status, events
//! ```
//!
//! - Nothing waits for a rate limit of our own. What is bounded is how many services of a namespace
//!   are in work, how much is written for one in a turn, and how many requests are under way at a
//!   time; where that is too much for the API server it says so, and gets the pause that it asks
//!   for.
//! - Whatever has to wait waits for its [turn](crate::turns), and not for all that another
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

use self::apply::{Abandoned, Done};
use self::failure::Failure;
use self::outages::Outages;
use self::pace::{Pace, When};
use self::permits::Permits;
use self::repack::Repack;
use crate::events::Events;
use crate::metrics::WriterMetrics;
use crate::queue::{Pause, Queue, Turn};
use crate::turns::Limits;
use crate::work::StatusWrite;
use crate::world::World;

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
const PATIENCE: u32 = 3;

/// Writes what the world decides.
pub struct Writer {
    client: Client,
    world: Arc<World>,
    queue: Arc<Queue>,
    leadership: Leadership,
    /// All watches that feed the world.
    refresh: Refresh,
    events: Events,
    metrics: WriterMetrics,
    /// For each request under way.
    requests: Arc<Permits>,
    /// For the one look at the world that is taken at a time.
    looks: Arc<Permits>,
    state: Mutex<State>,
}

/// What is remembered from one turn to the next.
#[derive(Debug, Default)]
struct State {
    outages: Outages,
    pace: Pace,
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
enum Next {
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
        (world, queue): (Arc<World>, Arc<Queue>),
        (leadership, refresh): (Leadership, Refresh),
        events: Events,
        metrics: WriterMetrics,
        concurrency: usize,
    ) -> Self {
        Self {
            client,
            world,
            queue,
            leadership,
            refresh,
            events,
            metrics,
            requests: Permits::new(Limits::of_requests(concurrency)),
            looks: Permits::new(Limits::ONE),
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
        let services = writer.world.all_services();
        tracing::info!(term, services = services.len(), "this process writes from now on");
        services.iter().for_each(|service| writer.queue.add(service));
        loop {
            let turn = tokio::select! {
                biased;
                () = &mut ended => break,
                turn = writer.queue.next() => turn,
            };
            let writer = Arc::clone(writer);
            tasks.spawn(async move { writer.work(turn, term).await });
        }
        writer.queue.close();
        let mut state = writer.state();
        state.outages.clear();
        state.pace.clear();
        state.repack.clear();
    }

    /// One turn of a service.
    async fn work(&self, mut turn: Turn, term: u64) {
        let begun = Instant::now();
        let service = turn.service().clone();
        let job = Job { service: &service, term };
        let merges = self.state().repack.is_due(&service, begun);
        let written = self.bring_in_step(job, merges).await;
        self.metrics.synced(begun.elapsed());
        let written = match written {
            Ok(Done::Part) => {
                self.world.given_up(&service);
                return turn.unfinished();
            }
            Ok(Done::Nothing) => Ok(Done::Nothing),
            Ok(done) => {
                turn.wrote();
                Ok(done)
            }
            Err(Abandoned::NotLeader) => return self.world.given_up(&service),
            Err(Abandoned::Failed(failure)) => Err(failure),
        };
        if let Err(failure) = &written {
            self.failed(&service, failure);
            if failure.is_passing() && turn.failures() + 1 < PATIENCE {
                return turn.failed(failure.pause());
            }
        }
        let why = written.as_ref().err().map(ToString::to_string);
        let outcome = {
            let _permit = self.looks.acquire(&service).await;
            self.world.outcome(&service, why.as_deref().map_or(Ok(()), Err))
        };
        self.events.publish(outcome.notices);
        let status = self.settle_status(job, outcome.status).await;
        if let Err(Abandoned::Failed(failure)) = &status {
            self.failed(&service, failure);
        }
        match (written, status) {
            (_, Err(Abandoned::NotLeader)) => {}
            (Err(failure), _) | (_, Err(Abandoned::Failed(failure))) => turn.failed(failure.pause()),
            (Ok(done), Ok(Next::Done)) => {
                self.succeeded(&service);
                // Some slices stay as they are, such as those of a service that breaks a rule.
                let could_merge = (done == Done::All || !merges) && self.world.could_merge(&service);
                let repack = self.state().repack.next(&service, could_merge, Instant::now());
                match repack {
                    Some(time) => turn.done_until(time),
                    None => turn.done(),
                }
            }
            (Ok(_), Ok(Next::At(time))) => turn.done_until(time),
            (Ok(_), Ok(Next::Again)) => turn.failed(Pause::Own),
        }
    }

    /// Writes a status, if it is time.
    async fn settle_status(&self, job: Job<'_>, status: Option<StatusWrite>) -> Result<Next, Abandoned> {
        let service = job.service;
        let urgent = status.as_ref().map(|status| status.urgent);
        let when = self.state().pace.when(service, urgent, Instant::now());
        match (when, status) {
            (When::At(time), _) => Ok(Next::At(time)),
            (When::Now, Some(status)) => {
                let next = self.write_status(job, status).await?;
                if next == Next::Done {
                    self.state().pace.written(service, Instant::now());
                }
                Ok(next)
            }
            _ => Ok(Next::Done),
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
