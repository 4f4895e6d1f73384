//! Publishes notices as Kubernetes events of the objects that they concern, which `kubectl
//! describe` shows.
//!
//! Events are best effort, and nothing else waits for them. One task writes them. Each namespace
//! has a short queue, and the task serves the namespaces in [turn](crate::fair_queue). A notice is
//! only counted as lost if its queue is full, or if its object had too many events recently. A
//! notice that repeats within six minutes updates its event's count (a series).
//!
//! (`kube::runtime::events::Recorder` is not used. It treats all notices with the same reason and
//! object as repetitions, even if their texts differ. For an object whose name exceeds 230
//! characters, its events are invalid.)

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use multinet_runtime::watch::{NAMESPACE_TERMINATING, Problem, has_cause};
use multinet_runtime::{Leadership, ObjectKey, TerminalSafe};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::fair_queue::FairQueue;
use crate::limits::events::{BURST, INTERVAL, QUEUE, REMEMBERED, REQUEST_TIME, SERIES};
use crate::rate_limiter::RateLimiter;
use crate::work::Notice;

/// Longest name of an event that the API server accepts, in bytes.
const MAX_NAME: usize = 253;

/// Longest note of an event that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// Longest `reportingInstance` of an event that the API server accepts, in bytes.
const MAX_INSTANCE: usize = 128;

/// Value of the events' `reportingController`.
const CONTROLLER: &str = "multinet-controller";

/// Value of the events' `action`.
const ACTION: &str = "PublishEndpoints";

/// Sender of notices to the [`Publisher`], which writes them as Kubernetes events.
#[derive(Clone, Debug)]
pub struct Events {
    waiting: Waiting,
    /// Wakes the publisher when notices have been queued.
    wake: mpsc::Sender<()>,
    lost: Counter,
}

/// Notices that wait for the [`Publisher`], by namespace and object.
#[derive(Clone, Debug, Default)]
struct Waiting(Arc<Mutex<FairQueue<Notice>>>);

/// Task that writes notices as Kubernetes events.
pub struct Publisher {
    client: Client,
    waiting: Waiting,
    wake: mpsc::Receiver<()>,
    leadership: Leadership,
    /// Identity of this process, which events name as `reportingInstance`.
    instance: String,
    series: HashMap<SeriesKey, Series>,
    /// Limits the rate of events per object.
    limiter: RateLimiter<ObjectKey>,
    lost: Counter,
    /// Whether the last write of an event failed. Only the first failure in a row is logged.
    is_failing: bool,
}

/// Key of a series of equal events: object, reason and text.
type SeriesKey = (ObjectKey, String, String);

#[derive(Clone, Debug)]
struct Series {
    name: String,
    count: i32,
    last: Instant,
}

/// Creates the sender of notices, and the task that writes them while this process is the leader.
/// `instance` is the identity of this process.
pub fn events(client: Client, leadership: Leadership, instance: &str, lost: Counter) -> (Events, Publisher) {
    let (send, wake) = mpsc::channel(1);
    let waiting = Waiting::default();
    let publisher = Publisher {
        client,
        waiting: waiting.clone(),
        wake,
        leadership,
        instance: cut(instance, MAX_INSTANCE).to_owned(),
        series: HashMap::new(),
        limiter: RateLimiter::new(BURST, INTERVAL),
        lost: lost.clone(),
        is_failing: false,
    };
    (Events { waiting, wake: send, lost }, publisher)
}

impl Events {
    /// Queues the notices for the publisher. Never blocks: counts notices without room as lost.
    pub fn publish(&self, notices: Vec<Notice>) {
        for notice in notices {
            if !self.waiting.push(notice) {
                self.lost.inc();
            }
        }
        // If the channel is full, the publisher is going to wake up anyway.
        let _ = self.wake.try_send(());
    }
}

impl Waiting {
    /// Queues a notice. Returns false if the queue of its namespace is full.
    fn push(&self, notice: Notice) -> bool {
        let object = identity(&notice.regarding);
        let mut turns = self.0.lock();
        let has_room = turns.waiting_of(&object.namespace) < QUEUE;
        if has_room {
            turns.push(&object, notice);
        }
        has_room
    }

    /// Removes and returns the next notice, with the key of its object; `None` if no notice waits.
    fn take(&self) -> Option<(ObjectKey, Notice)> {
        let mut turns = self.0.lock();
        let (object, notice) = turns.begin()?;
        turns.end(&object);
        Some((object, notice))
    }
}

