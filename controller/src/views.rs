//! Kubernetes objects as far as the controller reads them, decoded straight from the API server's text.
//!
//! A pod is some 10 KB of JSON, of which less than 1 KB matters here; a node has all images that it holds, a claim the configuration
//! of its driver. serde passes over what has no field here without building it. A pod of 9.8 KB takes a sixth of the time of
//! k8s-openapi's type that way and a twentieth of its memory (25 µs and 2 KB against 144 µs and 38 KB), and none of the rest can
//! creep into an index by accident.
//!
//! Decoding a view fails only for what no API server sends: metadata or a pod's own fields of a wrong type. What users and
//! drivers write (annotations, the status of claims) is kept as text here, read when a view is turned into its type in
//! [`model`](crate::model), and never fails: an annotation that is no JSON must not keep a pod's last good one in use.
//!
//! All versions of a kind of `resource.k8s.io` have one view; which one is asked for is a type parameter.

mod core;
mod dra;
mod metadata;
mod pod;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use multinet_runtime::ObjectKey;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::core::{NetworkAttachmentDefinition, Node, Service};
pub use self::dra::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice, V1, V1Beta1, V1Beta2, Version,
};
pub use self::metadata::Keep;
pub use self::pod::Pod;
use crate::sources::dra::nullable;

/// A kind of object, and what of it is read.
pub trait Kind: Clone + Debug + Send + Sync + 'static {
    /// Its group; empty for the core one.
    const GROUP: &'static str;
    /// Its version.
    const VERSION: &'static str;
    /// Its name.
    const KIND: &'static str;
    /// Its name in URLs.
    const PLURAL: &'static str;
    /// Whether it has namespaces.
    type Scope;

    /// The labels that are kept.
    const LABELS: Keep = Keep::None;
    /// The annotations that are kept.
    const ANNOTATIONS: Keep = Keep::None;
    /// Whether the owners are kept.
    const OWNERS: bool = false;
    /// Nothing but metadata is read: the API server need not send the rest.
    const METADATA_ONLY: bool = false;

    /// What is read of `spec`.
    type Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static;
    /// What is read of `status`.
    type Status: DeserializeOwned + Default + Clone + Debug + Send + 'static;
}

/// An object of kind `K`, as far as it is read.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct View<K: Kind> {
    #[serde(deserialize_with = "metadata::decode::<K, _>")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: K::Spec,
    #[serde(default, deserialize_with = "nullable")]
    status: K::Status,
}

impl<K: Kind> View<K> {
    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl<K: Kind> From<View<K>> for ObjectKey {
    /// All that there is to know of an object that only has to exist.
    fn from(view: View<K>) -> Self {
        Self {
            namespace: view.metadata.namespace.unwrap_or_default(),
            name: view.metadata.name.unwrap_or_default(),
        }
    }
}

impl<K: Kind> Resource for View<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn metadata_api() -> bool {
        K::METADATA_ONLY
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
