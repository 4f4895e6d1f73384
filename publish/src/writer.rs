//! Writes the keys to etcd while this process leads.
//!
//! ```text
//!   lead ──> connect ──> own the prefix ──> list ──> write all ──> write changes ─┐
//!              ^               │                                        │         │
//!              │               └─ another owner: end with an error      └─────────┤
//!              └── failure, conflict, or four minutes: pause, and once more ──────┘
//! ```

use std::sync::Arc;
use std::time::Duration;

use multinet_runtime::{Leadership, Readiness};
use tokio::select;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::etcd::{Etcd, EtcdConfig, EtcdError};
use crate::index::{ClusterIndex, Objects};
use crate::keys;
use crate::limits::etcd::{CHANGES, LONGEST_PAUSE, RELIST, SHORTEST_PAUSE};
use crate::metrics::WriterMetrics;
use crate::quota::LeftOut;
use crate::store::{Change, Store};

/// Key below which the owners of prefixes are.
const OWNERS: &str = "/multinet/owner";

/// Name under which `/readyz` notes problems.
const NOTE: &str = "etcd";

/// Configuration of the writer.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Where etcd is.
    pub etcd: EtcdConfig,
    /// Key that all others are below, without a slash at its end.
    pub prefix: String,
    /// Name that owns the prefix.
    pub owner: String,
    /// Whether to replace another owner at the start.
    pub take_over: bool,
}

/// Error that only the operator can resolve: the prefix belongs to another owner.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prefix {prefix} in etcd belongs to {found:?}, and this program writes for {ours:?}: give another --prefix, \
     or --take-over if that cluster is gone"
)]
pub struct ForeignOwner {
    prefix: String,
    found: String,
    ours: String,
}

