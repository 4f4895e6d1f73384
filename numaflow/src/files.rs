//! Injects plans into manifests, without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::annotation::{DIRECT_EDGES, DIRECT_TO, Declared, NETWORKS, NUMA_NETWORK_EDGES};
use crate::inject::{JsonObject, MULTUS_NETWORKS, inject, object};
use crate::objects::{API_VERSION, Kind as _, MonoVertexSpec, Pipeline, PipelineSpec};
use crate::plan::{EndName, Plan, Settings};
use crate::service::service;

/// Size limit of all files together, in bytes.
const MAX_SIZE: u64 = 16 << 20;

/// Annotation in which `kubectl apply` keeps a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Prints the Pipelines and MonoVertices of files with everything injected, and their services.
///
/// # Errors
///
/// If a file cannot be read, or an edge is wrong. Nothing is printed then.
pub fn print(files: &[PathBuf], settings: &Settings) -> Result<()> {
    let mut documents = Vec::new();
    let mut room = MAX_SIZE;
    for file in files {
        let text = read(file, room)?;
        room -= text.len() as u64;
        let found = parse(&text)
            .map_err(|error| anyhow!("{}: is not YAML: {}", file.display(), first_line(&error)))?;
        documents.extend(found.into_iter().filter(|document| !document.is_null()));
    }
    let text = injected(documents, settings)?;
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// Parses documents as kubectl does, by YAML 1.1: `0440` is octal. JSON is YAML.
fn parse(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_multiple_with_options(text, options)
}

fn first_line(error: &impl ToString) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn read(file: &Path, room: u64) -> Result<String> {
    let mut text = String::new();
    ensure!(!file.is_dir(), "{}: is a folder; name its files, each with -f", file.display());
    let read = if file == Path::new("-") {
        io::stdin().take(room + 1).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|opened| opened.take(room + 1).read_to_string(&mut text))
    };
    let read = read.with_context(|| format!("{}: cannot be read", file.display()))?;
    ensure!(
        read as u64 <= room,
        "{}: the files have more than {} MiB; give fewer",
        file.display(),
        MAX_SIZE >> 20
    );
    Ok(text)
}

/// Returns documents with everything injected, and the services of their ends, in YAML.
///
/// # Errors
///
/// If a document is not a Pipeline or MonoVertex, or an edge is wrong.
pub fn injected(documents: Vec<Value>, settings: &Settings) -> Result<String> {
    let mut manifests = documents.into_iter().map(Manifest::parse).collect::<Result<Vec<_>>>()?;
    ensure!(!manifests.is_empty(), "the files have no Pipeline or MonoVertex");
    let mut namespaces: BTreeMap<String, BTreeMap<String, Declared>> = BTreeMap::new();
    for manifest in &manifests {
        let pipelines = namespaces.entry(manifest.namespace.clone().unwrap_or_default()).or_default();
        if let Some(declared) = &manifest.declared {
            pipelines.insert(manifest.name.clone(), declared.clone());
        }
    }
    let mut plans = BTreeMap::new();
    for (namespace, pipelines) in &namespaces {
        let declared = pipelines.iter().map(|(name, declared)| (name.as_str(), declared));
        let is_in = |manifest: &Manifest| manifest.namespace.as_deref().unwrap_or_default() == namespace;
        let has_mono_vertex = |name: &str| {
            let end = EndName::MonoVertex(name.to_owned());
            manifests.iter().any(|manifest| is_in(manifest) && manifest.has(&end))
        };
        let plan = Plan::new(namespace_or_default(namespace), declared, has_mono_vertex, settings);
        if let Some((pipeline, problems)) = plan.problems.first_key_value() {
            bail!("Pipeline {pipeline}: {}", problems.join("; "));
        }
        let mut names = BTreeSet::new();
        if let Some(end) = plan.ends.keys().find(|end| !names.insert(end.object())) {
            bail!("two ends of edges have the MultiNetworkService {}; rename one of them", end.object());
        }
        plans.insert(namespace.as_str(), plan);
    }
    let mut out = String::new();
    for manifest in &mut manifests {
        let key = manifest.namespace.clone().unwrap_or_default();
        let ends = plans.get(key.as_str()).map(|plan| &plan.ends).into_iter().flatten();
        let ends: Vec<_> = ends.filter(|(name, _)| manifest.has(name)).collect();
        let template = manifest.document["spec"]["templates"]["vertex"].clone();
        for (name, end) in &ends {
            if let Some(vertex) = manifest.vertex(name) {
                inherit(vertex, &template);
                inject(namespace_or_default(&key), vertex, end, settings);
            }
        }
        manifest.clean();
        append(&mut out, &manifest.document)?;
        for (name, end) in ends {
            append(&mut out, &serde_json::to_value(service(manifest.namespace.as_deref(), name, end))?)?;
        }
    }
    Ok(out)
}

