//! The metadata of slices: what must be there, and how it is put there without touching the rest.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference};
use kube::Resource;
use multinet_crds::MultiNetworkService;

use super::Owner;

/// The metadata that all slices of a service have in common.
pub(crate) struct CommonMetadata<'a> {
    /// The service that owns them.
    pub(crate) owner: &'a Owner,
    /// All of their labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The annotation with the time of the change.
    pub(crate) annotation: &'static str,
    /// That time.
    pub(crate) trigger: Option<Timestamp>,
}

impl CommonMetadata<'_> {
    /// Whether labels and owner are as they should be. The annotation never is a reason to write.
    pub(crate) fn matches(&self, metadata: &ObjectMeta) -> bool {
        metadata.labels.as_ref() == Some(&self.labels)
            && is_owned(metadata.owner_references.as_deref().unwrap_or_default(), self.owner)
    }

    /// The metadata of a new slice.
    pub(crate) fn create(&self, name: String) -> ObjectMeta {
        let namespace = Some(self.owner.namespace.clone());
        self.update(&ObjectMeta { name: Some(name), namespace, ..ObjectMeta::default() })
    }

    /// The metadata of a slice that is written anew: all that is others' stays, and so does the version that the change
    /// was planned on.
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
            // Has the server drop its books of who wrote which field, at the first change of a slice, and keep none from then on: they
            // cost it time with each write, and room (docs/benchmarks.md). Of custom resources it drops them for this one empty
            // entry, not for an empty list. Who applies an annotation to a slice, and then no longer does, has to remove it.
            managed_fields: Some(vec![ManagedFieldsEntry::default()]),
            ..metadata.clone()
        }
    }
}

/// A label of an object.
pub(crate) fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The name of the MultiNetworkService that is the controller of an object.
pub(crate) fn controller_of(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true) && is_service(owner))?;
    Some(&controller.name)
}

/// Whether the service is the one controller, and no other MultiNetworkService an owner.
fn is_owned(owners: &[OwnerReference], owner: &Owner) -> bool {
    let wanted = reference(owner);
    let mut found = owners.iter().filter(|owner| is_service(owner) || owner.controller == Some(true));
    found.next().is_some_and(|found| {
        let block_owner_deletion = found.block_owner_deletion.filter(|block| *block);
        OwnerReference { block_owner_deletion, ..found.clone() } == wanted
    }) && found.next().is_none()
}

/// Makes the service the controller. Owners of other kinds stay, but there can be only one controller.
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

/// Whether the owner is a MultiNetworkService, of whichever version.
fn is_service(owner: &OwnerReference) -> bool {
    owner.kind == MultiNetworkService::kind(&())
        && owner
            .api_version
            .split_once('/')
            .is_some_and(|(group, _)| group == MultiNetworkService::group(&()))
}
