//! Decoding of objects from files, as the API server would decode them.
//!
//! A document is treated as by `kubectl apply`: nulls count as absent fields, 5.0 is an integer,
//! and `status` and unknown fields are dropped. The latter are named, for a warning. A mistyped
//! field is an error that names its path.
//!
//! ```
//! use multinet_crds::manifest::{self, Kind};
//!
//! let document = serde_json::json!({
//!     "metadata": {"name": "infer", "namespace": "vision"},
//!     "spec": {"networks": [{"name": "rdma-a", "alias": "Rail0"}]},
//! });
//! let violations = manifest::admit(Kind::Service, document).unwrap_err();
//! assert!(violations[0].to_string().starts_with("spec.networks[0].alias: must be a DNS label"));
//! ```

mod shape;

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strum::{Display, EnumString};

use crate::numbers;
use crate::validate::{Validate, Violation, validate};
use crate::{MultiNetworkEndpointSlice, MultiNetworkService};

static SERVICE_SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| schema(MultiNetworkService::crd()));
static SLICE_SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| schema(MultiNetworkEndpointSlice::crd()));

/// Kind of multinet's API group. Formats, and parses, as in the field `kind` of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString)]
pub enum Kind {
    /// A MultiNetworkService.
    #[strum(to_string = "MultiNetworkService")]
    Service,
    /// A MultiNetworkEndpointSlice.
    #[strum(to_string = "MultiNetworkEndpointSlice")]
    Slice,
}

/// Object of one of the kinds.
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

/// Decodes and validates a document of this kind, as the API server does on create. The error holds
/// all rules that the document breaks.
pub fn admit(kind: Kind, mut document: Value) -> Result<Manifest, Vec<Violation>> {
    normalise(&mut document);
    let (object, ignored) = match kind {
        Kind::Service => {
            let (service, ignored) = typed(document, &SERVICE_SCHEMA)?;
            (Object::Service(service), ignored)
        }
        Kind::Slice => {
            let (slice, ignored) = typed(document, &SLICE_SCHEMA)?;
            (Object::Slice(slice), ignored)
        }
    };
    Ok(Manifest { object, ignored })
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

/// Decodes and validates a document of the kind `T`. Returns the object, and the paths that its
/// schema does not have.
fn typed<T: DeserializeOwned + Validate>(
    document: Value,
    schema: &JSONSchemaProps,
) -> Result<(Box<T>, Vec<String>), Vec<Violation>> {
    let ignored = shape::check(&document, schema)?;
    let object = serde_path_to_error::deserialize(document)
        .map_err(|error| vec![Violation::new(error.path().to_string(), error.inner().to_string())])?;
    validate(&object)?;
    Ok((Box::new(object), ignored))
}

/// Returns the schema of a kind's only version.
fn schema(crd: CustomResourceDefinition) -> JSONSchemaProps {
    let version = crd.spec.versions.into_iter().next();
    version.and_then(|version| version.schema?.open_api_v3_schema).unwrap_or_default()
}

#[cfg(test)]
mod tests;
