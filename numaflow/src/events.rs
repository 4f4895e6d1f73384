//! Publishes notices as Kubernetes events of the Pipelines that they concern.
//!
//! A notice is published once for as long as it applies. It waits for another turn if that fails,
//! or if its Pipeline has had many events: a program may change annotations all the time.

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
    failed: Counter,
    /// Whether the last write of an event failed. Only the first failure in a row is logged.
    is_failing: bool,
}

impl Events {
    /// Creates a publisher. It counts failed writes in `failed`.
    pub fn new(client: Client, instance: &str, failed: Counter) -> Self {
        let instance = cut(instance, MAX_INSTANCE).to_owned();
        Self {
            client,
            instance,
            published: HashMap::new(),
            rested: HashMap::new(),
            failed,
            is_failing: false,
        }
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
        let new: Vec<_> = notices.into_iter().filter(|notice| !published.contains(notice)).collect();
        let (mut turn, mut rest) = (0, false);
        for notice in new {
            let Some(uid) = state.pipeline_uid(namespace, &notice.pipeline) else { continue };
            let pipeline = (namespace.to_owned(), notice.pipeline.clone());
            let is_written = turn < TURN && self.may_write(pipeline, Instant::now()) && {
                turn += 1;
                self.write(namespace, &notice, uid).await
            };
            if is_written {
                published.insert(notice);
            } else {
                rest = true;
            }
        }
        if !published.is_empty() {
            self.published.insert(namespace.to_owned(), published);
        }
        rest
    }

    /// Writes an event. Returns whether that succeeded.
    async fn write(&mut self, namespace: &str, notice: &Notice, uid: String) -> bool {
        let event = event(namespace, notice, uid, &self.instance, Timestamp::now());
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let problem = match timeout(REQUEST_TIME, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {
                self.is_failing = false;
                return true;
            }
            Ok(Err(error)) => Problem::from(error).message,
            Err(_) => format!("no answer within {} s", REQUEST_TIME.as_secs()),
        };
        self.failed.inc();
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(namespace, "cannot write an event; retrying: {}", TerminalSafe(&problem));
        }
        false
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

#[cfg(test)]
mod tests {
    use futures::join;
    use multinet_runtime::Index as _;
    use multinet_testing::fake_api::FakeApi;

    use super::*;
    use crate::fixtures::{pipeline, settings};

    fn notices(notes: impl Iterator<Item = usize>) -> BTreeSet<Notice> {
        let notice = |note| Notice { pipeline: "frames".to_owned(), reason: "NameTaken", note };
        notes.map(|index| notice(format!("{index:03}"))).collect()
    }

    #[tokio::test]
    async fn a_notice_waits_for_another_turn_if_it_cannot_be_published() {
        let (client, mut api) = FakeApi::new();
        let (mut events, state) = (Events::new(client, "test", Counter::default()), State::new(settings()));
        state.apply(pipeline(""));
        let mut publish = async |notices, answers: &[u16]| {
            let answer = async {
                for &code in answers {
                    let request = api.next().await;
                    assert_eq!(request.at("/regarding/name"), "frames");
                    if code == 201 {
                        request.store("7");
                    } else {
                        request.status(code, "no");
                    }
                }
            };
            join!(events.publish(&state, "vision", notices, true), answer).0
        };
        assert!(publish(notices(0..1), &[403]).await, "it failed");
        assert!(!publish(notices(0..1), &[201]).await);
        assert!(!publish(notices(0..1), &[]).await, "it is published already");

        // Two of the burst are used.
        let burst = EVENT_BURST as usize;
        assert!(publish(notices(0..burst + 10), &vec![201; burst - 2]).await, "the burst is over");
        assert!(publish(notices(0..burst + 10), &[]).await);
        assert!(!publish(notices(0..burst - 1), &[]).await);
    }
}
