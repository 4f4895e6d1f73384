//! Decides what to write in a namespace (pure): services of direct edges, and Vertices that
//! Numaflow has to write anew.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use multinet_crds::MultiNetworkService;
use tokio::time::Instant;

use crate::annotation::Declared;
use crate::plan::{End, EndName, Plan, Settings};
use crate::refusal::Refusal;
use crate::service::{is_ours, owned_service, owner};

/// Objects of a namespace, by name.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// Pipelines, also those being deleted.
    pub pipelines: BTreeMap<String, KnownPipeline>,
    /// Vertices that are not being deleted.
    pub vertices: BTreeMap<String, KnownVertex>,
    /// The uids of MonoVertices that are not being deleted.
    pub mono_vertices: BTreeMap<String, String>,
    /// MultiNetworkServices of any writer.
    pub services: BTreeMap<String, MultiNetworkService>,
    /// Services that the API server has refused to write.
    pub refusals: BTreeMap<String, Refusal>,
}

/// Pipeline and what it declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPipeline {
    /// The object's uid.
    pub uid: String,
    /// Its direct edges.
    pub declared: Declared,
}

/// Vertex, as far as its plan and its resets are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownVertex {
    /// The object's uid.
    pub uid: String,
    /// Version of the object.
    pub version: String,
    /// Name of its Pipeline.
    pub pipeline: String,
    /// Its name within the Pipeline.
    pub vertex: String,
    /// Whether it waits for Numaflow to write it, because its hash is empty.
    pub is_reset: bool,
    /// Stamp of the plan that the webhook has injected.
    pub stamp: Option<String>,
}

impl KnownVertex {
    /// Returns the Vertex' name as an end of edges.
    pub fn end(&self) -> EndName {
        EndName::Vertex { pipeline: self.pipeline.clone(), vertex: self.vertex.clone() }
    }
}

/// Write that a namespace needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create the service.
    Create(Box<MultiNetworkService>),
    /// Replace the service by this version of it.
    Replace(Box<MultiNetworkService>),
    /// Delete the service, which has this uid.
    Delete {
        /// Name of the service.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Have Numaflow write the Vertex anew.
    Reset {
        /// Name of the Vertex.
        name: String,
        /// Stamp that it is to have then.
        wanted: Option<String>,
    },
}

/// Message for the author of a Pipeline, which becomes an event of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Notice {
    /// Name of the Pipeline.
    pub pipeline: String,
    /// Reason of the event.
    pub reason: &'static str,
    /// Text of the event.
    pub note: String,
}

/// Decision about a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Writes that bring it up to its plan, in any order.
    pub writes: Vec<Write>,
    /// All messages that apply now.
    pub notices: BTreeSet<Notice>,
    /// Time at which a refused service that is not among the writes is to be written again.
    pub retry: Option<Instant>,
}

impl Namespace {
    /// Returns whether the namespace has no object.
    pub fn is_empty(&self) -> bool {
        self.pipelines.is_empty()
            && self.vertices.is_empty()
            && self.mono_vertices.is_empty()
            && self.services.is_empty()
    }

    /// Plans the namespace.
    pub fn plan(&self, name: &str, settings: &Settings) -> Plan {
        let declared = self.pipelines.iter().map(|(name, pipeline)| (name.as_str(), &pipeline.declared));
        Plan::new(name, declared, |mono| self.mono_vertices.contains_key(mono), settings)
    }

    /// Compares the namespace with its plan. Forgets refusals of services that are not to be
    /// written any more.
    pub fn decide(&mut self, name: &str, plan: &Plan, settings: &Settings, now: Instant) -> Decision {
        let mut decision = Decision::default();
        for (pipeline, problems) in &plan.problems {
            decision.notices.extend(problems.iter().map(|note| Notice {
                pipeline: pipeline.clone(),
                reason: "DirectEdgeInvalid",
                note: note.clone(),
            }));
        }
        let mut wanted = BTreeMap::new();
        for (end_name, end) in &plan.ends {
            let object = end_name.object();
            let Some(uid) = self.uid(end_name, &object) else { continue };
            match wanted.entry(object) {
                Entry::Vacant(entry) => {
                    entry.insert((end_name, owned_service(name, end_name, end, uid)));
                }
                // Vertices come before MonoVertices.
                Entry::Occupied(entry) => decision.taken(end, &has_name_of_vertex(entry.key())),
            }
        }
        for (object, (end_name, service)) in &wanted {
            match self.services.get(object) {
                None => decision.writes.push(Write::Create(Box::new(service.clone()))),
                Some(known) if !is_ours(known) => {
                    decision.taken(&plan.ends[*end_name], &is_of_another_writer(object));
                }
                Some(known) if owner(known) != owner(service) => decision.delete(object, known),
                Some(known) => decision.replace(known, service),
            }
        }
        for (object, known) in &self.services {
            if is_ours(known) && !wanted.contains_key(object) {
                decision.delete(object, known);
            }
        }
        let ends = wanted.iter().map(|(object, (end, _))| (object.as_str(), &plan.ends[*end])).collect();
        self.refusals = decision.heed(std::mem::take(&mut self.refusals), &ends, now);
        for (object, vertex) in &self.vertices {
            let wanted = plan.ends.get(&vertex.end()).map(|end| end.stamp(settings));
            // Without its Pipeline, a Vertex is about to be deleted.
            if vertex.is_reset || !self.pipelines.contains_key(&vertex.pipeline) {
                continue;
            }
            if vertex.stamp != wanted {
                decision.writes.push(Write::Reset { name: object.clone(), wanted });
            }
        }
        decision
    }

