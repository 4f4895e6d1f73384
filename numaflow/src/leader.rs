//! Writes what each namespace needs, while this process is the leader: services, events, and resets
//! of Vertices.
//!
//! # Resets
//!
//! A Vertex with another plan than the current one has its hash emptied. Numaflow then writes its
//! spec anew, and the webhook injects the plan into that. If the webhook missed it, because it was
//! down, the pods would be replaced for nothing. So a reset follows a probe: a dry run of the same
//! write, whose result has the wanted plan only if the webhook works for this Vertex. A Vertex that
//! comes back without the plan all the same is reset a few times in a row at most, with pauses.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt as _, stream};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use multinet_crds::MultiNetworkService;
use multinet_runtime::watch::{NAMESPACE_TERMINATING, Problem, ProblemKind, has_cause};
use multinet_runtime::{Leadership, Refresh, TerminalSafe};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::index::State;
use crate::limits::writes::{
    CONCURRENCY, FRESH, LISTING, MAX_RESETS, PAUSE, PROBES_BEFORE_EVENT, REQUEST_TIME, RESET_PAUSE, TURN,
};
use crate::metrics::Metrics;
use crate::objects::{HASH, PLAN, RESET, Vertex};
use crate::reconcile::{Decision, KnownVertex, Notice, Write};

/// Value of [`HASH`] in a probe, which is never stored.
const PROBE: &str = "multinet-probe";

/// Writer of services, events and resets.
pub struct Leader {
    client: Client,
    state: Arc<State>,
    leadership: Leadership,
    /// Makes all watches list again when this process becomes the leader.
    refresh: Refresh,
    events: Events,
    metrics: Metrics,
    /// Whether the cluster has the webhook's configuration.
    has_webhook: Arc<AtomicBool>,
    /// Namespaces to look at again after a pause.
    later: BTreeSet<String>,
    /// Attempts to reset Vertices, by namespace and name.
    attempts: Mutex<HashMap<(String, String), Attempts>>,
    /// Whether the last write failed. Only the first failure in a row is logged as a warning.
    is_failing: AtomicBool,
}

/// Attempts to bring a Vertex to a plan.
#[derive(Clone, Debug, Default)]
struct Attempts {
    wanted: Option<String>,
    /// Probes in a row that the webhook missed.
    missed: u32,
    /// Last reset that this process knows of.
    last: Option<Instant>,
}

/// Change of a Vertex.
#[derive(Clone, Copy, Debug)]
enum Change<'a> {
    /// A dry run of a write by Numaflow.
    Probe,
    /// Empty the hash, and note for which plan and how often.
    Reset(&'a str),
    /// Remove that note.
    Forget,
}

/// Outcome of a write.
#[derive(Debug, Default)]
struct Outcome {
    /// Whether the namespace has to be looked at again after a pause.
    is_open: bool,
    notice: Option<Notice>,
}

/// Failure of a write.
enum Failure {
    /// This process does not lead any more.
    NotLeader,
    /// The object changed meanwhile, and the watch will show it.
    Outdated,
    Failed(Problem),
}

impl Leader {
    /// Creates the writer, which does nothing until [`run`](Self::run).
    pub fn new(
        client: Client,
        state: Arc<State>,
        (leadership, refresh): (Leadership, Refresh),
        events: Events,
        metrics: Metrics,
        has_webhook: Arc<AtomicBool>,
    ) -> Self {
        Self {
            client,
            state,
            leadership,
            refresh,
            events,
            metrics,
            has_webhook,
            later: BTreeSet::new(),
            attempts: Mutex::default(),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Writes whenever this process is the leader, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut leadership = self.leadership.clone();
        while shutdown.run_until_cancelled(leadership.changed(false)).await.is_some() {
            let term = leadership.term();
            tracing::info!(term, "this process is the leader and writes from now on");
            // Another leader may have written since.
            self.attempts.lock().clear();
            self.events.clear();
            let refresh = self.refresh.clone();
            let lead = async {
                // The watches of a standby may have died silently, for example with their
                // connections.
                refresh.refresh(FRESH, LISTING).await;
                self.state.add_all();
                self.lead().await;
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = leadership.term_ended(term) => {}
                () = lead => {}
            }
        }
    }

    async fn lead(&mut self) {
        let mut ticks = interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while let Some((namespace, decision)) = self.state.next() {
                self.work(&namespace, decision).await;
            }
            tokio::select! {
                () = self.state.changed() => {}
                _ = ticks.tick() => {
                    std::mem::take(&mut self.later).iter().for_each(|namespace| self.state.add(namespace));
                    let exists = |(namespace, name): &(String, String)| self.state.vertex(namespace, name).is_some();
                    self.attempts.lock().retain(|vertex, _| exists(vertex));
                }
            }
        }
    }

