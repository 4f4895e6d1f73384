//! Objects that the watches deliver, by namespace, and the namespaces with changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use multinet_crds::MultiNetworkService;
use multinet_runtime::{Index, ObjectKey};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::annotation::Declared;
use crate::limits::writes::PAUSE;
use crate::objects::{HASH, MonoVertex, PLAN, Pipeline, Vertex};
use crate::plan::{End, EndName, Plan, Settings};
use crate::reconcile::{Decision, KnownPipeline, KnownVertex, Namespace};
use crate::refusal::Refusal;
use crate::turns::Turns;

/// All objects that matter, and the namespaces that have changed.
#[derive(Debug)]
pub struct State {
    settings: Settings,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    namespaces: BTreeMap<String, Namespace>,
    turns: Turns,
}

impl Inner {
    /// Changes a namespace. Adds it to the queue if `change` returns true.
    fn change(&mut self, namespace: &str, change: impl FnOnce(&mut Namespace) -> bool) {
        let objects = self.namespaces.entry(namespace.to_owned()).or_default();
        let has_changed = change(objects);
        if objects.is_empty() {
            self.namespaces.remove(namespace);
        }
        if has_changed {
            self.turns.add(namespace.to_owned());
        }
    }

    /// Removes objects that are in no `live` key, by the map that `of` selects.
    fn retain<T>(&mut self, live: &HashSet<ObjectKey>, of: fn(&mut Namespace) -> &mut BTreeMap<String, T>) {
        let mut changed = Vec::new();
        for (namespace, objects) in &mut self.namespaces {
            let map = of(objects);
            let before = map.len();
            map.retain(|name, _| {
                live.contains(&ObjectKey { namespace: namespace.clone(), name: name.clone() })
            });
            if map.len() != before {
                changed.push(namespace.clone());
            }
        }
        self.namespaces.retain(|_, objects| !objects.is_empty());
        changed.into_iter().for_each(|namespace| self.turns.add(namespace));
    }
}

/// Replaces or removes an entry of a map. Returns whether that changed it.
fn set<T: PartialEq>(map: &mut BTreeMap<String, T>, name: &str, value: Option<T>) -> bool {
    match value {
        Some(value) if map.get(name) == Some(&value) => false,
        Some(value) => {
            map.insert(name.to_owned(), value);
            true
        }
        None => map.remove(name).is_some(),
    }
}

impl State {
    /// Creates an empty state.
    pub fn new(settings: Settings) -> Self {
        Self { settings, inner: Mutex::default(), changed: Notify::new() }
    }

    /// Returns the settings that decide what is injected.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the plan of a vertex of a Pipeline, which has just been read.
    pub fn end(&self, namespace: &str, (pipeline, read): (&str, &Declared), vertex: &str) -> Option<End> {
        let inner = self.inner.lock();
        let known = inner.namespaces.get(namespace).into_iter().flat_map(|known| &known.pipelines);
        let mut declared: BTreeMap<&str, &Declared> =
            known.map(|(name, pipeline)| (name.as_str(), &pipeline.declared)).collect();
        declared.insert(pipeline, read);
        if declared.values().all(|declared| declared.is_empty()) {
            return None;
        }
        let name = EndName::Vertex { pipeline: pipeline.to_owned(), vertex: vertex.to_owned() };
        // Problems are the leader's to report.
        Plan::new(namespace, declared, |_| true, &self.settings).ends.remove(&name)
    }