/// Returns the namespace for names, which `kubectl apply` chooses where the manifest has none.
fn namespace_or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

fn append(out: &mut String, document: &Value) -> Result<()> {
    out.push_str("---\n");
    out.push_str(serde_saphyr::to_string(document).context("cannot write YAML")?.trim_end());
    out.push('\n');
    Ok(())
}

/// Document of a Pipeline or a MonoVertex.
struct Manifest {
    namespace: Option<String>,
    name: String,
    /// Edges of a Pipeline; `None` for a MonoVertex.
    declared: Option<Declared>,
    document: Value,
}

impl Manifest {
    fn parse(document: Value) -> Result<Self> {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        let metadata = &document["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        let is_known = [PipelineSpec::KIND, MonoVertexSpec::KIND].contains(&kind.as_str());
        ensure!(
            is_known && document["apiVersion"] == API_VERSION && !name.is_empty(),
            "{kind} {name}: is not a Pipeline or MonoVertex of {API_VERSION} with a name; leave it out"
        );
        let namespace = metadata["namespace"].as_str().map(str::to_owned);
        let declared = match kind == PipelineSpec::KIND {
            true => {
                let pipeline: Pipeline = serde_path_to_error::deserialize(&document)
                    .map_err(|error| anyhow!("Pipeline {name}: {}: {}", error.path(), error.inner()))?;
                Some(Declared::of(&pipeline))
            }
            false => None,
        };
        Ok(Self { namespace, name, declared, document })
    }

    /// Returns whether an end of edges is in this document.
    fn has(&self, end: &EndName) -> bool {
        match end {
            EndName::Vertex { pipeline, .. } => self.declared.is_some() && *pipeline == self.name,
            EndName::MonoVertex(name) => self.declared.is_none() && *name == self.name,
        }
    }

    /// Returns the JSON of an end of edges.
    fn vertex(&mut self, end: &EndName) -> Option<&mut JsonObject> {
        let spec = self.document.get_mut("spec")?;
        match end {
            EndName::MonoVertex(_) => spec.as_object_mut(),
            EndName::Vertex { vertex, .. } => {
                let vertices = spec.get_mut("vertices")?.as_array_mut()?;
                vertices.iter_mut().find(|it| it["name"] == **vertex)?.as_object_mut()
            }
        }
    }

    /// Removes the annotations about edges, so that nothing is injected twice, and what an API
    /// server has added.
    fn clean(&mut self) {
        let Some(document) = self.document.as_object_mut() else { return };
        document.remove("status");
        let of_pipeline = [DIRECT_EDGES, NUMA_NETWORK_EDGES, LAST_APPLIED];
        remove(document, &of_pipeline);
        let vertices = document.get_mut("spec").and_then(|spec| spec.get_mut("vertices"));
        for vertex in vertices.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(vertex) = vertex.as_object_mut() {
                remove(vertex, &[NETWORKS, DIRECT_TO]);
            }
        }
    }
}

/// Copies what is merged with an injection from the Pipeline's template of all vertices. Numaflow
/// takes such a field from the template only if the vertex has none.
fn inherit(vertex: &mut JsonObject, template: &Value) {
    if let Some(claims) = template.get("resourceClaims").filter(|claims| claims.is_array()) {
        vertex.entry("resourceClaims").or_insert_with(|| claims.clone());
    }
    let networks = &template["metadata"]["annotations"][MULTUS_NETWORKS];
    if networks.is_string()
        && let Some(annotations) = object(vertex, "metadata").and_then(|it| object(it, "annotations"))
    {
        annotations.entry(MULTUS_NETWORKS).or_insert_with(|| networks.clone());
    }
}

/// Removes annotations from an object's metadata, and what is empty then.
fn remove(document: &mut JsonObject, keys: &[&str]) {
    if document.get("metadata").and_then(|metadata| metadata.get("annotations")).is_none() {
        return;
    }
    let Some(metadata) = object(document, "metadata") else { return };
    let Some(annotations) = object(metadata, "annotations") else { return };
    keys.iter().for_each(|key| drop(annotations.remove(*key)));
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    if metadata.is_empty() {
        document.remove("metadata");
    }
}

#[cfg(test)]
mod tests;
