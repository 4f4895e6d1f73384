//! Leader election: of several replicas, only the one that holds a Lease may write.
//!
//! The algorithm is that of client-go (tools/leaderelection). The crate kube-lease-manager 0.13.1
//! is not used, because it compares wall clocks of different machines, patches without a
//! precondition, and does not tell a leader that is cut off that it has lost the lease.
//!
//! ```text
//!              ┌───────────────── every duration / 7.5 ───────────────┐
//!              v                                                      │
//!   read the lease ───── held by another, changed lately ─────────────┤
//!    ^   │                                                            │
//!    │   └── free, ours, or unchanged for its duration ──> write ─────┤
//!    │                                                       │        v
//!    └── failed, or another version was there ───────────────┘   renew: write
//! ```
//!
//! - A candidate measures on its own monotonic clock how long the lease has not changed. It never
//!   compares timestamps of other machines.
//! - A leader measures, on its own clock too, the time since it *sent* the last renewal that
//!   succeeded. So it stops before another candidate may begin, even if it is cut off from the API
//!   server; see [`Leadership`].
//! - Every write names the resourceVersion that it replaces, so that one of two candidates gets the
//!   lease.
//! - A lease without a holder is free at once: a leader that stops releases its lease this way. A
//!   lease that was deleted is not free at once, because its holder may not have noticed yet. The
//!   holder creates it again.
//! - When this process starts, a holder with its identity is taken for the container before a
//!   restart, and this process takes over at once. Later such a holder is another process.
//!
//! # Limits
//!
//! - A write under way when leadership ends cannot be revoked. [`Leadership::write_deadline`]
//!   leaves a tenth of the duration for it, and writes should also be conditional on a
//!   resourceVersion.
//! - While a machine is suspended, its monotonic clock stands still.
//! - If a user removes the holder from the lease by hand, the next leader may begin before the last
//!   one has noticed, which it does with its next renewal.
//!
//! # Permissions
//!
//! A role that grants `create` of `leases.coordination.k8s.io`, and `get` and `update` of the lease
//! with the configured name.

mod election;
pub mod flags;
mod health;
mod leadership;
mod metrics;

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::election::{Answer, Election, Ownership, Request};
use self::health::LeaseHealth;
use self::leadership::Tenure;
use crate::limits::lease::{LONGEST_RENEWAL, LONGEST_REQUEST};
pub use crate::limits::lease::{MAX_DURATION, MIN_DURATION};
use crate::watch::problem::{Problem, ProblemKind};
use crate::{TerminalSafe, client};

pub use self::flags::LeaseArgs;
pub use self::leadership::Leadership;
pub use self::metrics::LeaseMetrics;

/// Lease to compete for, and the identity of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Namespace of the lease, which has to exist.
    pub namespace: String,
    /// Name of the lease, which is created if it does not exist.
    pub name: String,
    /// Identity of this process, such as the pod's name; not empty, since a lease with an empty
    /// holder counts as free. No other process may have it at the same time.
    pub identity: String,
    /// Time after the last renewal until other candidates may take over: from [`MIN_DURATION`] to
    /// [`MAX_DURATION`], usually 15 s. All other times follow from it.
    pub duration: Duration,
}

/// Takes part in the election for a lease, as [`lease()`] does, by a client of its own, so that
/// writes and watches cannot delay a renewal. The caller drops the sender when all users of the
/// [`Leadership`] have ended.
///
/// # Errors
///
/// Those of [`client::connect`].
pub async fn elect(
    config: LeaseConfig,
    metrics: LeaseMetrics,
    shutdown: CancellationToken,
) -> Result<(Leadership, impl Future<Output = ()> + Send, oneshot::Sender<()>)> {
    let (users, ended) = oneshot::channel();
    // Completes when the sender is dropped, which also happens if its task panics.
    let ended = async { drop(ended.await) };
    let (leadership, election) = lease(client::connect().await?.0, config, metrics, shutdown, ended);
    Ok((leadership, election, users))
}

/// Takes part in the election for a lease. Returns the leadership, and the future that runs the
/// election.
///
/// The future runs until `shutdown` is cancelled. If this process leads then, it goes on renewing
/// until `stopped` completes, by which the caller says that all users of the [`Leadership`] have
/// ended. It then releases the lease and ends, so that another process leads within a retry period
/// (duration / 7.5). If the API server does not answer, the release takes at most a third of the
/// duration, and at most 5 s.
///
/// Use a `client` for the lease alone, so that a renewal finds an idle connection. Where the API
/// server is slow, opening a connection would take as long as the renewal.
///
/// If the future is dropped instead, leadership lapses as if the API server could not be reached.
///
/// The [module](self) describes which process leads at what time.
pub fn lease(
    client: Client,
    config: LeaseConfig,
    metrics: LeaseMetrics,
    shutdown: CancellationToken,
    stopped: impl Future<Output = ()> + Send,
) -> (Leadership, impl Future<Output = ()> + Send) {
    let (tenure, leadership) = watch::channel(Tenure::default());
    let leadership = Leadership::new(leadership);
    let mut reporter = Reporter::new(&config, leadership.clone(), metrics);
    let elector = Elector::new(client, &config, tenure);
    let run = async move {
        tokio::select! {
            biased;
            () = reporter.run() => {}
            () = elector.run(shutdown, stopped) => {}
        }
        reporter.report();
    };
    (leadership, run)
}

