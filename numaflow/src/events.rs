//! Publishes notices as Kubernetes events of the Pipelines that they concern.
//!
//! A notice is published once for as long as it applies, and each Pipeline has a limited rate of
//! events, since a program may change its annotations all the time.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use multinet_runtime::watch::Problem;
use multinet_runtime::{TerminalSafe, random_number};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, timeout};

use crate::index::State;
use crate::limits::writes::{EVENT_BURST, EVENT_INTERVAL, REQUEST_TIME, TURN};
use crate::objects::API_VERSION;
use crate::reconcile::Notice;
use crate::service::PROGRAM;

/// Length of the Pipeline's name in that of an event, which has 253 bytes at most.
const MAX_NAME: usize = 200;

/// Longest `reportingInstance` of an event that the API server accepts, in bytes.
const MAX_INSTANCE: usize = 128;

/// Publisher of notices.
pub struct Events {
    client: Client,
    /// Identity of this process, which events name as `reportingInstance`.
    instance: String,
    /// Notices of each namespace that were published and still apply.
    published: HashMap<String, BTreeSet<Notice>>,
    /// Time at which a Pipeline, by namespace and name, may have its whole burst again.
    rested: HashMap<(String, String), Instant>,
    lost: Counter,
    /// Whether the last write of an event failed. Only the first failure in a row is logged.
    is_failing: bool,
}

impl Events {
    /// Creates a publisher. It counts events that could not be written in `lost`.
    pub fn new(client: Client, instance: &str, lost: Counter) -> Self {
        let instance = cut(instance, MAX_INSTANCE).to_owned();
        Self { client, instance, published: HashMap::new(), rested: HashMap::new(), lost, is_failing: false }
    }

    /// Forgets what was published, as a new leader, which does not know that.
    pub fn clear(&mut self) {
        self.published.clear();
        self.rested.clear();
    }

    /// Publishes those of the notices of a namespace that are new. `all` tells whether notices that
    /// are not among them no longer apply. Returns whether some remain for another turn.
    pub async fn publish(
        &mut self,
        state: &State,
        namespace: &str,
        notices: BTreeSet<Notice>,
        all: bool,
    ) -> bool {
        let mut published = self.published.remove(namespace).unwrap_or_default();
        if all {
            published.retain(|notice| notices.contains(notice));
        }
        let mut new = notices.into_iter().filter(|notice| !published.contains(notice)).collect::<Vec<_>>();
        let rest = new.len() > TURN;
        new.truncate(TURN);
        for notice in new {
            if let Some(uid) = state.pipeline_uid(namespace, &notice.pipeline) {
                self.write(namespace, &notice, uid).await;
            }
            published.insert(notice);
        }
        if !published.is_empty() {
            self.published.insert(namespace.to_owned(), published);
        }
        rest
    }

    async fn write(&mut self, namespace: &str, notice: &Notice, uid: String) {
        let now = Instant::now();
        if !self.may_write((namespace.to_owned(), notice.pipeline.clone()), now) {
            self.lost.inc();
            return;
        }
        let event = event(namespace, notice, uid, &self.instance, Timestamp::now());
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let problem = match timeout(REQUEST_TIME, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {
                self.is_failing = false;
                return;
            }
            Ok(Err(error)) => Problem::from(error).message,
            Err(_) => format!("no answer within {} s", REQUEST_TIME.as_secs()),
        };
        self.lost.inc();
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(namespace, "cannot write an event; it is lost: {}", TerminalSafe(&problem));
        }
    }

    /// Returns whether a Pipeline may have another event, and counts it.
    fn may_write(&mut self, pipeline: (String, String), now: Instant) -> bool {
        self.rested.retain(|_, rested| *rested > now);
        let rested = self.rested.get(&pipeline).copied().unwrap_or(now);
        if rested > now + EVENT_INTERVAL * (EVENT_BURST - 1) {
            return false;
        }
        self.rested.insert(pipeline, rested + EVENT_INTERVAL);
        true
    }
}

/// Returns the longest prefix of `text` that has at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn event(namespace: &str, notice: &Notice, uid: String, instance: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            // The API server takes no generateName that ends in a dot, as names of events have it.
            name: Some(format!("{}.{:016x}", cut(&notice.pipeline, MAX_NAME), random_number())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some("Inject".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(notice.note.clone()),
        reason: Some(notice.reason.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some("Pipeline".to_owned()),
            name: Some(notice.pipeline.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(uid),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(PROGRAM.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    }
}
