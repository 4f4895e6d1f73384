//! MultiNetworkServices of the ends of direct edges.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use multinet_crds::MultiNetworkService;

use crate::annotation::service_spec;
use crate::objects::{API_VERSION, COMPONENT, MONO_VERTEX_NAME, PIPELINE_NAME, VERTEX_NAME};
use crate::plan::{End, EndName};

/// Label of services: the program that writes them.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Value of [`MANAGED_BY`] on services that this program writes.
pub const PROGRAM: &str = "multinet-numaflow";

/// Returns the service of an end, without owner.
pub fn service(namespace: Option<&str>, name: &EndName, end: &End) -> MultiNetworkService {
    let (component, labels) = match name {
        EndName::Vertex { pipeline, vertex } => {
            ("vertex", vec![(PIPELINE_NAME, pipeline), (VERTEX_NAME, vertex)])
        }
        EndName::MonoVertex(name) => ("mono-vertex", vec![(MONO_VERTEX_NAME, name)]),
    };
    let labels: BTreeMap<String, String> =
        labels.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let mut selector = labels.clone();
    selector.insert(COMPONENT.to_owned(), component.to_owned());
    let mut spec = service_spec(end.networks.clone(), end.service_ports());
    spec.selector = Some(LabelSelector { match_labels: Some(selector), match_expressions: None });
    let mut service = MultiNetworkService::new(&name.object(), spec);
    service.metadata.namespace = namespace.map(str::to_owned);
    service.metadata.labels = Some(labels);
    service
}

/// Returns the service of an end that belongs to the object with this uid, and is removed with it.
pub fn owned_service(namespace: &str, name: &EndName, end: &End, uid: &str) -> MultiNetworkService {
    let mut service = service(Some(namespace), name, end);
    let kind = match name {
        EndName::Vertex { .. } => "Vertex",
        EndName::MonoVertex(_) => "MonoVertex",
    };
    service.metadata.labels.get_or_insert_default().insert(MANAGED_BY.to_owned(), PROGRAM.to_owned());
    service.metadata.owner_references = Some(vec![OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        name: name.object(),
        uid: uid.to_owned(),
        controller: Some(true),
        // Blocking takes a permission on finalizers of Numaflow's kinds.
        block_owner_deletion: Some(false),
    }]);
    service
}

/// Returns whether this program wrote the service.
pub fn is_ours(service: &MultiNetworkService) -> bool {
    let labels = service.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == PROGRAM)
}

/// Returns the uid of the object that owns the service.
pub fn owner(service: &MultiNetworkService) -> Option<&str> {
    let owners = service.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str()).next()
}
