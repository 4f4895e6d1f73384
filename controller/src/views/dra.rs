//! Views of dynamic resource allocation, for all supported versions of the API.

use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::api::resource::v1;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{Kind, View};
use crate::model;
use crate::sources::dra::{self, SliceSpec};

/// A version of `resource.k8s.io`.
pub trait Version: Clone + Debug + Send + Sync + 'static {
    /// Name of the version in URLs.
    const NAME: &'static str;
}

/// Version v1, since Kubernetes 1.34.
#[derive(Clone, Debug)]
pub struct V1;

/// Version v1beta2, since Kubernetes 1.33, off by default.
#[derive(Clone, Debug)]
pub struct V1Beta2;

/// Version v1beta1, since Kubernetes 1.32, off by default.
#[derive(Clone, Debug)]
pub struct V1Beta1;

impl Version for V1 {
    const NAME: &'static str = "v1";
}

impl Version for V1Beta2 {
    const NAME: &'static str = "v1beta2";
}

impl Version for V1Beta1 {
    const NAME: &'static str = "v1beta1";
}

/// View of a DeviceClass, of which only the existence matters.
pub type DeviceClass<V> = View<DeviceClassKind<V>>;

/// The kind of [`DeviceClass`].
#[derive(Clone, Debug)]
pub struct DeviceClassKind<V>(PhantomData<V>);

impl<V: Version> Kind for DeviceClassKind<V> {
    type Object = v1::DeviceClass;
    const VERSION: &'static str = V::NAME;
    const METADATA_ONLY: bool = true;
    type Spec = IgnoredAny;
    type Status = IgnoredAny;
}

/// View of a ResourceClaimTemplate, of which only the existence matters.
pub type ResourceClaimTemplate<V> = View<ResourceClaimTemplateKind<V>>;

/// The kind of [`ResourceClaimTemplate`].
#[derive(Clone, Debug)]
pub struct ResourceClaimTemplateKind<V>(PhantomData<V>);

impl<V: Version> Kind for ResourceClaimTemplateKind<V> {
    type Object = v1::ResourceClaimTemplate;
    const VERSION: &'static str = V::NAME;
    const METADATA_ONLY: bool = true;
    type Spec = IgnoredAny;
    type Status = IgnoredAny;
}

/// View of a ResourceClaim, with its devices and their classes.
pub type ResourceClaim<V> = View<ResourceClaimKind<V>>;

/// The kind of [`ResourceClaim`].
#[derive(Clone, Debug)]
pub struct ResourceClaimKind<V>(PhantomData<V>);

impl<V: Version> Kind for ResourceClaimKind<V> {
    type Object = v1::ResourceClaim;
    const VERSION: &'static str = V::NAME;
    type Spec = Unread;
    type Status = Unread;
}

/// Part of an object that is kept as text and parsed later, so that it cannot make the
/// deserialization fail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Unread(Option<Box<RawValue>>);

impl<V: Version> From<ResourceClaim<V>> for model::Claim {
    fn from(claim: ResourceClaim<V>) -> Self {
        dra::read(claim.key(), claim.spec.0.as_deref(), claim.status.0.as_deref())
    }
}

/// View of a ResourceSlice, with a driver's devices.
pub type ResourceSlice<V> = View<ResourceSliceKind<V>>;

/// The kind of [`ResourceSlice`].
#[derive(Clone, Debug)]
pub struct ResourceSliceKind<V>(PhantomData<V>);

impl<V: Version> Kind for ResourceSliceKind<V> {
    type Object = v1::ResourceSlice;
    const VERSION: &'static str = V::NAME;
    type Spec = SliceSpec;
    type Status = IgnoredAny;
}

impl<V: Version> From<ResourceSlice<V>> for model::DeviceSlice {
    fn from(slice: ResourceSlice<V>) -> Self {
        let key = slice.key();
        slice.spec.into_slice(key)
    }
}
