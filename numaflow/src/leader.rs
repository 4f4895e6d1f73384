//! Writes what each namespace needs, while this process is the leader: services, events, and resets
//! of Vertices.
//!
//! # Resets
//!
//! A Vertex with another plan than the current one has its hash emptied. Numaflow then writes its
//! spec anew, and the webhook injects the plan into that. If the webhook missed it, because it was
//! down, the pods would be replaced for nothing. So a reset follows a probe: a dry run of the same
//! write, whose result has the wanted plan only if the webhook works for this Vertex. The module
//! [`attempts`](crate::attempts) decides how often.

use std::collections::HashMap;
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
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::attempts::Attempts;
use crate::events::Events;
use crate::index::State;
use crate::limits::annotations::MAX_TEXT;
use crate::limits::writes::{CONCURRENCY, FRESH, LISTING, REQUEST_TIME, TURN};
use crate::metrics::Metrics;
use crate::objects::{HASH, PLAN, Vertex};
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
    /// Attempts to reset Vertices, by namespace and name.
    attempts: Mutex<HashMap<(String, String), Attempts>>,
    /// Whether the last write failed. Only the first failure in a row is logged as a warning.
    is_failing: AtomicBool,
}

/// Change of a Vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// A dry run of a write by Numaflow.
    Probe,
    /// Empty the hash.
    Reset,
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
                self.state.start_over();
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
        loop {
            let (namespace, decision) = self.state.turn().await;
            if self.work(&namespace, decision).await {
                self.state.postpone(&namespace);
            }
        }
    }

    /// Works on a namespace for one turn. Returns whether it needs another one after a pause.
    async fn work(&mut self, namespace: &str, decision: Decision) -> bool {
        self.forget_attempts(namespace);
        let Decision { mut writes, mut notices, retry: _ } = decision;
        let rest = writes.len() > TURN;
        writes.truncate(TURN);
        let this = &*self;
        let outcomes: Vec<_> = stream::iter(writes)
            .map(|write| this.write(namespace, write))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut is_open = rest || this.attempts.lock().keys().any(|(of, _)| of == namespace);
        for outcome in outcomes {
            is_open |= outcome.is_open;
            notices.extend(outcome.notice);
        }
        self.events.publish(&self.state, namespace, notices, !rest).await || is_open
    }

    /// Removes the attempts in a namespace that do not matter any more.
    fn forget_attempts(&self, namespace: &str) {
        let now = Instant::now();
        self.attempts.lock().retain(|(of, name), attempts| {
            let vertex = || self.state.vertex(namespace, name);
            of != namespace || vertex().is_some_and(|vertex| attempts.matter(&vertex, now))
        });
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
        let (service, answer) = match &write {
            Write::Create(service) => (service, self.call("create", services.create(&params, service)).await),
            Write::Replace(service) => {
                let name = service.metadata.name.as_deref().unwrap_or_default();
                (service, self.call("replace", services.replace(name, &params, service)).await)
            }
            Write::Delete { name, uid } => {
                let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
                let params = DeleteParams::default().preconditions(same);
                return self.call("delete", services.delete(name, &params)).await.map(|_| Outcome::default());
            }
            Write::Reset { name, wanted } => return self.reset(namespace, name, wanted.as_deref()).await,
        };
        match answer {
            Err(Failure::Failed(problem)) if is_refusal(&problem) => {
                self.refused(namespace, service, &problem.message);
            }
            answer => drop(answer?),
        }
        Ok(Outcome::default())
    }

    /// Records that the API server refuses a service, which the state retries and reports.
    fn refused(&self, namespace: &str, service: &MultiNetworkService, message: &str) {
        if self.state.refused(namespace, service, message) {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let message = TerminalSafe(message);
            tracing::warn!(
                "the API server refuses MultiNetworkService {namespace}/{name}; retrying: {message}"
            );
        }
    }

    /// Has Numaflow write a Vertex anew, if the webhook is going to inject the wanted plan.
    async fn reset(&self, namespace: &str, name: &str, wanted: Option<&str>) -> Result<Outcome, Failure> {
        let Some(vertex) = self.state.vertex(namespace, name) else { return Ok(Outcome::default()) };
        // Without a webhook, a policy or the author injects, and this program only names.
        if wanted.is_some() && !self.has_webhook.load(Ordering::Relaxed) {
            return Ok(Outcome { is_open: true, notice: None });
        }
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.attempts.lock().remove(&key);
        let mut attempts = Attempts::for_plan(known, wanted);
        let tried = match self.try_reset(&vertex, (namespace, name), &mut attempts, wanted).await {
            Err(Failure::Failed(problem)) if is_refusal(&problem) => {
                let message = TerminalSafe(&problem.message);
                if attempts.refused(&problem.message) {
                    tracing::warn!(
                        "the API server refuses to change Vertex {namespace}/{name}; retrying: {message}"
                    );
                }
                Ok(())
            }
            tried => tried,
        };
        let notice = match attempts.refusal() {
            Some(message) => Some(refused(&vertex, name, message)),
            None => attempts.are_in_vain(&vertex).then(|| not_in_effect(&vertex, name)),
        };
        self.attempts.lock().insert(key, attempts);
        tried?;
        Ok(Outcome { is_open: true, notice })
    }

    /// Resets a Vertex if that is due, and a probe succeeds.
    async fn try_reset(
        &self,
        vertex: &KnownVertex,
        (namespace, name): (&str, &str),
        attempts: &mut Attempts,
        wanted: Option<&str>,
    ) -> Result<(), Failure> {
        if !attempts.are_due(vertex, Instant::now()) {
            return Ok(());
        }
        // What a removed edge has left goes without the webhook.
        let is_in_effect = wanted.is_none()
            || self.patch(vertex, namespace, name, Change::Probe).await?.as_deref() == wanted;
        if attempts.probed(is_in_effect, Instant::now()) {
            self.patch(vertex, namespace, name, Change::Reset).await?;
            attempts.reset(vertex, Instant::now());
            tracing::info!("reset Vertex {namespace}/{name}, for Numaflow to write it anew with its plan");
        }
        Ok(())
    }

    /// Changes a Vertex. Returns the stamp that it has then.
    async fn patch(
        &self,
        vertex: &KnownVertex,
        namespace: &str,
        name: &str,
        change: Change,
    ) -> Result<Option<String>, Failure> {
        let (called, hash) = match change {
            Change::Probe => ("probe", PROBE),
            Change::Reset => ("reset", ""),
        };
        let params = PatchParams { dry_run: change == Change::Probe, ..PatchParams::default() };
        let annotations = json!({ HASH: hash });
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

/// Returns whether the API server refuses a write, for example by a policy.
fn is_refusal(problem: &Problem) -> bool {
    matches!(problem.kind, ProblemKind::Forbidden | ProblemKind::Refused)
}

/// Returns the message about a Vertex that the API server refuses to change.
fn refused(vertex: &KnownVertex, name: &str, message: &str) -> Notice {
    let mut note = format!(
        "Vertex {name} is not written anew for its direct edges: the API server refuses that; correct the policy or \
         role that is at fault; trying again: {}",
        TerminalSafe(message)
    );
    note.truncate(note.floor_char_boundary(MAX_TEXT));
    Notice { pipeline: vertex.pipeline.clone(), reason: "VertexRefused", note }
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

#[cfg(test)]
mod tests;
