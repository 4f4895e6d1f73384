//! Direct edges that a Pipeline declares, in its annotations and those of its vertices.
//!
//! Each edge is parsed by itself and strictly. One that breaks a rule becomes a problem, whose text
//! names the field and what is allowed, and the others are not affected.

use std::collections::BTreeMap;

use multinet_crds::syntax::{DNS_LABEL, QUALIFIED_NAME};
use multinet_crds::validate::validate;
use multinet_crds::{
    IpFamily, MultiNetworkService, MultiNetworkServiceSpec, NetworkKind, NetworkReference, Port,
};
use multinet_runtime::TerminalSafe;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::limits::annotations::{MAX_EDGES, MAX_NETWORKS, MAX_PROBLEMS, MAX_RESOURCES, MAX_TEXT};
use crate::objects::{Pipeline, PipelineVertex};

/// Annotation of a Pipeline: its direct edges, as JSON.
pub const DIRECT_EDGES: &str = "multinetwork.numaproj.io/direct-edges";

/// Annotation of a Pipeline with the edges of gpu-direct-comm, as JSON.
pub const NUMA_NETWORK_EDGES: &str = "gpu-direct-comm.numaproj.io/numa-network-edges";

/// Annotation of a vertex: names of its networks, separated by commas.
pub const NETWORKS: &str = "multinetwork.numaproj.io/networks";

/// Annotation of a vertex: names of vertices of the Pipeline that it sends to, separated by commas.
pub const DIRECT_TO: &str = "multinetwork.numaproj.io/direct-to";

/// Port of a receiver whose edge names none.
pub const DEFAULT_PORT: u16 = 18515;

/// Parts of a Pipeline that matter to direct edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Valid edges, in the order in which they are declared.
    pub edges: Vec<Edge>,
    /// Networks that vertices declare for themselves.
    pub networks: BTreeMap<String, Vec<NetworkReference>>,
    /// Vertices of the Pipeline, and whether each has a user-defined container.
    pub vertices: BTreeMap<String, bool>,
    /// Problems of the other edges, up to a limit.
    pub problems: Vec<String>,
    /// Number of further problems.
    pub more_problems: usize,
    /// Number of edges, also wrong ones.
    edge_count: usize,
}

/// Direct edge from a vertex of the Pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Place of the declaration, such as `direct-edges[0]`, for problems.
    pub place: String,
    /// Name of the sending vertex.
    pub from: String,
    /// Receiver.
    pub to: Receiver,
    /// Networks of both ends; none if each vertex declares its own.
    pub networks: Vec<NetworkReference>,
    /// Port that the receiver listens on.
    pub port: u16,
    /// Device resources of both ends, by name.
    pub resources: BTreeMap<String, u32>,
}

impl Edge {
    /// Returns whether the edge leads from this Pipeline into another one.
    pub fn leads_out(&self, own: &str) -> bool {
        matches!(&self.to, Receiver::Vertex { pipeline: Some(other), .. } if other != own)
    }
}

/// Receiving end of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Vertex of a Pipeline; `None`: of the Pipeline that declares the edge.
    Vertex {
        /// Name of the other Pipeline.
        pipeline: Option<String>,
        /// Name of the vertex.
        vertex: String,
    },
    /// MonoVertex of this name.
    MonoVertex(String),
}

/// Edge as the annotation has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawEdge {
    from: String,
    to: Option<String>,
    to_pipeline: Option<String>,
    to_mono_vertex: Option<String>,
    networks: Vec<Box<RawValue>>,
    port: Option<u16>,
    #[serde(default)]
    resources: BTreeMap<String, u32>,
}

/// Network of an edge that is not only a name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNetwork {
    #[serde(default)]
    kind: NetworkKind,
    name: String,
    namespace: Option<String>,
    alias: Option<String>,
}

/// Edge as gpu-direct-comm's annotation has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawNumaEdge {
    from: String,
    to: String,
    numa_network: String,
    #[serde(rename = "connectionType")]
    _connection_type: Option<ConnectionType>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ConnectionType {
    Direct,
}

impl Declared {
    /// Parses all declarations of a Pipeline.
    pub fn of(pipeline: &Pipeline) -> Self {
        // Numaflow refuses a Pipeline with a vertex of another name.
        let vertices = pipeline.spec.vertices.iter().filter(|vertex| DNS_LABEL.accepts(&vertex.name));
        let known = vertices.clone().map(|vertex| (vertex.name.clone(), vertex.is_user_defined()));
        let mut declared = Self { vertices: known.collect(), ..Self::default() };
        declared.read(pipeline.annotation(DIRECT_EDGES), "direct-edges", direct_edge);
        declared.read(pipeline.annotation(NUMA_NETWORK_EDGES), "numa-network-edges", numa_network_edge);
        for vertex in vertices {
            declared.read_vertex(vertex);
        }
        declared
    }

