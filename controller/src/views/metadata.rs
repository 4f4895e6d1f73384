//! Deserializes an object's metadata without its managed fields, which are the largest part of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

/// The fields of [`ObjectMeta`], of which serde does not read the managed fields.
#[derive(Deserialize)]
#[serde(remote = "ObjectMeta", rename_all = "camelCase")]
pub(super) struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip)]
    managed_fields: Option<Vec<ManagedFieldsEntry>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}
