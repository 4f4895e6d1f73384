//! Plan of a namespace: what each end of a direct edge needs.
//!
//! The edges of all Pipelines in the namespace are added one by one, to both of their ends: first
//! those within a Pipeline, then those into other Pipelines. An edge that does not fit to those
//! before it is left out at both ends, and becomes a problem of the Pipeline that declares it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;

use multinet_crds::{NetworkReference, Port};
use serde::{Serialize, Serializer};
use siphasher::sip::SipHasher13;

use crate::annotation::{Declared, Edge, Receiver};
use crate::limits::annotations::{
    MAX_EDGES_OF_NAMESPACE, MAX_NETWORKS, MAX_PEERS, MAX_PORTS, MAX_PROBLEMS, MAX_RESOURCES,
};

/// Version of what is injected. It rises when the same plan injects something else, so that
/// vertices are written anew.
const INJECTION: u32 = 1;

/// Zones of DNS names, in lower case and without a trailing dot, and other settings that change
/// what is injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Zone of the vertices' names.
    pub vertex_zone: String,
    /// Zone of the services' names.
    pub zone: String,
    /// Whether containers may lock memory, as RDMA requires.
    pub ipc_lock: bool,
}

/// Name of an end of edges, within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndName {
    /// Vertex of a Pipeline.
    Vertex {
        /// Name of the Pipeline.
        pipeline: String,
        /// Name of the vertex in it.
        vertex: String,
    },
    /// MonoVertex of this name.
    MonoVertex(String),
}

impl EndName {
    /// Returns the name of the object: that of the Vertex or MonoVertex, and of its service.
    pub fn object(&self) -> String {
        match self {
            Self::Vertex { pipeline, vertex } => format!("{pipeline}-{vertex}"),
            Self::MonoVertex(name) => name.clone(),
        }
    }
}

impl Serialize for EndName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Vertex { pipeline, vertex } => serializer.collect_str(&format_args!("{pipeline}/{vertex}")),
            Self::MonoVertex(name) => serializer.serialize_str(name),
        }
    }
}

/// Needs of an end of direct edges, over all edges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct End {
    /// Networks of its pods.
    pub networks: Vec<NetworkReference>,
    /// Ports of its service. A sender has them too: frames that it offers are fetched there.
    pub ports: Vec<u16>,
    /// Device resources of its container, by name.
    pub resources: BTreeMap<String, u32>,
    /// Names and ports of the ends that it sends to.
    pub targets: Vec<String>,
    /// Names and ports of the ends that it receives from.
    pub sources: Vec<String>,
    /// Places of its edges, by the Pipeline that declares them.
    #[serde(skip)]
    pub edges: BTreeMap<String, BTreeSet<String>>,
}

/// Plan of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// All ends of direct edges.
    pub ends: BTreeMap<EndName, End>,
    /// Problems of each Pipeline that has any: the first few, and the number of the others.
    pub problems: BTreeMap<String, Vec<String>>,
    /// Number of further problems of each Pipeline.
    #[serde(skip)]
    more_problems: BTreeMap<String, usize>,
}

