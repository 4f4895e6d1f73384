//! Decoding of objects from files, as the API server would decode them.
//!
//! A document is treated as by `kubectl apply`: nulls count as absent fields, 5.0 is an integer,
//! and `status` and unknown fields are dropped. The latter are named, for a warning. A mistyped
//! field is an error that names its path.
//!
//! ```
//! use multinet_crds::manifest;
//!
//! let document = serde_json::json!({
//!     "apiVersion": "multinetwork.numaproj.io/v1alpha1",
//!     "kind": "MultiNetworkService",
//!     "metadata": {"name": "infer", "namespace": "vision"},
//!     "spec": {"networks": [{"name": "rdma-a", "alias": "Rail0"}]},
//! });
//! let rejected = manifest::admit(document).unwrap_err();
//! assert!(
//!     rejected.to_string().starts_with(
//!         "MultiNetworkService vision/infer: spec.networks[0].alias: must be a DNS label"
//!     )
//! );
//! ```

mod shape;

use std::fmt;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResourceExt as _, Resource as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::numbers;
use crate::validate::{Violation, validate};
use crate::{MultiNetworkEndpointSlice, MultiNetworkService};

static SERVICE_SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| schema(MultiNetworkService::crd()));
static SLICE_SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| schema(MultiNetworkEndpointSlice::crd()));

/// Object of one of the kinds of multinet's API group.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A MultiNetworkService.
    Service(Box<MultiNetworkService>),
    /// A MultiNetworkEndpointSlice.
    Slice(Box<MultiNetworkEndpointSlice>),
}

impl Object {
    /// Returns the object's metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Service(service) => &service.metadata,
            Self::Slice(slice) => &slice.metadata,
        }
    }

    /// Validates the object by [`crate::validate::validate`].
    pub fn validate(&self) -> Result<(), Vec<Violation>> {
        match self {
            Self::Service(service) => validate(&**service),
            Self::Slice(slice) => validate(&**slice),
        }
    }
}

/// Object decoded from a document, and the fields of the document that were ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Object that the document holds.
    pub object: Object,
    /// Paths of fields that the API does not have. Callers should warn, because the fields may be
    /// misspelt.
    pub ignored: Vec<String>,
}

/// Error about a document that does not hold a valid object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Rejected {
    /// Kind in the document, or a placeholder if it has none.
    pub kind: String,
    /// Namespace in the document; `None` if it has none.
    pub namespace: Option<String>,
    /// Name in the document; `None` if it has none.
    pub name: Option<String>,
    /// All rules that the document breaks; never empty.
    pub violations: Vec<Violation>,
}

/// Formats as one line: `MultiNetworkService vision/infer: spec.networks: must be set; …`.
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.name.as_deref().unwrap_or("(without name)"))?;
        for (index, violation) in self.violations.iter().enumerate() {
            write!(f, "{} {violation}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl Rejected {
    /// Returns the error for a document, without violations yet.
    fn of(document: &Value) -> Self {
        let text = |pointer| text(document, pointer).map(str::to_owned);
        Self {
            kind: text("/kind").unwrap_or_else(|| "object without kind".to_owned()),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            violations: Vec::new(),
        }
    }
}

/// Decodes and validates one document, as the API server does on create. `None` if it belongs to
/// another API group.
pub fn admit(document: Value) -> Result<Option<Manifest>, Rejected> {
    let rejected = Rejected::of(&document);
    let admitted = decode(document).and_then(|manifest| {
        manifest.as_ref().map_or(Ok(()), |manifest| manifest.object.validate())?;
        Ok(manifest)
    });
    admitted.map_err(|violations| Rejected { violations, ..rejected })
}

/// Decodes one document. Validates only types, required fields, enumerations and ranges of numbers.
/// `None` if it belongs to another API group.
fn decode(mut document: Value) -> Result<Option<Manifest>, Vec<Violation>> {
    let group = MultiNetworkService::group(&());
    let version = MultiNetworkService::api_version(&());
    let Some(api_version) = text(&document, "/apiVersion") else {
        return Ok(None);
    };
    if api_version.split('/').next() != Some(&*group) {
        return Ok(None);
    }
    let wrong = |field: &str, message: String| vec![Violation::new(field, message)];
    if api_version != version {
        return Err(wrong("apiVersion", format!("must be {version}; {api_version:?} is not known")));
    }
    normalise(&mut document);
    if !document.get("metadata").is_some_and(Value::is_object) {
        return Err(wrong("metadata", "must be set".to_owned()));
    }
    if text(&document, "/metadata/name").is_none_or(str::is_empty) {
        return Err(wrong("metadata.name", "must be set".to_owned()));
    }
    let (object, ignored) = match text(&document, "/kind").unwrap_or_default() {
        "MultiNetworkService" => {
            let (service, ignored) = typed(document, &SERVICE_SCHEMA)?;
            (Object::Service(service), ignored)
        }
        "MultiNetworkEndpointSlice" => {
            let (slice, ignored) = typed(document, &SLICE_SCHEMA)?;
            (Object::Slice(slice), ignored)
        }
        kind => {
            let message =
                format!("must be MultiNetworkService or MultiNetworkEndpointSlice; {kind:?} is not known");
            return Err(wrong("kind", message));
        }
    };
    Ok(Some(Manifest { object, ignored }))
}

/// Normalises a document as the API server does before validation: drops nulls (no field of ours is
/// nullable) and `status`, which users may not write, and turns integral numbers into integers.
fn normalise(document: &mut Value) {
    drop_nulls(document);
    numbers::integers_from_floats(document);
    if let Some(members) = document.as_object_mut() {
        members.remove("status");
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Decodes a document of the kind `T`. Returns the object, and the paths that its schema does not
/// have.
fn typed<T: DeserializeOwned>(
    document: Value,
    schema: &JSONSchemaProps,
) -> Result<(Box<T>, Vec<String>), Vec<Violation>> {
    let ignored = shape::check(&document, schema)?;
    let object = serde_path_to_error::deserialize(document)
        .map_err(|error| vec![Violation::new(error.path().to_string(), error.inner().to_string())])?;
    Ok((Box::new(object), ignored))
}

/// Returns the schema of a kind's only version.
fn schema(crd: CustomResourceDefinition) -> JSONSchemaProps {
    let version = crd.spec.versions.into_iter().next();
    version.and_then(|version| version.schema?.open_api_v3_schema).unwrap_or_default()
}

fn text<'a>(document: &'a Value, pointer: &str) -> Option<&'a str> {
    document.pointer(pointer).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
