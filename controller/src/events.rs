//! What people should see, as events of the objects that it is about: `kubectl describe` shows them.
//!
//! Events are a courtesy. They wait for one task that writes them, those of a namespace in a short
//! queue, and namespaces take [turns](crate::fair_queue). What finds its queue full is only counted, and
//! so is what an object has too many of: nothing else ever waits for events. One that repeats
//! within six minutes becomes a series: one object with a count.
//!
//! (`kube::runtime::events::Recorder` is not used: it takes notices of one reason about one object
//! for repetitions whatever they say, and an object's name of more than 230 characters makes its
//! events invalid.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use multinet_runtime::watch::{NAMESPACE_TERMINATING, Problem, has_cause};
use multinet_runtime::{Escaped, Leadership, ObjectKey};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::fair_queue::FairQueue;
use crate::rate_limiter::RateLimiter;
use crate::work::Notice;

/// How many notices of a namespace wait at most.
const QUEUE: usize = 64;

/// How many events an object gets in a row, and how much time passes then between two, as in
/// client-go: what people change by hand is less, and an annotation that a program has flip all the
/// time is told of often enough.
const BURST: u32 = 25;
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// How long the API server may take for one.
const LIMIT: Duration = Duration::from_secs(10);

/// Within which time a notice is a repetition, as in client-go.
const SERIES: Duration = Duration::from_secs(6 * 60);

/// How many notices are remembered, to recognise repetitions.
const REMEMBERED: usize = 1024;

/// Limits of the API server, in bytes.
const MAX_NAME: usize = 253;
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;

/// Who says so.
const CONTROLLER: &str = "multinet-controller";

/// What was done when the need to say something arose.
const ACTION: &str = "PublishEndpoints";

/// Where notices go.
#[derive(Clone, Debug)]
pub struct Events {
    waiting: Waiting,
    /// Tells that something waits.
    wake: mpsc::Sender<()>,
    lost: Counter,
}

/// The notices that wait, by namespace and object.
#[derive(Clone, Debug, Default)]
struct Waiting(Arc<Mutex<FairQueue<Notice>>>);

/// Writes the notices as events.
pub struct Publisher {
    client: Client,
    waiting: Waiting,
    wake: mpsc::Receiver<()>,
    leadership: Leadership,
    /// Name of this process.
    instance: String,
    series: HashMap<Key, Series>,
    /// Limits the events of each object.
    limiter: RateLimiter<ObjectKey>,
    lost: Counter,
    /// The last one could not be written, which has been said.
    is_failing: bool,
}

/// What repetitions have in common.
type Key = (ObjectKey, &'static str, String);

#[derive(Clone, Debug)]
struct Series {
    name: String,
    count: i32,
    last: Instant,
}

/// Events of this process, which is called `instance`, and the task that writes them while it leads.
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
    /// Says this as soon as possible. Never waits.
    pub fn publish(&self, notices: Vec<Notice>) {
        for notice in notices {
            if !self.waiting.push(notice) {
                self.lost.inc();
            }
        }
        // If that is full, it wakes the publisher as well.
        let _ = self.wake.try_send(());
    }
}

impl Waiting {
    /// Returns whether there is room for a notice.
    fn push(&self, notice: Notice) -> bool {
        let object = identity(&notice.regarding);
        let mut turns = self.lock();
        let has_room = turns.waiting_of(&object.namespace) < QUEUE;
        if has_room {
            turns.push(&object, notice);
        }
        has_room
    }

    /// The notice whose turn it is, and the object that it is about.
    fn take(&self) -> Option<(ObjectKey, Notice)> {
        let mut turns = self.lock();
        let (object, notice) = turns.begin()?;
        turns.end(&object);
        Some((object, notice))
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, FairQueue<Notice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher {
    /// Writes until all [`Events`] are gone.
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
        let Some(end) = self.leadership.ends() else { return };
        let now = Instant::now();
        if self.limiter.next(&object, now) > now {
            self.lost.inc();
            return;
        }
        let deadline = end.min(now + LIMIT);
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
            // By then somebody else may lead, who says it again if it is still so.
            Err(_) if deadline == end => {
                self.lost.inc();
                return;
            }
            Err(_) => format!("no answer within {} s", LIMIT.as_secs()),
        };
        self.lost.inc();
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!("cannot write events (events.k8s.io): {}", Escaped(&problem));
        }
    }

    async fn write(&mut self, object: &ObjectKey, notice: Notice, now: Timestamp) -> kube::Result<()> {
        let namespace = object.namespace.clone();
        let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let key = (object.clone(), notice.reason, notice.note.clone());
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
                // The API server keeps events for an hour only.
                Err(kube::Error::Api(status)) if status.code == 404 => drop(self.series.remove(&key)),
                Err(error) => return Err(error),
            }
        }
        let event = event(notice, namespace, &self.instance, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
        if self.series.len() >= REMEMBERED {
            // Repetitions become events of their own, which is better than no limit.
            self.series.clear();
        }
        self.series.insert(key, Series { name, count: 1, last: Instant::now() });
        Ok(())
    }
}

/// Namespace, and everything else that tells an object from others.
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
    let kind = if notice.warning { "Warning" } else { "Normal" };
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
        reason: Some(notice.reason.to_owned()),
        regarding: Some(notice.regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(kind.to_owned()),
        ..Event::default()
    }
}

/// As much of the beginning of a text as fits.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_to_the_limits_of_the_api_server() {
        let regarding = ObjectReference { name: Some("x.".repeat(126) + "y"), ..ObjectReference::default() };
        let notice = Notice { regarding, warning: true, reason: "AddressConflict", note: "é".repeat(1000) };
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