/// Times that follow from a lease's duration, in client-go's proportions of 15 s, 10 s and 2 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timing {
    duration: Duration,
    /// Duration in the Lease object, rounded up, so that other candidates rather wait too long.
    seconds: i32,
    /// Time after sending a renewal during which writes may begin.
    renew_deadline: Duration,
    /// Time after sending a renewal by which writes have to be done.
    write_deadline: Duration,
    /// Longest time from the start of one round of requests to the next, if all are answered.
    retry: Duration,
    /// Time limit of a leader's request: half the renew deadline, so that a renewal without an
    /// answer is followed by another attempt. With a slower API server, no process can keep the
    /// lease.
    renewal: Duration,
    /// Time limit of another candidate's request. It is longer, because nothing is urgent for a
    /// candidate, and a connection may have to be opened first.
    request: Duration,
}

impl Timing {
    fn of(duration: Duration) -> Self {
        Self {
            duration,
            seconds: i32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(i32::MAX),
            renew_deadline: duration * 2 / 3,
            write_deadline: duration * 9 / 10,
            retry: duration * 2 / 15,
            renewal: (duration / 3).min(LONGEST_RENEWAL),
            request: (duration * 2 / 3).min(LONGEST_REQUEST),
        }
    }
}

/// Sends the election's requests, and publishes the outcome as the [`Tenure`].
struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// Namespace and name of the lease, for logs.
    title: String,
    timing: Timing,
    election: Election,
    tenure: watch::Sender<Tenure>,
    health: LeaseHealth,
    rounds: u64,
}

impl Elector {
    fn new(client: Client, config: &LeaseConfig, tenure: watch::Sender<Tenure>) -> Self {
        Self {
            api: Api::namespaced(client, &config.namespace),
            name: config.name.clone(),
            identity: config.identity.clone(),
            title: config.title(),
            timing: Timing::of(config.duration),
            election: Election::new(config),
            tenure,
            health: LeaseHealth::new(config.title(), &config.namespace),
            rounds: 0,
        }
    }

    async fn run(mut self, shutdown: CancellationToken, stopped: impl Future<Output = ()>) {
        while !shutdown.is_cancelled() {
            let next = self.round(&shutdown).await;
            shutdown.run_until_cancelled(sleep_until(next)).await;
        }
        let mut stopped = pin!(stopped);
        let mut next = Instant::now();
        // Writers that have not stopped yet still depend on the lease, so keep renewing it.
        while self.election.holds() && timeout_at(next, stopped.as_mut()).await.is_err() {
            next = self.round(&shutdown).await;
        }
        self.stop_leading();
        if timeout(self.timing.renewal, self.release()).await.is_err() {
            tracing::warn!(
                "cannot release the lease {}: the API server does not answer; other replicas wait until it expires",
                self.title
            );
        }
    }

    /// Runs one round of requests: reads or renews the lease, and acts on the answers. Once
    /// `shutdown` is cancelled, it only renews a lease that is held. Returns when the next round
    /// begins.
    async fn round(&mut self, shutdown: &CancellationToken) -> Instant {
        let due = Instant::now() + self.period();
        let mut next = Some(self.election.begin_round(Timestamp::now()));
        while let Some(request) = next.take() {
            if shutdown.is_cancelled() && !self.election.holds() {
                return due;
            }
            let sent = Instant::now();
            let answer = self.request(&request).await;
            let ownership;
            (ownership, next) =
                self.election.handle_answer(&request, sent, answer, Instant::now(), Timestamp::now());
            match ownership {
                Ownership::Renewed => {
                    let timing = self.timing;
                    self.tenure.send_modify(|tenure| tenure.renewed(sent, Instant::now(), &timing));
                }
                Ownership::NotOurs => self.report_lost(),
                Ownership::Unchanged => {}
            }
        }
        self.health.end_round();
        // After a round with timeouts, which is past `due`, retry soon: the renew deadline is near.
        due.max(Instant::now() + self.timing.retry / 8)
    }

    /// Returns the time from one round to the next: the retry period, shortened by up to a quarter.
    /// A hash of identity and round number decides by how much, so that candidates do not keep in
    /// step with each other.
    fn period(&mut self) -> Duration {
        self.rounds += 1;
        let mut hasher = DefaultHasher::new();
        (&self.identity, self.rounds).hash(&mut hasher);
        let fraction = f64::from((hasher.finish() >> 32) as u32) / f64::from(u32::MAX);
        self.timing.retry.mul_f64(1.0 - fraction / 4.0)
    }

