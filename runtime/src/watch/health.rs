//! What a watch says about itself: in the log, in metrics, to whoever waits for it.

use std::time::Duration;

use kube::Resource;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::problem::{Problem, ProblemKind};
use crate::metrics::KindMetrics;
use crate::{ReadyGuard, TerminalSafe};

/// So many times the same routine problem within an outage are no routine.
const ROUTINE: u32 = 4;

/// The state of a watch, as far as people are concerned.
///
/// An outage lasts from the first failure until a watch works again. However many attempts fail during it, every
/// kind of problem is said once, and its end once.
pub(super) struct Health {
    /// `plural.group` of the kind.
    resource: String,
    hint: String,
    ready: Option<ReadyGuard>,
    metrics: KindMetrics,
    backoff: Backoff,
    outage: Option<Outage>,
}

struct Outage {
    since: Instant,
    /// How often there was which problem.
    seen: Vec<(ProblemKind, u32)>,
    /// Whether any of them was said.
    is_logged: bool,
}

impl Outage {
    fn new() -> Self {
        Self { since: Instant::now(), seen: Vec::new(), is_logged: false }
    }

    /// There was a problem. Returns whether to say so.
    fn record(&mut self, kind: ProblemKind) -> bool {
        let times = match self.seen.iter_mut().find(|(seen, _)| *seen == kind) {
            Some((_, times)) => {
                *times = times.saturating_add(1);
                *times
            }
            None => {
                self.seen.push((kind, 1));
                1
            }
        };
        let log = times == if kind.is_routine() { ROUTINE } else { 1 };
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

    /// A list or watch has failed. Returns how long to wait before the next attempt.
    pub(super) fn failed(&mut self, problem: &Problem) -> Duration {
        self.metrics.error(problem.kind.label());
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

    /// A watch works: it has told something, or has been open for a while.
    pub(super) fn healthy(&mut self) {
        self.backoff.reset();
        if let Some(outage) = self.outage.take()
            && outage.is_logged
        {
            let seconds = outage.since.elapsed().as_secs();
            tracing::info!("watching {} again, after {seconds} s", self.resource);
        }
    }

    /// A list is complete and published.
    pub(super) fn listed(&mut self) {
        if let Some(ready) = self.ready.take() {
            ready.ready();
        }
    }

    /// The problem, and what to do about it.
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

/// `plural.group` of a kind, as roles and kubectl have it.
pub(super) fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") }
}
