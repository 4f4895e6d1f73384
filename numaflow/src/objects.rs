//! Numaflow's objects, reduced to the fields that this program reads.
//!
//! Numaflow's types have some hundred fields and change with each version, so none of them is
//! vendored. What is injected is merged into the object's JSON instead ([`crate::inject`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use multinet_runtime::ObjectKey;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

/// API group of Numaflow.
pub const GROUP: &str = "numaflow.numaproj.io";

/// Version of the API group.
pub const VERSION: &str = "v1alpha1";

/// Group and version, as in `apiVersion`.
pub const API_VERSION: &str = "numaflow.numaproj.io/v1alpha1";

/// Annotation of a Vertex: hash of the part of the Pipeline that its spec was written from. Where
/// it differs from the hash of the Pipeline's part, Numaflow writes the spec anew.
pub const HASH: &str = "numaflow.numaproj.io/hash";

/// Label of Vertices and their pods: the Pipeline's name.
pub const PIPELINE_NAME: &str = "numaflow.numaproj.io/pipeline-name";

/// Label of Vertices and their pods: the vertex' name within the Pipeline.
pub const VERTEX_NAME: &str = "numaflow.numaproj.io/vertex-name";

/// Label of a MonoVertex' pods: its name.
pub const MONO_VERTEX_NAME: &str = "numaflow.numaproj.io/mono-vertex-name";

/// Label of pods: `vertex` or `mono-vertex` for those that process messages.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// Annotation in a Vertex' `spec.metadata`: the plan that the webhook injected.
pub const PLAN: &str = "multinetwork.numaproj.io/plan";

/// A kind of Numaflow's objects, named by the type of its `spec`.
pub trait Kind: DeserializeOwned + Default + Clone + Debug + Send + Sync + 'static {
    /// Name of the kind.
    const KIND: &'static str;
    /// Plural of the kind's name, as in URLs.
    const PLURAL: &'static str;
}

/// Object with its metadata and the read part of its `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(bound = "")]
pub struct Object<S: Kind> {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// Part of the spec.
    #[serde(default, deserialize_with = "nullable")]
    pub spec: S,
}

/// Reads a null as an absent field. Where a definition has no schema, the API server keeps nulls.
fn nullable<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A Pipeline.
pub type Pipeline = Object<PipelineSpec>;
/// A Vertex, which Numaflow writes for each vertex of a Pipeline.
pub type Vertex = Object<VertexSpec>;
/// A MonoVertex, which is a source and a sink in one pod.
pub type MonoVertex = Object<MonoVertexSpec>;

impl<S: Kind> Object<S> {
    /// Returns namespace and name of the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::from(&self.metadata)
    }

    /// Returns an annotation of the object; empty if it has none of this key.
    pub fn annotation(&self, key: &str) -> &str {
        self.metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
    }
}

impl<S: Kind> Resource for Object<S> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        S::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        S::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Part of a Pipeline's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PipelineSpec {
    /// Vertices of the Pipeline.
    #[serde(deserialize_with = "nullable")]
    pub vertices: Vec<PipelineVertex>,
}

impl Kind for PipelineSpec {
    const KIND: &'static str = "Pipeline";
    const PLURAL: &'static str = "pipelines";
}

/// Vertex of a Pipeline.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PipelineVertex {
    /// Name within the Pipeline.
    pub name: String,
    /// Metadata of the vertex' pods.
    #[serde(deserialize_with = "nullable")]
    pub metadata: PodMetadata,
    udf: Option<UserDefined>,
    source: Option<Source>,
    sink: Option<Sink>,
}

impl PipelineVertex {
    /// Returns whether the vertex runs a container of the Pipeline's author, into which environment
    /// and devices can be injected.
    pub fn is_user_defined(&self) -> bool {
        let has_container = |it: &Option<UserDefined>| it.as_ref().is_some_and(|it| it.container.is_some());
        has_container(&self.udf)
            || self.sink.as_ref().is_some_and(|sink| has_container(&sink.udsink))
            || self.source.as_ref().is_some_and(|source| has_container(&source.udsource))
    }
}

#[derive(Clone, Debug, Deserialize)]
struct UserDefined {
    container: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
struct Source {
    udsource: Option<UserDefined>,
}

#[derive(Clone, Debug, Deserialize)]
struct Sink {
    udsink: Option<UserDefined>,
}

/// Labels and annotations that Numaflow gives to the pods of a vertex.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodMetadata {
    /// Annotations of the pods.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
}

/// Part of a Vertex' spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VertexSpec {
    /// Name within the Pipeline.
    pub name: String,
    /// Name of the Pipeline.
    pub pipeline_name: String,
    /// Metadata of the vertex' pods.
    #[serde(deserialize_with = "nullable")]
    pub metadata: PodMetadata,
}

impl Kind for VertexSpec {
    const KIND: &'static str = "Vertex";
    const PLURAL: &'static str = "vertices";
}

/// Spec of a MonoVertex, of which nothing is read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MonoVertexSpec {}

impl Kind for MonoVertexSpec {
    const KIND: &'static str = "MonoVertex";
    const PLURAL: &'static str = "monovertices";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_are_absent_fields() {
        for pipeline in [
            json!({"metadata": {}, "spec": null}),
            json!({"metadata": {}, "spec": {"vertices": null}}),
            json!({"metadata": {}, "spec": {"vertices": [{"name": "a", "metadata": null, "udf": null, "sink": null}]}}),
            json!({"metadata": {}, "spec": {"vertices": [{"name": "a", "metadata": {"annotations": null}}]}}),
        ] {
            let decoded: Pipeline = serde_json::from_value(pipeline).unwrap();
            assert!(decoded.spec.vertices.iter().all(|vertex| !vertex.is_user_defined()));
        }
    }
}