impl Plan {
    /// Plans a namespace from its Pipelines, by name. `has_mono_vertex` tells whether it has a
    /// MonoVertex of this name.
    pub fn new<'a>(
        namespace: &str,
        pipelines: impl IntoIterator<Item = (&'a str, &'a Declared)>,
        has_mono_vertex: impl Fn(&str) -> bool,
        settings: &Settings,
    ) -> Self {
        let pipelines: BTreeMap<&str, &Declared> = pipelines.into_iter().collect();
        let mut plan = Self::default();
        for (&name, declared) in pipelines.iter().filter(|(_, declared)| !declared.problems.is_empty()) {
            plan.problems.insert(name.to_owned(), declared.problems.clone());
            plan.more_problems.insert(name.to_owned(), declared.more_problems);
        }
        let all =
            pipelines.iter().flat_map(|(name, declared)| declared.edges.iter().map(|edge| (*name, edge)));
        // An edge into another Pipeline never displaces one that is within that Pipeline.
        let (out, within): (Vec<_>, Vec<_>) = all.partition(|(name, edge)| edge.leads_out(name));
        for (count, (name, edge)) in within.into_iter().chain(out).enumerate() {
            let added = if count < MAX_EDGES_OF_NAMESPACE {
                plan.add(namespace, name, edge, &pipelines, settings)
            } else {
                Err(format!("the Pipelines of a namespace may have {MAX_EDGES_OF_NAMESPACE} direct edges"))
            };
            if let Err(problem) = added {
                plan.report(name, format!("{}: {problem}", edge.place));
            }
            if let Some(problem) = absence(edge, &pipelines, &has_mono_vertex) {
                plan.report(name, problem);
            }
        }
        for (name, more) in std::mem::take(&mut plan.more_problems) {
            let problems = plan.problems.entry(name).or_default();
            problems.extend((more > 0).then(|| format!("{more} more problems with direct edges")));
        }
        plan
    }

    /// Adds a problem of a Pipeline. After the first few, it is only counted.
    fn report(&mut self, pipeline: &str, problem: String) {
        let known = self.problems.entry(pipeline.to_owned()).or_default();
        if known.len() < MAX_PROBLEMS {
            known.push(problem);
        } else {
            *self.more_problems.entry(pipeline.to_owned()).or_default() += 1;
        }
    }

    /// Adds an edge to both of its ends, or to none of them.
    fn add(
        &mut self,
        namespace: &str,
        pipeline: &str,
        edge: &Edge,
        pipelines: &BTreeMap<&str, &Declared>,
        settings: &Settings,
    ) -> Result<(), String> {
        let from = EndName::Vertex { pipeline: pipeline.to_owned(), vertex: edge.from.clone() };
        let to = match &edge.to {
            Receiver::Vertex { pipeline: other, vertex } => EndName::Vertex {
                pipeline: other.as_deref().unwrap_or(pipeline).to_owned(),
                vertex: vertex.clone(),
            },
            Receiver::MonoVertex(name) => EndName::MonoVertex(name.clone()),
        };
        let target = |name: &EndName| format!("{}:{}", domain(name, namespace, settings), edge.port);
        let mut sender = self.ends.get(&from).cloned().unwrap_or_default();
        sender.join(&from, edge, pipelines)?;
        insert(&mut sender.targets, target(&to), MAX_PEERS, "vertices that it sends to")?;
        // An edge from a vertex to itself has one end.
        let mut receiver =
            if from == to { sender.clone() } else { self.ends.get(&to).cloned().unwrap_or_default() };
        receiver.join(&to, edge, pipelines)?;
        insert(&mut receiver.sources, target(&from), MAX_PEERS, "vertices that it receives from")?;
        for (name, mut end) in [(from, sender), (to, receiver)] {
            end.edges.entry(pipeline.to_owned()).or_default().insert(edge.place.clone());
            self.ends.insert(name, end);
        }
        Ok(())
    }
}

impl End {
    /// Adds what an edge needs at this end.
    fn join(
        &mut self,
        name: &EndName,
        edge: &Edge,
        pipelines: &BTreeMap<&str, &Declared>,
    ) -> Result<(), String> {
        let own = match name {
            EndName::Vertex { pipeline, vertex } => {
                pipelines.get(pipeline.as_str()).and_then(|declared| declared.networks.get(vertex))
            }
            EndName::MonoVertex(_) => None,
        };
        for network in edge.networks.iter().chain(own.into_iter().flatten()) {
            self.add_network(network)?;
        }
        if self.networks.is_empty() {
            return Err(format!(
                "{} has no network; give it the annotation {}",
                name.object(),
                crate::annotation::NETWORKS
            ));
        }
        insert(&mut self.ports, edge.port, MAX_PORTS, "ports")?;
        for (name, number) in &edge.resources {
            let known = self.resources.entry(name.clone()).or_default();
            *known = (*known).max(*number);
        }
        if self.resources.len() > MAX_RESOURCES {
            return Err(format!("a vertex may have {MAX_RESOURCES} device resources"));
        }
        Ok(())
    }