    /// Waits for the turn of a namespace, and compares it with its plan.
    pub async fn turn(&self) -> (String, Decision) {
        loop {
            if let Some(next) = self.next(Instant::now()) {
                return next;
            }
            let due = self.inner.lock().turns.due();
            match due {
                Some(due) => drop(timeout_at(due, self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    fn next(&self, now: Instant) -> Option<(String, Decision)> {
        let mut inner = self.inner.lock();
        let name = inner.turns.next(now)?;
        let objects = inner.namespaces.entry(name.clone()).or_default();
        let plan = objects.plan(&name, &self.settings);
        let decision = objects.decide(&name, &plan, &self.settings, now);
        if objects.is_empty() {
            inner.namespaces.remove(&name);
        }
        if let Some(retry) = decision.retry {
            inner.turns.postpone(&name, retry);
        }
        Some((name, decision))
    }

    /// Gives a namespace another turn after a pause. Only the caller of [`turn`](Self::turn) may
    /// do so, which does not wait meanwhile.
    pub fn postpone(&self, namespace: &str) {
        self.inner.lock().turns.postpone(namespace, Instant::now() + PAUSE);
    }

    /// Gives all namespaces a turn, as a new leader does, which knows of no refusal.
    pub fn start_over(&self) {
        let Inner { namespaces, turns } = &mut *self.inner.lock();
        for (name, objects) in namespaces {
            objects.refusals.clear();
            turns.add(name.clone());
        }
        self.changed.notify_one();
    }

    /// Records that the API server refuses a service. Returns whether that is new.
    pub fn refused(&self, namespace: &str, service: &MultiNetworkService, message: &str) -> bool {
        let Inner { namespaces, turns } = &mut *self.inner.lock();
        let Some(objects) = namespaces.get_mut(namespace) else { return false };
        let name = service.metadata.name.clone().unwrap_or_default();
        let before = objects.refusals.remove(&name);
        let refusal = Refusal::new(before.as_ref(), service, message, Instant::now());
        objects.refusals.insert(name, refusal);
        turns.add(namespace.to_owned());
        before.is_none()
    }

    /// Returns a Vertex.
    pub fn vertex(&self, namespace: &str, name: &str) -> Option<KnownVertex> {
        self.inner.lock().namespaces.get(namespace)?.vertices.get(name).cloned()
    }

    /// Returns the uid of a Pipeline.
    pub fn pipeline_uid(&self, namespace: &str, name: &str) -> Option<String> {
        Some(self.inner.lock().namespaces.get(namespace)?.pipelines.get(name)?.uid.clone())
    }

    /// Returns the plans of all namespaces that have any, for people.
    pub fn describe(&self) -> BTreeMap<String, Described> {
        let inner = self.inner.lock();
        let plans = inner.namespaces.iter().map(|(name, objects)| {
            let plan = objects.plan(name, &self.settings);
            let outdated = objects.vertices.iter().filter(|(_, vertex)| {
                vertex.stamp != plan.ends.get(&vertex.end()).map(|end| end.stamp(&self.settings))
            });
            let outdated = outdated.map(|(name, _)| name.clone()).collect();
            (name.clone(), Described { plan, outdated })
        });
        plans.filter(|(_, it)| !it.plan.ends.is_empty() || !it.plan.problems.is_empty()).collect()
    }

    fn apply_to(&self, key: &ObjectKey, change: impl FnOnce(&mut Namespace) -> bool) {
        self.inner.lock().change(&key.namespace, change);
    }
}

/// Plan of a namespace, and the Vertices that do not have it yet.
#[derive(Debug, Serialize)]
pub struct Described {
    #[serde(flatten)]
    plan: Plan,
    outdated: BTreeSet<String>,
}

impl Index<Pipeline> for State {
    fn apply(&self, pipeline: Pipeline) {
        let key = pipeline.key();
        let known = KnownPipeline {
            uid: pipeline.metadata.uid.clone().unwrap_or_default(),
            declared: Declared::of(&pipeline),
        };
        // Pipelines without edges are kept too: they may be the other end of an edge. Those being
        // deleted stay until they are gone, since their vertices process what is left.
        self.apply_to(&key, |all| set(&mut all.pipelines, &key.name, Some(known)));
    }

    fn delete(&self, key: &ObjectKey) {
        self.apply_to(key, |all| set(&mut all.pipelines, &key.name, None));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.inner.lock().retain(live, |all| &mut all.pipelines);
    }

    fn commit(&self) {
        self.changed.notify_one();
    }
}

impl Index<Vertex> for State {
    fn apply(&self, vertex: Vertex) {
        let key = vertex.key();
        let known = KnownVertex {
            uid: vertex.metadata.uid.clone().unwrap_or_default(),
            version: vertex.metadata.resource_version.clone().unwrap_or_default(),
            pipeline: vertex.spec.pipeline_name.clone(),
            vertex: vertex.spec.name.clone(),
            is_reset: vertex.annotation(HASH).is_empty(),
            stamp: vertex.spec.metadata.annotations.get(PLAN).cloned(),
        };
        let is_deleted = vertex.metadata.deletion_timestamp.is_some();
        self.apply_to(&key, |all| {
            // Numaflow writes the status all the time, which changes only the version.
            let before = all.vertices.remove(&key.name);
            if is_deleted {
                return before.is_some();
            }
            all.vertices.insert(key.name.clone(), known.clone());
            before.map(|before| KnownVertex { version: known.version.clone(), ..before }) != Some(known)
        });
    }

    fn delete(&self, key: &ObjectKey) {
        self.apply_to(key, |all| set(&mut all.vertices, &key.name, None));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.inner.lock().retain(live, |all| &mut all.vertices);
    }

    fn commit(&self) {
        self.changed.notify_one();
    }
}

impl Index<MonoVertex> for State {
    fn apply(&self, mono: MonoVertex) {
        let key = mono.key();
        let uid = mono.metadata.uid.filter(|_| mono.metadata.deletion_timestamp.is_none());
        self.apply_to(&key, |all| set(&mut all.mono_vertices, &key.name, uid));
    }

    fn delete(&self, key: &ObjectKey) {
        self.apply_to(key, |all| set(&mut all.mono_vertices, &key.name, None));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.inner.lock().retain(live, |all| &mut all.mono_vertices);
    }

    fn commit(&self) {
        self.changed.notify_one();
    }
}

impl Index<MultiNetworkService> for State {
    fn apply(&self, mut service: MultiNetworkService) {
        // The controller writes the status, which is of no interest here.
        service.status = None;
        let key = ObjectKey::from(&service.metadata);
        let is_deleted = service.metadata.deletion_timestamp.is_some();
        self.apply_to(&key, |all| {
            let mut before = all.services.remove(&key.name);
            if is_deleted {
                return before.is_some();
            }
            all.services.insert(key.name.clone(), service.clone());
            if let Some(before) = &mut before {
                before.metadata.resource_version.clone_from(&service.metadata.resource_version);
            }
            before != Some(service)
        });
    }

    fn delete(&self, key: &ObjectKey) {
        self.apply_to(key, |all| set(&mut all.services, &key.name, None));
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        self.inner.lock().retain(live, |all| &mut all.services);
    }

    fn commit(&self) {
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;
