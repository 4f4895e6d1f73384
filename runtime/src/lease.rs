//! Leader election: of several processes that could write, one does, the one that holds a Lease.
//!
//! The algorithm is that of client-go (tools/leaderelection). The crate kube-lease-manager 0.13.1 compares wall clocks of
//! different machines, patches without a precondition, and does not tell a leader that is cut off that it has lost.
//!
//! ```text
//!              ┌───────────────── every duration / 7.5 ───────────────┐
//!              v                                                      │
//!   look at the lease ── somebody else's, changed lately ─────────────┤
//!    ^   │                                                            │
//!    │   └── free, ours, or unchanged for its duration ──> write ─────┤
//!    │                                                       │        v
//!    └── failed, or another version was there ───────────────┘   renew: write
//! ```
//!
//! - A candidate goes by how long the lease has not changed, on its own monotonic clock. Timestamps of other machines
//!   are never compared.
//! - A leader counts from the moment at which it *sent* the last renewal that succeeded, also on its own clock. So
//!   it stops before anybody else may begin, whatever it hears or does not hear; see [`Leadership`].
//! - Every write names the version that it replaces. Of two candidates one gets the lease.
//! - A lease without a holder is free at once: that is how one is given back. One that vanishes is not, as its
//!   holder may not know yet; it creates it again.
//! - A holder of our own name is taken for our predecessor when this process begins, and succeeded at once. Later it is
//!   somebody else.
//!
//! # What this does not give
//!
//! - A write that is under way when leadership ends cannot be called back by this process. [`Leadership::write_deadline`] leaves a
//!   tenth of the duration for that, and writes should be conditional on a resourceVersion besides.
//! - A machine that is suspended stops its monotonic clock.
//! - Who removes the holder from the lease by hand makes the next leader begin before the last one has noticed, which is
//!   with its next renewal.
//!
//! # What it needs
//!
//! A role that grants `create` of `leases.coordination.k8s.io`, and `get` and `update` of the one with that name.

mod election;
mod health;
mod leadership;
mod metrics;

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::election::{Answer, Election, Ownership, Request};
use self::health::LeaseHealth;
use self::leadership::Tenure;
use crate::TerminalSafe;
use crate::watch::problem::{Problem, ProblemKind};

pub use self::leadership::Leadership;
pub use self::metrics::LeaseMetrics;

/// The shortest duration. The lease itself counts in seconds.
pub const MIN_DURATION: Duration = Duration::from_secs(1);

/// The longest duration. A leader that dies without a word is not replaced before it has passed.
pub const MAX_DURATION: Duration = Duration::from_secs(3600);

/// How long a leader's request may take at most, and one of another candidate. (In shorter leases it is less.)
const LONGEST_RENEWAL: Duration = Duration::from_secs(5);
const LONGEST_REQUEST: Duration = Duration::from_secs(10);

/// Which lease to hold, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The lease's namespace. It has to exist.
    pub namespace: String,
    /// The lease's name. It is created if need be.
    pub name: String,
    /// The name of this process, which no other that runs at the same time may have: the pod's.
    pub identity: String,
    /// How long a leader that is silent stays leader for the others: from [`MIN_DURATION`] to [`MAX_DURATION`], 15 s as a
    /// rule. All else follows from it.
    pub duration: Duration,
}

/// A [`LeaseConfig`] that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Leadership could not be kept, or never be passed on.
    #[error(
        "a lease of {0:?} is not possible: choose from {min} s to {max} s",
        min = MIN_DURATION.as_secs(),
        max = MAX_DURATION.as_secs()
    )]
    Duration(Duration),
    /// A name is missing. (A holder without a name would leave the lease free.)
    #[error("the {0} of a lease is empty")]
    Empty(&'static str),
}

/// Takes part in the election for a lease.
///
/// The future runs until `shutdown` is cancelled, and then, if this process leads, goes on renewing until `stopped`
/// completes, which means that whatever asks the [`Leadership`] has ended. It then gives the lease back, so that another
/// process leads within a retry period (duration / 7.5), and ends. If the API server does not answer, that takes
/// a third of the duration at most, and not more than 5 s.
///
/// `client` should be for the lease alone: a renewal then finds a connection that is open and unused, and need not wait for one to be
/// made. That would take as long as the renewal, where the API server is slow.
///
/// If the future is dropped instead, leadership lapses as if the API server were gone.
///
/// See the [module](self) for who leads when.
///
/// # Errors
///
/// [`LeaseError`], before anything is sent.
pub fn lease(
    client: Client,
    config: LeaseConfig,
    metrics: LeaseMetrics,
    shutdown: CancellationToken,
    stopped: impl Future<Output = ()> + Send,
) -> Result<(Leadership, impl Future<Output = ()> + Send), LeaseError> {
    config.validate()?;
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
    Ok((leadership, run))
}