    /// Returns the uid of the object of an end, if it exists and is not being deleted.
    fn uid(&self, name: &EndName, object: &str) -> Option<&str> {
        match name {
            // The names a-b of c and a of b-c are one Vertex' name, and only one of them is there.
            EndName::Vertex { .. } => self
                .vertices
                .get(object)
                .filter(|vertex| vertex.end() == *name)
                .map(|vertex| vertex.uid.as_str()),
            EndName::MonoVertex(_) => self.mono_vertices.get(object).map(String::as_str),
        }
    }
}

impl Decision {
    /// Reports that the name of an end's service is taken.
    fn taken(&mut self, end: &End, note: &str) {
        for pipeline in end.edges.keys() {
            let note = note.to_owned();
            self.notices.insert(Notice { pipeline: pipeline.clone(), reason: "NameTaken", note });
        }
    }

    fn delete(&mut self, name: &str, known: &MultiNetworkService) {
        let uid = known.metadata.uid.clone().unwrap_or_default();
        self.writes.push(Write::Delete { name: name.to_owned(), uid });
    }

    /// Leaves out writes of services that were refused a moment ago, and reports all that were
    /// refused: of several that an edge needs, the first. Returns the refusals that still matter.
    fn heed(
        &mut self,
        mut refusals: BTreeMap<String, Refusal>,
        ends: &BTreeMap<&str, &End>,
        now: Instant,
    ) -> BTreeMap<String, Refusal> {
        let mut heeded = BTreeMap::new();
        self.writes.retain(|write| {
            let (Write::Create(service) | Write::Replace(service)) = write else { return true };
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let Some(refusal) = refusals.remove(name).filter(|it| it.is_of(service)) else { return true };
            let is_due = refusal.retry() <= now;
            heeded.insert(name.to_owned(), refusal);
            is_due
        });
        let mut reported = BTreeSet::new();
        for (name, refusal) in &heeded {
            for (pipeline, places) in ends.get(name.as_str()).into_iter().flat_map(|end| &end.edges) {
                let places = places.iter().map(String::as_str);
                let places: Vec<&str> = places.filter(|place| reported.insert((pipeline, *place))).collect();
                if !places.is_empty() {
                    let note = refusal.note(name, &places);
                    self.notices.insert(Notice {
                        pipeline: pipeline.clone(),
                        reason: "ServiceRefused",
                        note,
                    });
                }
            }
        }
        // One that is due is in the writes. Until the watch shows it, it needs no other turn.
        self.retry = heeded.values().map(Refusal::retry).filter(|retry| *retry > now).min();
        heeded
    }

    /// Replaces a service that differs from the wanted one. Labels, annotations and owners that
    /// others have added stay.
    fn replace(&mut self, known: &MultiNetworkService, wanted: &MultiNetworkService) {
        let mut service = known.clone();
        service.spec = wanted.spec.clone();
        let labels = wanted.metadata.labels.clone().unwrap_or_default();
        service.metadata.labels.get_or_insert_default().extend(labels);
        if service != *known {
            service.status = None;
            self.writes.push(Write::Replace(Box::new(service)));
        }
    }
}

/// Returns the message about a service that another program or person has written.
fn is_of_another_writer(name: &str) -> String {
    format!(
        "the MultiNetworkService {name} is not of multinet-numaflow, and is left alone; rename or delete it"
    )
}

/// Returns the message about a MonoVertex whose service would have the name of a Vertex' service.
fn has_name_of_vertex(name: &str) -> String {
    format!("the MonoVertex {name} gets no service, since a Vertex has the same name; rename one of them")
}

#[cfg(test)]
mod tests;