    fn add_network(&mut self, network: &NetworkReference) -> Result<(), String> {
        let is_same = |other: &NetworkReference| {
            (other.kind, &other.name, &other.namespace) == (network.kind, &network.name, &network.namespace)
        };
        let has_alias = |other: &NetworkReference| other.alias() == network.alias();
        // An alias that is the network's name may be written or not.
        if self.networks.iter().any(|other| is_same(other) && has_alias(other)) {
            return Ok(());
        }
        if let Some(other) = self.networks.iter().find(|other| is_same(other) || has_alias(other)) {
            return Err(format!(
                "network {} has the alias {}, but an edge before has {} as {}: a network has one alias, and an \
                 alias one network; make them the same",
                described(network),
                network.alias(),
                described(other),
                other.alias()
            ));
        }
        insert(&mut self.networks, network.clone(), MAX_NETWORKS, "networks")
    }

    /// Returns the stamp of this plan, which changes whenever the injection does.
    pub fn stamp(&self, settings: &Settings) -> String {
        let text = serde_json::to_vec(&(INJECTION, self, settings.ipc_lock)).unwrap_or_default();
        let mut hasher = SipHasher13::new();
        hasher.write(&text);
        format!("{:016x}", hasher.finish())
    }

    /// Returns the ports of the service. The first is called `multinet`, and others after their
    /// number.
    pub fn service_ports(&self) -> Vec<Port> {
        let name = |index, port| if index == 0 { "multinet".to_owned() } else { format!("multinet-{port}") };
        let ports = self.ports.iter().enumerate();
        ports.map(|(index, &port)| Port { name: name(index, port), port, ..Port::default() }).collect()
    }
}

/// Returns kind, namespace and name of a network, for messages.
fn described(NetworkReference { kind, name, namespace, .. }: &NetworkReference) -> String {
    match namespace {
        Some(namespace) => format!("{} {namespace}/{name}", kind.as_str()),
        None => format!("{} {name}", kind.as_str()),
    }
}

/// Returns the DNS name of an end, with the trailing dot that spares resolvers their search path.
fn domain(name: &EndName, namespace: &str, settings: &Settings) -> String {
    match name {
        EndName::Vertex { pipeline, vertex } => {
            format!("{vertex}.{pipeline}.{namespace}.{}.", settings.vertex_zone)
        }
        EndName::MonoVertex(name) => format!("{name}.{namespace}.svc.{}.", settings.zone),
    }
}

/// Returns a problem if the receiver of an edge is to be in another object and is not there yet.
/// The edge counts nevertheless, so that the sender's pods stay when that object is replaced.
fn absence(
    edge: &Edge,
    pipelines: &BTreeMap<&str, &Declared>,
    has_mono_vertex: impl Fn(&str) -> bool,
) -> Option<String> {
    let place = &edge.place;
    match &edge.to {
        Receiver::Vertex { pipeline: None, .. } => None,
        Receiver::Vertex { pipeline: Some(pipeline), vertex } => {
            let known = pipelines.get(pipeline.as_str()).and_then(|declared| declared.vertices.get(vertex));
            (known != Some(&true)).then(|| {
                format!(
                    "{place}.toPipeline: the namespace has no Pipeline {pipeline} with a user-defined vertex {vertex} yet"
                )
            })
        }
        Receiver::MonoVertex(name) => (!has_mono_vertex(name))
            .then(|| format!("{place}.toMonoVertex: the namespace has no MonoVertex {name} yet")),
    }
}

/// Adds an item that the list does not have, or fails if the list is full.
fn insert<T: PartialEq>(list: &mut Vec<T>, item: T, most: usize, called: &str) -> Result<(), String> {
    if !list.contains(&item) {
        if list.len() == most {
            return Err(format!("a vertex may have {most} {called}"));
        }
        list.push(item);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