impl LeaseConfig {
    fn validate(&self) -> Result<(), LeaseError> {
        if !(MIN_DURATION..=MAX_DURATION).contains(&self.duration) {
            return Err(LeaseError::Duration(self.duration));
        }
        let parts = [("namespace", &self.namespace), ("name", &self.name), ("identity", &self.identity)];
        match parts.into_iter().find(|(_, text)| text.is_empty()) {
            Some((part, _)) => Err(LeaseError::Empty(part)),
            None => Ok(()),
        }
    }
}

/// What follows from a lease's duration. The proportions are client-go's: 15 s, 10 s, 2 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timing {
    duration: Duration,
    /// The duration as the lease tells it, rounded up: others should rather wait too long.
    seconds: i32,
    /// For how long after a renewal writes may begin.
    renew_deadline: Duration,
    /// By when they have to be over.
    write_deadline: Duration,
    /// The longest time from the beginning of one round of requests to that of the next, if all are answered.
    retry: Duration,
    /// How long a leader's request may take: half the time to the renew deadline, so that another attempt follows a renewal that
    /// gets no answer. An API server that takes longer than that for a request cannot be led with.
    renewal: Duration,
    /// How long a request of another candidate may take: for them nothing is urgent, and a connection may have to be made first.
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

/// Asks what the election wants to know, and tells the outcome.
struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// namespace/name
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
        // Those who still write do so under this lease.
        while self.election.holds() && timeout_at(next, stopped.as_mut()).await.is_err() {
            next = self.round(&shutdown).await;
        }
        self.stop_leading();
        if timeout(self.timing.renewal, self.release()).await.is_err() {
            tracing::warn!("could not give the lease {} back: the API server does not answer", self.title);
        }
    }

    /// One look or renewal, and what comes of it. Once `shutdown` is cancelled the lease is not sought any more.
    /// Returns when the next round begins.
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
        // Who has waited for answers in vain has waited enough: until the deadline every moment counts.
        due.max(Instant::now() + self.timing.retry / 8)
    }

    /// From one round to the next: a retry period, shortened by up to a quarter. By how much comes from the name of
    /// the process, and changes, so that candidates do not keep in step.
    fn period(&mut self) -> Duration {
        self.rounds += 1;
        let mut hasher = DefaultHasher::new();
        (&self.identity, self.rounds).hash(&mut hasher);
        let fraction = f64::from((hasher.finish() >> 32) as u32) / f64::from(u32::MAX);
        self.timing.retry.mul_f64(1.0 - fraction / 4.0)
    }

    /// Sends a request, and says what its failure means if it has failed.
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
            "" => tracing::warn!("the lease {title} has been taken from this process"),
            holder if holder == identity => tracing::warn!(
                "the lease {title} has been taken over by another process named {identity}: names have to differ"
            ),
            holder => tracing::warn!("the lease {title} has been taken over by {}", TerminalSafe(holder)),
        }
    }

    /// From now on this process does not lead. Returns whether it did.
    fn stop_leading(&self) -> bool {
        let mut led = false;
        self.tenure.send_modify(|tenure| led = tenure.lost(Instant::now()));
        led
    }

    /// Gives the lease back, if it is ours.
    async fn release(&mut self) {
        while let Some(release) = self.election.release(Timestamp::now()) {
            match self.request(&release).await {
                Answer::Lease(_) => {
                    tracing::info!("gave the lease {} back", self.title);
                    return;
                }
                // It may have been renewed by a request of ours that was given up.
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

/// Tells people who leads: in the log, and in metrics. It follows the leadership as every writer does, and so sees a
/// loss by the mere passing of time when it comes.
struct Reporter {
    title: String,
    renew_deadline: Duration,
    leadership: Leadership,
    metrics: LeaseMetrics,
    /// Leadership and term, as last told.
    reported: (bool, u64),
}

impl Reporter {
    fn new(config: &LeaseConfig, leadership: Leadership, metrics: LeaseMetrics) -> Self {
        let renew_deadline = Timing::of(config.duration).renew_deadline;
        Self { title: config.title(), renew_deadline, leadership, metrics, reported: (false, 0) }
    }

    /// Never ends.
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
                tracing::info!(term = old, "not leading any more: {title}");
            }
        }
        if leads && (!led || term != old) {
            self.metrics.gained();
            tracing::info!(term, "leading: this process holds the lease {title}");
        }
    }
}