    /// Returns whether the Pipeline declares nothing.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty() && self.networks.is_empty() && self.problems.is_empty()
    }

    /// Counts an edge. Returns whether the Pipeline may have it. The first that it may not have
    /// becomes a problem.
    fn admit(&mut self, place: &str) -> bool {
        self.edge_count += 1;
        if self.edge_count == MAX_EDGES + 1 {
            self.problem(&format!(
                "{place}: is one edge too many, and those behind it do not count either; a Pipeline may have {MAX_EDGES}"
            ));
        }
        self.edge_count <= MAX_EDGES
    }

    /// Adds a problem as one line, cut to a length that an event can show. After the first few, it
    /// is only counted.
    fn problem(&mut self, text: &str) {
        if self.problems.len() == MAX_PROBLEMS {
            self.more_problems += 1;
            return;
        }
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_TEXT)].to_owned();
        self.problems.push(cut(&TerminalSafe(&cut(text)).to_string()));
    }

    /// Reads the edges of an annotation, each by `parse`.
    fn read(&mut self, text: &str, place: &str, parse: fn(&str) -> Result<RawParts, String>) {
        if text.is_empty() {
            return;
        }
        let edges = match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(edges) => edges,
            Err(error) => {
                return self.problem(&format!("{place}: must be a JSON list of edges: {error}"));
            }
        };
        for (index, edge) in edges.iter().enumerate() {
            let place = format!("{place}[{index}]");
            if !self.admit(&place) {
                return;
            }
            match parse(edge.get()) {
                Ok(parts) => self.add(place, parts),
                Err(problem) => self.problem(&format!("{place}{problem}")),
            }
        }
    }

    /// Reads the annotations of a vertex.
    fn read_vertex(&mut self, vertex: &PipelineVertex) {
        let annotations = &vertex.metadata.annotations;
        let place = |key: &str| format!("vertex {}: {}", vertex.name, key.rsplit('/').next().unwrap_or(key));
        if let Some(text) = annotations.get(NETWORKS) {
            match own_networks(text) {
                Ok(networks) => drop(self.networks.insert(vertex.name.clone(), networks)),
                Err(problem) => self.problem(&format!("{}{problem}", place(NETWORKS))),
            }
        }
        for to in annotations.get(DIRECT_TO).into_iter().flat_map(|text| names(text)) {
            if !self.admit(&place(DIRECT_TO)) {
                return;
            }
            let to = Receiver::Vertex { pipeline: None, vertex: to.to_owned() };
            let parts = RawParts { from: vertex.name.clone(), to, ..RawParts::default() };
            self.add(place(DIRECT_TO), parts);
        }
    }

    /// Adds an edge if the vertices that it names exist.
    fn add(&mut self, place: String, parts: RawParts) {
        let RawParts { from, to, networks, port, resources } = parts;
        let mut ends = vec![("from", &from)];
        if let Receiver::Vertex { pipeline: None, vertex } = &to {
            ends.push(("to", vertex));
        }
        for (field, name) in ends {
            let problem = match self.vertices.get(name) {
                Some(true) => continue,
                Some(false) => format!(
                    "vertex {name} has no container of its own; choose a vertex with udf, sink.udsink or source.udsource"
                ),
                None => {
                    let known: Vec<&str> = self.vertices.keys().map(String::as_str).take(32).collect();
                    format!("the Pipeline has no vertex {name}; its vertices are {}", known.join(", "))
                }
            };
            return self.problem(&format!("{place}.{field}: {problem}"));
        }
        self.edges.push(Edge { place, from, to, networks, port, resources });
    }
}

/// Parts of an edge, before its vertices are looked up.
struct RawParts {
    from: String,
    to: Receiver,
    networks: Vec<NetworkReference>,
    port: u16,
    resources: BTreeMap<String, u32>,
}

impl Default for RawParts {
    fn default() -> Self {
        let to = Receiver::MonoVertex(String::new());
        Self { from: String::new(), to, networks: Vec::new(), port: DEFAULT_PORT, resources: BTreeMap::new() }
    }
}

