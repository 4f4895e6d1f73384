//! Objects that the real Numaflow controller wrote, for tests.

use serde_json::{Value, json};

use crate::annotation::DIRECT_EDGES;
use crate::inject::JsonObject;
use crate::objects::{Pipeline, Vertex};
use crate::plan::Settings;

fn list(text: &str) -> Vec<Value> {
    let list: Value = serde_saphyr::from_str(text).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Returns the default settings.
pub(crate) fn settings() -> Settings {
    Settings {
        vertex_zone: "vertexdomain.local".to_owned(),
        zone: "multinet.cluster.local".to_owned(),
        ipc_lock: true,
    }
}

/// Returns the Pipeline vision/frames (in, decode, infer) with this annotation.
pub(crate) fn pipeline_json(edges: &str) -> Value {
    let mut pipeline = list(include_str!("../tests/fixtures/pipelines.yaml")).remove(0);
    pipeline["metadata"]["annotations"] = json!({DIRECT_EDGES: edges});
    pipeline
}

/// Returns the same Pipeline, decoded.
pub(crate) fn pipeline(edges: &str) -> Pipeline {
    serde_json::from_value(pipeline_json(edges)).unwrap()
}

/// Returns the Vertex vision/frames-`name` as Numaflow wrote it, without its status.
pub(crate) fn vertex_json(name: &str) -> Value {
    let vertices = list(include_str!("../tests/fixtures/vertices.yaml"));
    vertices.into_iter().find(|vertex| vertex["spec"]["name"] == name).unwrap()
}

/// Returns the same Vertex, decoded.
pub(crate) fn vertex(name: &str) -> Vertex {
    serde_json::from_value(vertex_json(name)).unwrap()
}

/// Returns the spec of the same Vertex.
pub(crate) fn spec(name: &str) -> JsonObject {
    vertex_json(name)["spec"].as_object().unwrap().clone()
}

/// Returns the MonoVertex vision/mono.
pub(crate) fn mono_vertex_json() -> Value {
    list(include_str!("../tests/fixtures/monovertices.yaml")).remove(0)
}
