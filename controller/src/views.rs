//! Views of Kubernetes objects: types with the fields that the controller reads, deserialized
//! directly from the API server's JSON.
//!
//! A pod is about 10 KB of JSON, of which less than 1 KB is needed here. A node lists all its
//! images, and a claim contains configuration of its driver. serde skips fields that a view lacks
//! without building them. For a pod of 9.8 KB, a view takes about a sixth of the time of
//! k8s-openapi's type, and a small part of its memory. In addition, unneeded data cannot get into
//! the index by accident.
//!
//! Deserializing a view fails only for input that no API server sends, such as metadata of a wrong
//! type. Annotations and claim statuses are written by users and drivers. A view keeps them as
//! text, which is parsed when the view is converted to its type in [`model`](crate::model). That
//! conversion never fails: otherwise, an invalid annotation would keep a pod's last valid one in
//! use.
//!
//! All versions of a kind of `resource.k8s.io` share one view, with the version as a type
//! parameter.

mod core;
mod dra;
mod metadata;
mod pod;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::Resource as Named;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use multinet_runtime::ObjectKey;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::core::{NetworkAttachmentDefinition, NodeView, ServiceView};
pub use self::dra::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice, V1, V1Beta1, V1Beta2, Version,
};
use self::metadata::Metadata;
pub use self::pod::PodView;
use crate::sources::dra::nullable;

/// A kind of Kubernetes object, and the parts of it that the controller reads.
pub trait Kind: Clone + Debug + Send + Sync + 'static {
    /// Type that has the kind's names and scope.
    type Object: Named;

    /// Version of the API group, such as `v1`.
    const VERSION: &'static str = Self::Object::VERSION;

    /// Whether only metadata is read, so that the API server need not send the rest.
    const METADATA_ONLY: bool = false;

    /// Type that `spec` is decoded into.
    type Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static;
    /// Type that `status` is decoded into.
    type Status: DeserializeOwned + Default + Clone + Debug + Send + 'static;
}

/// Object of kind `K`, reduced to the fields that the controller reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct View<K: Kind> {
    #[serde(with = "Metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: K::Spec,
    #[serde(default, deserialize_with = "nullable")]
    status: K::Status,
}

impl<K: Kind> View<K> {
    /// Returns namespace and name of the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::from(&self.metadata)
    }
}

impl<K: Kind> From<View<K>> for ObjectKey {
    /// Returns the key of an object of which only the existence matters.
    fn from(view: View<K>) -> Self {
        view.key()
    }
}

impl<K: Kind> Resource for View<K> {
    type DynamicType = ();
    type Scope = <K::Object as Named>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::Object::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::Object::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::Object::URL_PATH_SEGMENT.into()
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