/// Parses an edge of [`DIRECT_EDGES`]. A problem begins with its field, after a point, or with a
/// colon.
fn direct_edge(text: &str) -> Result<RawParts, String> {
    let raw: RawEdge = strict(text)?;
    let to = match (raw.to, raw.to_pipeline, raw.to_mono_vertex) {
        (Some(vertex), pipeline, None) => Receiver::Vertex { pipeline, vertex },
        (None, None, Some(name)) => Receiver::MonoVertex(name),
        _ => {
            return Err(": must have to, to with toPipeline, or toMonoVertex".to_owned());
        }
    };
    let (Receiver::Vertex { vertex: name, .. } | Receiver::MonoVertex(name)) = &to;
    let pipeline = if let Receiver::Vertex { pipeline: Some(pipeline), .. } = &to { pipeline } else { name };
    if let Some(name) = [name, pipeline].into_iter().find(|name| !DNS_LABEL.accepts(name)) {
        return Err(format!(": must name its receiver by {DNS_LABEL}; {name} is not"));
    }
    let port = raw.port.unwrap_or(DEFAULT_PORT);
    few(raw.networks.len())?;
    let mut networks = Vec::new();
    for (index, network) in raw.networks.iter().enumerate() {
        networks
            .push(self::network(network.get()).map_err(|problem| format!(".networks[{index}]{problem}"))?);
    }
    check(&networks, port)?;
    if raw.resources.len() > MAX_RESOURCES {
        return Err(format!(".resources: may have {MAX_RESOURCES} entries"));
    }
    for (name, number) in &raw.resources {
        // Only extended resources: cpu and memory are the author's.
        if !name.contains('/') || !QUALIFIED_NAME.accepts(name) || *number == 0 {
            return Err(format!(
                ".resources: must have the names of device resources, such as rdma/hca_shared_devices_a, with numbers from 1; {name}: {number} is not"
            ));
        }
    }
    Ok(RawParts { from: raw.from, to, networks, port, resources: raw.resources })
}

/// Parses an edge of [`NUMA_NETWORK_EDGES`]. gpu-direct-comm names the template of a network's
/// claims after the network.
fn numa_network_edge(text: &str) -> Result<RawParts, String> {
    let raw: RawNumaEdge = strict(text)?;
    let networks = vec![NetworkReference {
        kind: NetworkKind::ResourceClaimTemplate,
        name: format!("{}-rct", raw.numa_network),
        namespace: None,
        alias: Some(raw.numa_network),
    }];
    check(&networks, DEFAULT_PORT)?;
    let to = Receiver::Vertex { pipeline: None, vertex: raw.to };
    Ok(RawParts { from: raw.from, to, networks, ..RawParts::default() })
}

/// Parses the networks that a vertex declares for itself.
fn own_networks(text: &str) -> Result<Vec<NetworkReference>, String> {
    few(names(text).count())?;
    let networks: Vec<_> = names(text).map(by_name).collect();
    check(&networks, DEFAULT_PORT)?;
    Ok(networks)
}

/// Refuses a number of networks that is too large, before each of them is looked at.
fn few(networks: usize) -> Result<(), String> {
    let problem = || format!(".networks: must have 1 to {MAX_NETWORKS} items, not {networks}");
    (networks <= MAX_NETWORKS).then_some(()).ok_or_else(problem)
}

/// Parses a network: a name, or an object.
fn network(text: &str) -> Result<NetworkReference, String> {
    if text.starts_with('"') {
        return strict::<String>(text).map(|name| by_name(&name));
    }
    let RawNetwork { kind, name, namespace, alias } = strict(text)?;
    if kind == NetworkKind::ResourceClaimTemplate && namespace.is_some() {
        return Err(".namespace: must not be set; claims are made from templates of the pod's own namespace"
            .to_owned());
    }
    Ok(NetworkReference { kind, name, namespace, alias })
}

/// Returns a NetworkAttachmentDefinition by `name` or `namespace/name`.
fn by_name(text: &str) -> NetworkReference {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name),
        None => (None, text),
    };
    NetworkReference { name: name.to_owned(), namespace, ..NetworkReference::default() }
}

/// Splits a list of names at its commas.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Checks networks and port by the rules of a MultiNetworkService, whose fields have the same
/// names.
fn check(networks: &[NetworkReference], port: u16) -> Result<(), String> {
    let spec = service_spec(networks.to_vec(), vec![Port { port, ..Port::default() }]);
    validate(&MultiNetworkService::new("edge", spec)).map_err(|violations| {
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        let first = first.strip_prefix("spec").unwrap_or(&first);
        first.replacen(".ports[0].port", ".port", 1)
    })
}

/// Returns the spec of a service on these networks, with the API's defaults.
pub(crate) fn service_spec(networks: Vec<NetworkReference>, ports: Vec<Port>) -> MultiNetworkServiceSpec {
    MultiNetworkServiceSpec {
        selector: None,
        networks,
        ports,
        ip_families: IpFamily::ALL.to_vec(),
        publish_not_ready_addresses: false,
        ttl_seconds: None,
        mirror: None,
    }
}

/// Parses JSON strictly. A problem begins with the path of its field.
fn strict<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { format!(".{path}") };
        let reason = error.inner().to_string();
        // The position counts from the edge's own beginning, which its author does not see.
        let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(reason, _)| reason);
        format!("{path}: {reason}")
    })
}

#[cfg(test)]
mod tests;