    /// Works on a namespace for one turn.
    async fn work(&mut self, namespace: &str, decision: Decision) {
        let Decision { mut writes, mut notices } = decision;
        let rest = writes.len() > TURN;
        writes.truncate(TURN);
        let this = &*self;
        let outcomes: Vec<_> = stream::iter(writes)
            .map(|write| this.write(namespace, write))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for outcome in outcomes {
            if outcome.is_open {
                self.later.insert(namespace.to_owned());
            }
            notices.extend(outcome.notice);
        }
        let more = self.events.publish(&self.state, namespace, notices, !rest).await;
        if rest || more {
            self.later.insert(namespace.to_owned());
        }
    }

    /// Sends a write. Logs a failure.
    async fn write(&self, namespace: &str, write: Write) -> Outcome {
        let open = Outcome { is_open: true, notice: None };
        match self.send(namespace, write).await {
            Ok(outcome) => {
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("writes succeed again");
                }
                outcome
            }
            Err(Failure::NotLeader) => Outcome::default(),
            Err(Failure::Outdated) => open,
            Err(Failure::Failed(Problem { kind, message, .. })) => {
                let message = TerminalSafe(&message);
                if self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::debug!(namespace, "cannot write; retrying: {kind}: {message}");
                } else {
                    tracing::warn!(namespace, "cannot write; retrying: {kind}: {message}");
                }
                open
            }
        }
    }

    async fn send(&self, namespace: &str, write: Write) -> Result<Outcome, Failure> {
        let services = Api::<MultiNetworkService>::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        match write {
            Write::Create(service) => self.call("create", services.create(&params, &service)).await.map(drop),
            Write::Replace(service) => {
                let name = service.metadata.name.clone().unwrap_or_default();
                self.call("replace", services.replace(&name, &params, &service)).await.map(drop)
            }
            Write::Delete { name, uid } => {
                let same = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams::default().preconditions(same);
                self.call("delete", services.delete(&name, &params)).await.map(drop)
            }
            Write::Reset { name, wanted } => return self.reset(namespace, &name, wanted).await,
            Write::Forget { name } => return self.forget(namespace, &name).await,
        }?;
        Ok(Outcome::default())
    }

    /// Has Numaflow write a Vertex anew, if the webhook is going to inject the wanted plan.
    async fn reset(&self, namespace: &str, name: &str, wanted: Option<String>) -> Result<Outcome, Failure> {
        let Some(vertex) = self.state.vertex(namespace, name) else { return Ok(Outcome::default()) };
        // Without a webhook, a policy or the author injects, and this program only names.
        if wanted.is_some() && !self.has_webhook.load(Ordering::Relaxed) {
            return Ok(Outcome { is_open: true, notice: None });
        }
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.attempts.lock().get(&key).filter(|known| known.wanted == wanted).cloned();
        let mut attempts =
            known.unwrap_or_else(|| Attempts { wanted: wanted.clone(), ..Attempts::default() });
        // A probe that was missed is an outage, and the count starts anew after it.
        let resets = if attempts.missed > 0 { 0 } else { vertex.resets_for(wanted.as_deref()) };
        if resets >= MAX_RESETS {
            return Ok(Outcome { is_open: false, notice: Some(not_in_effect(&vertex, name)) });
        }
        let last = *attempts.last.get_or_insert_with(Instant::now);
        if resets > 0 && last.elapsed() < RESET_PAUSE {
            self.attempts.lock().insert(key, attempts);
            return Ok(Outcome { is_open: true, notice: Some(not_in_effect(&vertex, name)) });
        }
        if wanted.is_some() && self.patch(&vertex, namespace, name, Change::Probe).await? != wanted {
            attempts.missed += 1;
            let notice = (attempts.missed >= PROBES_BEFORE_EVENT).then(|| not_in_effect(&vertex, name));
            self.attempts.lock().insert(key, attempts);
            return Ok(Outcome { is_open: true, notice });
        }
        let note = format!("{} {}", wanted.as_deref().unwrap_or("none"), resets + 1);
        self.patch(&vertex, namespace, name, Change::Reset(&note)).await?;
        attempts.missed = 0;
        attempts.last = Some(Instant::now());
        self.attempts.lock().insert(key, attempts);
        Ok(Outcome::default())
    }

    /// Removes the note about resets, once the Vertex has kept its plan for a while. A program that
    /// takes the plan away again and again thus meets the limit.
    async fn forget(&self, namespace: &str, name: &str) -> Result<Outcome, Failure> {
        let Some(vertex) = self.state.vertex(namespace, name) else { return Ok(Outcome::default()) };
        let key = (namespace.to_owned(), name.to_owned());
        let last = *self.attempts.lock().entry(key).or_default().last.get_or_insert_with(Instant::now);
        if last.elapsed() < RESET_PAUSE {
            return Ok(Outcome { is_open: true, notice: None });
        }
        self.patch(&vertex, namespace, name, Change::Forget).await?;
        Ok(Outcome::default())
    }

    /// Changes a Vertex. Returns the stamp that it has then.
    async fn patch(
        &self,
        vertex: &KnownVertex,
        namespace: &str,
        name: &str,
        change: Change<'_>,
    ) -> Result<Option<String>, Failure> {
        let (called, annotations) = match change {
            Change::Probe => ("probe", json!({ HASH: PROBE })),
            Change::Reset(note) => ("reset", json!({HASH: "", RESET: note})),
            Change::Forget => ("forget", json!({ RESET: null })),
        };
        let params = PatchParams { dry_run: matches!(change, Change::Probe), ..PatchParams::default() };
        let patch = json!({"metadata": {"resourceVersion": vertex.version, "annotations": annotations}});
        let vertices = Api::<Vertex>::namespaced(self.client.clone(), namespace);
        let mut patched = self.call(called, vertices.patch(name, &params, &Patch::Merge(&patch))).await?;
        Ok(patched.spec.metadata.annotations.remove(PLAN))
    }

    /// Sends a request within its time limit, while this process leads.
    async fn call<T>(
        &self,
        write: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        let end = self.leadership.write_deadline().ok_or(Failure::NotLeader)?;
        let answer = timeout_at(end.min(Instant::now() + REQUEST_TIME), request).await;
        self.metrics.wrote(write, matches!(answer, Ok(Ok(_))));
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Err(Failure::Outdated),
            Ok(Err(kube::Error::Api(status))) if has_cause(&status, NAMESPACE_TERMINATING) => {
                Err(Failure::Outdated)
            }
            Ok(Err(error)) => Err(Failure::Failed(error.into())),
            Err(_) if self.leadership.is_leader() => Err(Failure::Failed(Problem::new(
                ProblemKind::Silent,
                format!("no answer within {} s", REQUEST_TIME.as_secs()),
            ))),
            Err(_) => Err(Failure::NotLeader),
        }
    }
}

/// Returns the message about a Vertex that the webhook misses.
fn not_in_effect(vertex: &KnownVertex, name: &str) -> Notice {
    Notice {
        pipeline: vertex.pipeline.clone(),
        reason: "WebhookNotInEffect",
        note: format!(
            "Vertex {name} has not got its direct edges: the API server does not call the webhook for it; \
             see the log of multinet-numaflow, and kubectl get mutatingwebhookconfiguration"
        ),
    }
}