impl Publisher {
    /// Writes events until all [`Events`] are dropped.
    pub async fn run(mut self) {
        loop {
            while let Some((object, notice)) = self.waiting.take() {
                self.publish(object, notice).await;
            }
            if self.wake.recv().await.is_none() {
                return;
            }
        }
    }

    async fn publish(&mut self, object: ObjectKey, notice: Notice) {
        let Some(end) = self.leadership.write_deadline() else { return };
        let now = Instant::now();
        if self.limiter.next(&object, now) > now {
            self.lost.inc();
            return;
        }
        let deadline = end.min(now + REQUEST_TIME);
        let written = timeout_at(deadline, self.write(&object, notice, Timestamp::now())).await;
        self.limiter.consume(object, now);
        let problem = match written {
            Ok(Ok(())) => {
                self.is_failing = false;
                return;
            }
            Ok(Err(kube::Error::Api(status))) if has_cause(&status, NAMESPACE_TERMINATING) => return,
            Ok(Err(error)) => {
                let Problem { kind, message, .. } = Problem::from(error);
                format!("{kind}: {message}")
            }
            // Another process may lead by then. It publishes the notice again if it still applies.
            Err(_) if deadline == end => {
                self.lost.inc();
                return;
            }
            Err(_) => format!("no answer within {} s", REQUEST_TIME.as_secs()),
        };
        self.lost.inc();
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                "cannot write events to Kubernetes (events.k8s.io); they are lost: {}",
                TerminalSafe(&problem)
            );
        }
    }

    async fn write(&mut self, object: &ObjectKey, notice: Notice, now: Timestamp) -> kube::Result<()> {
        let namespace = object.namespace.clone();
        let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let key = (object.clone(), notice.reason.clone(), notice.note.clone());
        self.series.retain(|_, series| series.last.elapsed() < SERIES);
        if let Some(known) = self.series.get_mut(&key) {
            let series = EventSeries { count: known.count + 1, last_observed_time: MicroTime(now) };
            let patch = Patch::Merge(json!({ "series": series }));
            match api.patch(&known.name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    known.count += 1;
                    known.last = Instant::now();
                    return Ok(());
                }
                // The API server deletes events after an hour.
                Err(kube::Error::Api(status)) if status.code == 404 => drop(self.series.remove(&key)),
                Err(error) => return Err(error),
            }
        }
        let event = event(notice, namespace, &self.instance, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
        if self.series.len() >= REMEMBERED {
            // Further repetitions become separate events. That is better than unbounded memory.
            self.series.clear();
        }
        self.series.insert(key, Series { name, count: 1, last: Instant::now() });
        Ok(())
    }
}

/// Returns a key for an object: its namespace, and its kind, name and uid.
fn identity(regarding: &ObjectReference) -> ObjectKey {
    let part = |field: &Option<String>| field.clone().unwrap_or_default();
    ObjectKey {
        namespace: regarding.namespace.clone().unwrap_or_else(|| "default".to_owned()),
        name: [&regarding.kind, &regarding.name, &regarding.uid].map(part).join("/"),
    }
}

fn event(notice: Notice, namespace: String, instance: &str, now: Timestamp) -> Event {
    let suffix = format!(".{:x}", now.as_nanosecond());
    let name = notice.regarding.name.as_deref().unwrap_or(CONTROLLER);
    Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}{suffix}",
                cut(name, MAX_NAME - suffix.len()).trim_end_matches(['.', '-'])
            )),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        action: Some(ACTION.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(&notice.note, MAX_NOTE).to_owned()),
        reason: Some(notice.reason),
        regarding: Some(notice.regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    }
}

/// Returns the longest prefix of `text` that has at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stays_within_the_limits_of_the_api_server() {
        let regarding = ObjectReference { name: Some("x.".repeat(126) + "y"), ..ObjectReference::default() };
        let notice = Notice { regarding, reason: "AddressConflict".into(), note: "é".repeat(1000) };
        let event = event(notice, "vision".into(), "pod", Timestamp::UNIX_EPOCH);
        let name = event.metadata.name.unwrap();
        assert!(name.len() <= MAX_NAME && name.ends_with("x.0"), "{name}");
        assert_eq!(event.note.unwrap().len(), MAX_NOTE);
        assert_eq!(
            (event.type_.as_deref(), event.metadata.namespace.as_deref()),
            (Some("Warning"), Some("vision"))
        );
    }
}
