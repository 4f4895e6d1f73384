//! Reports of the controller: the status of a MultiNetworkService, and events about any object.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use crate::manifests::SERVICE;
use crate::objects::Namespace;
use crate::replica::BOUND;
use crate::slices::api;
use crate::wait::eventually;

/// Conditions of a service without problems.
pub const FINE: [&str; 4] = [
    "Accepted=True Accepted",
    "AddressConflict=False NoConflict",
    "Programmed=True Programmed",
    "ResolvedRefs=True ResolvedRefs",
];

/// Status of one MultiNetworkService.
#[derive(Clone)]
pub struct Status {
    api: Api<DynamicObject>,
    name: String,
}

impl Status {
    /// Returns access to the status of a service.
    pub fn of(namespace: &Namespace, service: &str) -> Result<Self> {
        let api = api(namespace.objects().client(), namespace.name(), SERVICE)?;
        Ok(Self { api, name: service.to_owned() })
    }

    /// Returns the current service.
    pub async fn service(&self) -> Result<DynamicObject> {
        self.api.get(&self.name).await.with_context(|| format!("no MultiNetworkService {}", self.name))
    }

    /// Waits until the status has all of these conditions, written as `Type=Status Reason`, for the
    /// newest generation. Returns the status.
    pub async fn is(&self, expected: &[&str]) -> Result<Value> {
        self.wait_for(expected, |_| true).await
    }

    /// Waits for a condition whose message contains all `needles`.
    pub async fn explains(&self, condition: &str, needles: &[&str]) -> Result<Value> {
        let kind = condition.split('=').next().unwrap_or_default();
        let explained = |status: &Value| {
            let message = message(status, kind);
            needles.iter().all(|needle| message.contains(needle))
        };
        self.wait_for(&[condition], explained).await.with_context(|| format!("{needles:?} in the message"))
    }

    /// Waits until the status counts this many ready endpoints, and this many in total.
    pub async fn counts(&self, ready: u64, total: u64) -> Result<Value> {
        let counted = |status: &Value| {
            let endpoints = &status["endpoints"];
            endpoints["ready"] == ready && endpoints["total"] == total
        };
        self.wait_for(&[], counted).await.with_context(|| format!("{ready} of {total} endpoints ready"))
    }

    async fn wait_for(&self, expected: &[&str], is: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&format!("the status of {} to have {expected:?}", self.name), BOUND, async || {
            let service = self.service().await?;
            let status = &service.data["status"];
            let generation = service.metadata.generation.context("no generation")?;
            let found: Vec<String> = conditions(status)
                .iter()
                .filter(|condition| condition["observedGeneration"] == generation)
                .map(|condition| {
                    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                    format!("{}={} {}", text("type"), text("status"), text("reason"))
                })
                .collect();
            let all = expected.iter().all(|expected| found.iter().any(|found| found == expected));
            ensure!(all && is(status), "generation {generation}, status {status:#}");
            Ok(status.clone())
        })
        .await
    }
}

fn conditions(status: &Value) -> &[Value] {
    status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the message of a condition.
pub fn message<'a>(status: &'a Value, kind: &str) -> &'a str {
    let condition = conditions(status).iter().find(|condition| condition["type"] == kind);
    condition.and_then(|condition| condition["message"].as_str()).unwrap_or_default()
}

/// Events of one namespace.
#[derive(Debug, Clone)]
pub struct Events(Api<Event>);

impl Events {
    /// Returns access to the events of this namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self(Api::namespaced(namespace.objects().client(), namespace.name()))
    }

    /// Returns the events about an object.
    pub async fn about(&self, kind: &str, name: &str) -> Result<Vec<Event>> {
        let mut events = self.0.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            let regarding = event.regarding.as_ref();
            let is = |field: Option<&String>, wanted: &str| field.is_some_and(|field| field == wanted);
            is(regarding.and_then(|object| object.kind.as_ref()), kind)
                && is(regarding.and_then(|object| object.name.as_ref()), name)
        });
        Ok(events)
    }

    /// Waits for a Warning about an object with this reason, whose note contains all `needles`.
    pub async fn warn(&self, kind: &str, name: &str, reason: &str, needles: &[&str]) -> Result<Event> {
        eventually(&format!("a Warning {reason} about {kind} {name} with {needles:?}"), BOUND, async || {
            let events = self.about(kind, name).await?;
            let found = events.iter().find(|event| {
                let note = event.note.as_deref().unwrap_or_default();
                event.type_.as_deref() == Some("Warning")
                    && event.reason.as_deref() == Some(reason)
                    && needles.iter().all(|needle| note.contains(needle))
            });
            found.cloned().with_context(|| format!("the events are {:#?}", describe(&events)))
        })
        .await
    }

    /// Returns the number of events about an object with this reason, including repetitions.
    pub async fn count(&self, kind: &str, name: &str, reason: &str) -> Result<i32> {
        let events = self.about(kind, name).await?;
        let of_reason = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
        Ok(of_reason.map(|event| event.series.as_ref().map_or(1, |series| series.count)).sum())
    }
}

/// Formats events as text for messages.
pub fn describe(events: &[Event]) -> Vec<String> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let line = |event: &Event| {
        let count = event.series.as_ref().map_or(1, |series| series.count);
        format!("{} {} ×{count}: {}", text(&event.type_), text(&event.reason), text(&event.note))
    };
    events.iter().map(line).collect()
}
