//! Metadata of slices. Sets what the controller owns, and keeps what others have added.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference};
use kube::Resource;
use multinet_crds::MultiNetworkService;

use super::Owner;

/// Metadata that all slices of a service share.
pub(crate) struct CommonMetadata<'a> {
    /// Service that owns the slices.
    pub(crate) owner: &'a Owner,
    /// All labels of the slices.
    pub(crate) labels: BTreeMap<String, String>,
    /// Key of the annotation with the time of the change that the slices reflect.
    pub(crate) annotation: &'static str,
    /// Time of the change that the slices reflect, if known.
    pub(crate) trigger: Option<Timestamp>,
}

impl CommonMetadata<'_> {
    /// Returns whether labels and owner are as wanted. The annotation alone is no reason to write.
    pub(crate) fn matches(&self, metadata: &ObjectMeta) -> bool {
        metadata.labels.as_ref() == Some(&self.labels)
            && is_owned(metadata.owner_references.as_deref().unwrap_or_default(), self.owner)
    }

    /// Returns the metadata of a new slice.
    pub(crate) fn create(&self, name: String) -> ObjectMeta {
        let namespace = Some(self.owner.namespace.clone());
        self.update(&ObjectMeta { name: Some(name), namespace, ..ObjectMeta::default() })
    }

    /// Returns the metadata of an updated slice. Keeps what others have set, and the version that
    /// the change was planned on.
    pub(crate) fn update(&self, metadata: &ObjectMeta) -> ObjectMeta {
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        match self.trigger {
            Some(trigger) => annotations.insert(self.annotation.to_owned(), format!("{trigger:.6}")),
            None => annotations.remove(self.annotation),
        };
        let mut owners = metadata.owner_references.clone().unwrap_or_default();
        if !is_owned(&owners, self.owner) {
            set_controller(&mut owners, self.owner);
        }
        ObjectMeta {
            labels: Some(self.labels.clone()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(owners),
            // This makes the API server drop the slice's `managedFields`, at its first update, and
            // track none from then on. Tracking takes time at each write, and storage
            // (docs/benchmarks.md). For custom resources this requires an empty entry; an empty
            // list has no effect. As a consequence, a user who applies an annotation to a slice has
            // to remove it explicitly.
            managed_fields: Some(vec![ManagedFieldsEntry::default()]),
            ..metadata.clone()
        }
    }
}

/// Returns the value of the label `key`; `None` if the object lacks that label.
pub(crate) fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the name of the MultiNetworkService that is the object's controller, if one is.
pub(crate) fn controller_of(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true) && is_service(owner))?;
    Some(&controller.name)
}

/// Returns whether the service is the controller, and no other MultiNetworkService is an owner.
fn is_owned(owners: &[OwnerReference], owner: &Owner) -> bool {
    let wanted = reference(owner);
    let mut found = owners.iter().filter(|owner| is_service(owner) || owner.controller == Some(true));
    found.next().is_some_and(|found| {
        let block_owner_deletion = found.block_owner_deletion.filter(|block| *block);
        OwnerReference { block_owner_deletion, ..found.clone() } == wanted
    }) && found.next().is_none()
}

/// Makes the service the controller. Keeps owners of other kinds, but only as plain owners, since
/// an object has at most one controller.
fn set_controller(owners: &mut Vec<OwnerReference>, owner: &Owner) {
    owners.retain(|owner| !is_service(owner));
    for other in owners.iter_mut() {
        other.controller = other.controller.filter(|controller| !controller);
    }
    owners.push(reference(owner));
}

fn reference(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: MultiNetworkService::api_version(&()).into_owned(),
        kind: MultiNetworkService::kind(&()).into_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Returns whether the owner is a MultiNetworkService of any version.
fn is_service(owner: &OwnerReference) -> bool {
    owner.kind == MultiNetworkService::kind(&())
        && owner
            .api_version
            .split_once('/')
            .is_some_and(|(group, _)| group == MultiNetworkService::group(&()))
}
