//! Health of a watch, as its log messages, metrics and readiness show it.

use std::collections::HashMap;
use std::time::Duration;

use kube::Resource;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::problem::{Problem, ProblemKind};
use crate::metrics::KindMetrics;
use crate::{ReadyGuard, TerminalSafe};

/// Number of occurrences within an outage after which a routine problem is logged as a warning.
const ROUTINE: u32 = 4;

/// Reports the health of a watch.
///
/// An outage lasts from the first failure until a watch works again. During it, each kind of
/// problem is logged once, and at last the end of the outage.
pub(super) struct Health {
    /// `plural.group` of the watched kind.
    resource: String,
    hint: String,
    ready: Option<ReadyGuard>,
    metrics: KindMetrics,
    backoff: Backoff,
    outage: Option<Outage>,
}

/// A time without success, from the first failure on.
pub(crate) struct Outage {
    pub(crate) since: Instant,
    /// Number of problems of each kind in this outage.
    counts: HashMap<ProblemKind, u32>,
    /// Whether a problem was logged, so that the end of the outage is logged, too.
    is_logged: bool,
}

impl Outage {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), counts: HashMap::new(), is_logged: false }
    }

    /// Counts a problem. Returns whether to log it as a warning, once per kind and outage.
    pub(crate) fn record(&mut self, kind: ProblemKind) -> bool {
        let times = self.counts.entry(kind).or_default();
        *times = times.saturating_add(1);
        let log = *times == if kind.is_routine() { ROUTINE } else { 1 };
        self.is_logged |= log;
        log
    }
}

impl Health {
    pub(super) fn new<K: Resource<DynamicType = ()>>(
        hint: String,
        ready: ReadyGuard,
        metrics: KindMetrics,
    ) -> Self {
        let resource = resource::<K>();
        ready.waiting_for(format!("listing {resource}"));
        Self { resource, hint, ready: Some(ready), metrics, backoff: Backoff::default(), outage: None }
    }

    /// Reports that a list or watch failed. Returns the pause before the next attempt.
    pub(super) fn failed(&mut self, problem: &Problem) -> Duration {
        self.metrics.error(problem.kind.into());
        let text = self.explain(problem);
        if let Some(ready) = &self.ready {
            ready.waiting_for(&text);
        }
        if self.outage.get_or_insert_with(Outage::new).record(problem.kind) {
            tracing::warn!("{}", TerminalSafe(&text));
        } else {
            tracing::debug!("{}", TerminalSafe(&text));
        }
        self.backoff.pause(problem.retry_after)
    }

    /// Reports that a watch works: it has received an event, or has been open for a while.
    pub(super) fn healthy(&mut self) {
        self.backoff.reset();
        if let Some(outage) = self.outage.take()
            && outage.is_logged
        {
            let seconds = outage.since.elapsed().as_secs();
            tracing::info!("watching {} again, after {seconds} s", self.resource);
        }
    }

    /// Reports that a list is complete and committed, which makes the watch ready.
    pub(super) fn listed(&mut self) {
        if let Some(ready) = self.ready.take() {
            ready.ready();
        }
    }

    /// Returns the log message about a failed list or watch, with its remedy.
    fn explain(&self, problem: &Problem) -> String {
        let Problem { kind, message, .. } = problem;
        let resource = &self.resource;
        match kind {
            ProblemKind::Missing => format!("{kind}, {resource}; waiting for it: {}", self.hint),
            ProblemKind::Forbidden => {
                format!("{kind}; waiting for a role that grants list and watch of {resource}: {message}")
            }
            _ => format!("cannot watch {resource}: {kind}: {message}"),
        }
    }
}

/// Returns `plural.group` of a kind, the name that roles and kubectl use.
pub fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") }
}