    /// Sends a request within its time limit. Logs a failure and maps it to an [`Answer`].
    async fn request(&mut self, request: &Request) -> Answer {
        let leads = self.tenure.borrow().leads(Instant::now());
        let limit = if leads { self.timing.renewal } else { self.timing.request };
        let problem = match timeout(limit, self.send(request)).await {
            Ok(Ok(lease)) if lease.metadata.resource_version.as_deref().is_none_or(str::is_empty) => {
                Problem::new(ProblemKind::Garbled, "a lease without a resourceVersion")
            }
            Ok(Ok(mut lease)) => {
                lease.metadata.managed_fields = None;
                return Answer::Lease(Box::new(lease));
            }
            Ok(Err(kube::Error::Api(status))) => match (status.code, request) {
                (404, Request::Read) => return Answer::Absent,
                (404, Request::Update(_)) | (409, _) => return Answer::Conflict,
                _ => status.into(),
            },
            Ok(Err(error)) => error.into(),
            Err(_) => Problem::new(ProblemKind::Silent, format!("no answer within {limit:?}")),
        };
        self.health.failed(request, &problem);
        Answer::Failed
    }

    async fn send(&self, request: &Request) -> kube::Result<Lease> {
        let params = PostParams::default();
        match request {
            Request::Read => self.api.get(&self.name).await,
            Request::Create(lease) => self.api.create(&params, lease).await,
            Request::Update(lease) => self.api.replace(&self.name, &params, lease).await,
        }
    }

    fn report_lost(&mut self) {
        if !self.stop_leading() {
            return;
        }
        let Self { title, identity, .. } = self;
        match self.election.holder() {
            "" => tracing::warn!(
                "the lease {title} no longer has this process as its holder: a user or another program edited it"
            ),
            holder if holder == identity => tracing::warn!(
                "the lease {title} was taken over by another process with the identity {identity}; \
                 give each process an identity of its own"
            ),
            holder => tracing::warn!("the lease {title} was taken over by {}", TerminalSafe(holder)),
        }
    }

    /// Ends this process' leadership. Returns whether it was leading.
    fn stop_leading(&self) -> bool {
        let mut led = false;
        self.tenure.send_modify(|tenure| led = tenure.lost(Instant::now()));
        led
    }

    /// Releases the lease, if this process holds it.
    async fn release(&mut self) {
        while let Some(release) = self.election.release(Timestamp::now()) {
            match self.request(&release).await {
                Answer::Lease(_) => {
                    tracing::info!("released the lease {}", self.title);
                    return;
                }
                // A renewal of ours that timed out may have succeeded after all. Read the lease
                // again.
                Answer::Conflict => {
                    let (sent, answer) = (Instant::now(), self.request(&Request::Read).await);
                    let failed = answer == Answer::Failed;
                    self.election.handle_answer(
                        &Request::Read,
                        sent,
                        answer,
                        Instant::now(),
                        Timestamp::now(),
                    );
                    if failed {
                        return;
                    }
                }
                Answer::Absent | Answer::Failed => return,
            }
        }
    }
}

impl LeaseConfig {
    fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Reports changes of leadership in the log and in metrics. It waits on the [`Leadership`] as
/// writers do, so that it also notices when leadership lapses without any request.
struct Reporter {
    title: String,
    renew_deadline: Duration,
    leadership: Leadership,
    metrics: LeaseMetrics,
    /// Leadership and term as last reported by log and metrics.
    reported: (bool, u64),
}

impl Reporter {
    fn new(config: &LeaseConfig, leadership: Leadership, metrics: LeaseMetrics) -> Self {
        let renew_deadline = Timing::of(config.duration).renew_deadline;
        Self { title: config.title(), renew_deadline, leadership, metrics, reported: (false, 0) }
    }

    /// Reports every change of leadership or term. Never returns.
    async fn run(&mut self) {
        loop {
            self.leadership.next(self.reported).await;
            self.report();
        }
    }

    fn report(&mut self) {
        let (led, old) = self.reported;
        let (leads, term) = self.leadership.now();
        self.reported = (leads, term);
        let title = &self.title;
        if led && (!leads || term != old) {
            self.metrics.lost();
            if self.leadership.has_lapsed() {
                tracing::warn!(
                    term = old,
                    "not leading: the lease {title} could not be renewed for {:?}",
                    self.renew_deadline
                );
            } else {
                tracing::info!(
                    term = old,
                    "not leading any more: this process no longer holds the lease {title}"
                );
            }
        }
        if leads && (!led || term != old) {
            self.metrics.gained();
            tracing::info!(term, "leading: this process holds the lease {title}");
        }
    }
}