/// Reason why the writer stops writing.
#[derive(Debug, thiserror::Error)]
enum Stop {
    /// Leadership has ended.
    #[error("leadership has ended")]
    TermEnded,
    #[error(transparent)]
    Foreign(#[from] ForeignOwner),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// Writer of all keys.
pub struct Writer {
    config: WriterConfig,
    index: Arc<ClusterIndex>,
    leadership: Leadership,
    readiness: Readiness,
    metrics: WriterMetrics,
    /// Number of attempts to connect, which chooses the member to begin with.
    attempts: usize,
    failures: u32,
    /// Whether the present failure has been logged.
    is_warned: bool,
    /// Keys of other programs that have been logged.
    reported: usize,
    /// Key that CoreDNS cannot read, which has been logged.
    unreadable: Option<String>,
}

impl Writer {
    /// Makes a writer. It writes nothing before [`run`](Self::run).
    pub fn new(
        config: WriterConfig,
        index: Arc<ClusterIndex>,
        leadership: Leadership,
        readiness: Readiness,
        metrics: WriterMetrics,
    ) -> Self {
        Self {
            config,
            index,
            leadership,
            readiness,
            metrics,
            attempts: 0,
            failures: 0,
            is_warned: false,
            reported: 0,
            unreadable: None,
        }
    }

    /// Writes until `shutdown`, whenever this process leads.
    ///
    /// # Errors
    ///
    /// [`ForeignOwner`], if the prefix belongs to another owner.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ForeignOwner> {
        while !shutdown.is_cancelled() {
            if !self.leadership.is_leader() {
                self.metrics.keys.set(0);
                self.show(LeftOut::default());
                self.metrics.connected.set(0);
                self.readiness.note(NOTE, None);
                let mut leadership = self.leadership.clone();
                shutdown.run_until_cancelled(leadership.changed(false)).await;
                continue;
            }
            match self.lead(&shutdown).await {
                Err(Stop::TermEnded) => {}
                Err(Stop::Foreign(error)) => return Err(error),
                Err(Stop::Etcd(error)) => {
                    let pause = self.failed(&error);
                    shutdown.run_until_cancelled(sleep(pause)).await;
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Logs and counts a failure. Returns the pause that should follow.
    fn failed(&mut self, error: &EtcdError) -> Duration {
        self.failures += 1;
        if let EtcdError::Conflict = error {
            self.metrics.transaction("conflict");
            if self.failures == 1 {
                info!("keys in etcd were changed by another program; listing them again");
                return Duration::ZERO;
            }
        } else {
            self.attempts += 1;
            self.metrics.transaction("failed");
            self.metrics.connected.set(0);
            self.readiness.note(NOTE, Some(error.to_string()));
            if !std::mem::replace(&mut self.is_warned, true) {
                warn!("cannot write to etcd, and CoreDNS keeps the keys that it has: {error}; retrying");
            }
        }
        SHORTEST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE)
    }

    /// Notes that all keys are up to date.
    fn succeeded(&mut self) {
        self.metrics.connected.set(1);
        self.failures = 0;
        if std::mem::take(&mut self.is_warned) {
            self.readiness.note(NOTE, None);
            info!("etcd is up to date again");
        }
    }

    /// Writes all keys, then changes, until it is time to list again.
    async fn lead(&mut self, shutdown: &CancellationToken) -> Result<(), Stop> {
        let term = self.leadership.term();
        let mut etcd = self.within_term(term, Etcd::connect(&self.config.etcd, self.attempts)).await?;
        self.own(&mut etcd, term).await?;
        let mut store = self.list(&mut etcd, term).await?;
        let Some(changes) = self.index.read(|objects| {
            // All slots are planned.
            objects.take_changed();
            store.plan_all(objects)
        }) else {
            // A list is being received. Its end wakes this task.
            shutdown.run_until_cancelled(self.index.changed.notified()).await;
            return Ok(());
        };
        self.write(&mut etcd, &mut store, term, changes).await?;
        self.succeeded();
        self.report(&store);
        let relist = Instant::now() + RELIST;
        let mut leadership = self.leadership.clone();
        loop {
            select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = leadership.term_ended(term) => return Err(Stop::TermEnded),
                () = self.index.changed.notified() => {}
                () = sleep_until(relist) => return Ok(()),
            }
            let Some(changes) = self.index.read(|objects| plan(objects, &mut store)) else { continue };
            self.write(&mut etcd, &mut store, term, changes).await?;
            self.report(&store);
        }
    }

    /// Makes sure that the prefix belongs to the configured owner. Once it does, an owner that
    /// replaces this one is not replaced again, or two would fight for ever.
    async fn own(&mut self, etcd: &mut Etcd, term: u64) -> Result<(), Stop> {
        let (key, ours) = (self.owner_key(), self.config.owner.clone());
        let found = self.within_term(term, etcd.get(&key)).await?;
        match &found {
            Some(found) if *found == ours.as_bytes() => {
                self.config.take_over = false;
                return Ok(());
            }
            Some(found) if !self.config.take_over => {
                let found = String::from_utf8_lossy(found).into_owned();
                return Err(ForeignOwner { prefix: self.config.prefix.clone(), found, ours }.into());
            }
            _ => {}
        }
        self.within_term(term, etcd.replace(&key, found.as_deref(), &ours)).await?;
        self.config.take_over = false;
        let before = found.map(|found| String::from_utf8_lossy(&found).into_owned());
        match before {
            Some(before) => warn!(prefix = self.config.prefix, before, owner = ours, "took the prefix over"),
            None => info!(prefix = self.config.prefix, owner = ours, "own the prefix"),
        }
        Ok(())
    }

    fn owner_key(&self) -> String {
        format!("{OWNERS}{}", self.config.prefix)
    }

    /// Lists all keys below the prefix.
    async fn list(&mut self, etcd: &mut Etcd, term: u64) -> Result<Store, Stop> {
        let mut store = Store::default();
        let prefix = format!("{}/", self.config.prefix);
        let mut unreadable: Option<String> = None;
        let each = |key: String, value: Vec<u8>, revision| {
            if !keys::is_readable(&value) {
                unreadable.get_or_insert_with(|| key.clone());
            }
            store.add(key, value, revision);
        };
        self.within_term(term, etcd.list(&prefix, each)).await?;
        self.metrics.lists.inc();
        if unreadable != self.unreadable {
            self.unreadable = unreadable;
            if let Some(key) = &self.unreadable {
                warn!(
                    key,
                    "CoreDNS cannot read the value of this key, and answers SERVFAIL for the names above: remove it"
                );
            }
        }
        Ok(store)
    }

    /// Sends changes in transactions.
    async fn write(
        &mut self,
        etcd: &mut Etcd,
        store: &mut Store,
        term: u64,
        mut changes: Vec<Change>,
    ) -> Result<(), Stop> {
        let owner = self.owner_key();
        while !changes.is_empty() {
            let rest = changes.split_off(changes.len().min(CHANGES));
            let change = etcd.change((&owner, &self.config.owner), &changes);
            let revision = self.within_term(term, change).await?;
            let puts = changes.iter().filter(|change| change.value.is_some()).count();
            self.metrics.written(puts, changes.len() - puts);
            store.written(changes, revision);
            changes = rest;
        }
        Ok(())
    }

    /// Shows in the metrics what has no keys because of a limit.
    fn show(&self, left_out: LeftOut) {
        self.metrics.left_out_services.set(number(left_out.services));
        self.metrics.left_out_endpoints.set(number(left_out.endpoints));
    }

    /// Shows the store in the metrics, and logs keys that another program has.
    fn report(&mut self, store: &Store) {
        self.metrics.keys.set(number(store.len()));
        if let Some(left_out) = self.index.read(|objects| objects.left_out()) {
            self.show(left_out);
        }
        let blocked = store.blocked();
        self.metrics.blocked.set(number(blocked.len()));
        if blocked.len() > self.reported
            && let Some(key) = blocked.first()
        {
            warn!(
                key,
                keys = blocked.len(),
                "another program has keys of names of ours, which are left alone: remove them, or give another --prefix"
            );
        }
        self.reported = blocked.len();
    }

    /// Runs a request as long as this process leads in this term. A request that is abandoned may
    /// still be carried out. It then changes nothing that a later leader has seen, since it names
    /// the version of each key.
    async fn within_term<T>(
        &self,
        term: u64,
        request: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, Stop> {
        let mut leadership = self.leadership.clone();
        select! {
            biased;
            () = leadership.term_ended(term) => Err(Stop::TermEnded),
            outcome = request => Ok(outcome?),
        }
    }
}

/// Returns a count as a gauge has it.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Plans the changes of all slots that have changed.
fn plan(objects: &mut Objects, store: &mut Store) -> Vec<Change> {
    let mut changes = Vec::new();
    for slot in objects.take_changed() {
        store.plan(objects, &slot, &mut changes);
    }
    changes
}
