//! Views of nodes, core Services and NetworkAttachmentDefinitions.

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::{NamespaceResourceScope, Resource as Named};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Kind, View};
use crate::model;
use crate::sources::dra::nullable;

/// Label of a node with the topology zone that the node is in.
const ZONE: &str = "topology.kubernetes.io/zone";

/// View of a node, with its zone.
pub type NodeView = View<NodeKind>;

/// The kind of [`NodeView`].
#[derive(Clone, Debug)]
pub struct NodeKind;

impl Kind for NodeKind {
    type Object = Node;
    const METADATA_ONLY: bool = true;
    type Spec = IgnoredAny;
    type Status = IgnoredAny;
}

impl From<NodeView> for model::Node {
    fn from(node: NodeView) -> Self {
        let key = node.key();
        let zone = node.metadata.labels.and_then(|mut labels| labels.remove(ZONE));
        Self { key, zone: zone.filter(|zone| !zone.is_empty()) }
    }
}

/// View of a NetworkAttachmentDefinition, of which only the existence matters.
pub type NetworkAttachmentDefinition = View<NetworkAttachmentDefinitionKind>;

/// The kind of [`NetworkAttachmentDefinition`].
#[derive(Clone, Debug)]
pub struct NetworkAttachmentDefinitionKind;

impl Named for NetworkAttachmentDefinitionKind {
    const API_VERSION: &'static str = "k8s.cni.cncf.io/v1";
    const GROUP: &'static str = "k8s.cni.cncf.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "NetworkAttachmentDefinition";
    const URL_PATH_SEGMENT: &'static str = "network-attachment-definitions";
    type Scope = NamespaceResourceScope;
}

impl Kind for NetworkAttachmentDefinitionKind {
    type Object = Self;
    const METADATA_ONLY: bool = true;
    type Spec = IgnoredAny;
    type Status = IgnoredAny;
}

/// View of a core Service, with the fields that decide whether it can have a mirror.
pub type ServiceView = View<ServiceKind>;

/// The kind of [`ServiceView`].
#[derive(Clone, Debug)]
pub struct ServiceKind;

impl Kind for ServiceKind {
    type Object = Service;
    type Spec = ServiceSpec;
    type Status = IgnoredAny;
}

/// Fields of a Service's `spec` that the controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "nullable")]
    kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    cluster_ip: String,
    #[serde(deserialize_with = "nullable")]
    selector: std::collections::BTreeMap<String, String>,
}

impl ServiceSpec {
    /// Returns why the Service cannot have a mirror: another controller writes its slices, or they
    /// have no readers.
    fn refusal(&self) -> Option<&'static str> {
        if self.kind == "ExternalName" {
            Some("it is an ExternalName")
        } else if !self.selector.is_empty() {
            Some("it has a selector")
        } else if self.cluster_ip != "None" {
            Some("it has a cluster IP")
        } else {
            None
        }
    }
}

impl From<ServiceView> for model::CoreService {
    fn from(service: ServiceView) -> Self {
        Self { key: service.key(), unusable: service.spec.refusal() }
    }
}
