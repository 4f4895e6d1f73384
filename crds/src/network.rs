//! Reference to a secondary network, and its name in DNS.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Kind of the object that describes a secondary network: NetworkAttachmentDefinition (Multus),
/// DeviceClass or ResourceClaimTemplate (dynamic resource allocation, DRA).
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum NetworkKind {
    /// `k8s.cni.cncf.io/v1`, namespaced. The pod's network-status annotation has the addresses.
    #[default]
    NetworkAttachmentDefinition,
    /// `resource.k8s.io`, cluster-scoped. The status of claims whose devices are of this class has
    /// the addresses.
    DeviceClass,
    /// `resource.k8s.io`, namespaced. The status of claims made from this template has the
    /// addresses.
    ResourceClaimTemplate,
}

impl NetworkKind {
    /// Returns whether objects of this kind have a namespace.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::DeviceClass)
    }

    /// Returns the kind's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NetworkAttachmentDefinition => "NetworkAttachmentDefinition",
            Self::DeviceClass => "DeviceClass",
            Self::ResourceClaimTemplate => "ResourceClaimTemplate",
        }
    }
}

/// A secondary network. kind, name and namespace are as in the upstream multi-network prototypes;
/// alias is an addition of multinet.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.alias) || (!self.name.contains('.') && self.name.size() <= 63)")
        .message("alias is required, because name is not a DNS label and cannot stand for it; set alias to a DNS label (a-z, 0-9 and -, at most 63 characters)")
        .reason(Reason::FieldValueRequired)
        .field_path(".alias"),
    validation = Rule::new("self.kind != 'DeviceClass' || !has(self.__namespace__)")
        .message("namespace must not be set: a DeviceClass is cluster-scoped")
        .reason(Reason::FieldValueForbidden)
        .field_path(".namespace")
)]
pub struct NetworkReference {
    /// Kind of the object that describes the network: NetworkAttachmentDefinition, DeviceClass or
    /// ResourceClaimTemplate. Default: NetworkAttachmentDefinition.
    #[serde(default)]
    pub kind: NetworkKind,

    /// Name of the object that describes the network: a DNS name of at most 253 characters.
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub name: String,

    /// Namespace of the object that describes the network: a DNS label. Default: the namespace of
    /// the MultiNetworkService or slice. Not allowed with kind DeviceClass, which is
    /// cluster-scoped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_label")]
    pub namespace: Option<String>,

    /// Name of the network in DNS, as in rail0._net.service: a DNS label of at most 63 characters,
    /// unique among the networks of a service. Default: name; required where name is not a DNS
    /// label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_label")]
    pub alias: Option<String>,
}

impl NetworkReference {
    /// Returns the name of the network in DNS: its alias, or its name if it has none.
    pub fn alias(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }

    /// Returns the namespace of the object that describes the network; `own` is the default, the
    /// namespace of the object with this reference. `None` for a cluster-scoped kind.
    pub fn namespace<'a>(&'a self, own: &'a str) -> Option<&'a str> {
        self.kind.is_namespaced().then(|| self.namespace.as_deref().unwrap_or(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(kind: NetworkKind, namespace: Option<&str>, alias: Option<&str>) -> NetworkReference {
        NetworkReference {
            kind,
            name: "rdma-a".to_owned(),
            namespace: namespace.map(str::to_owned),
            alias: alias.map(str::to_owned),
        }
    }

    #[test]
    fn an_alias_defaults_to_the_name() {
        assert_eq!(network(NetworkKind::default(), None, None).alias(), "rdma-a");
        assert_eq!(network(NetworkKind::default(), None, Some("rail0")).alias(), "rail0");
    }

    #[test]
    fn a_namespace_defaults_to_the_service_s_own() {
        let template = NetworkKind::ResourceClaimTemplate;
        assert_eq!(network(template, None, None).namespace("vision"), Some("vision"));
        assert_eq!(network(template, Some("infra"), None).namespace("vision"), Some("infra"));
        assert_eq!(network(NetworkKind::DeviceClass, None, None).namespace("vision"), None);
    }

    #[test]
    fn kinds_are_spelled_as_they_are_serialised() {
        for kind in [
            NetworkKind::NetworkAttachmentDefinition,
            NetworkKind::DeviceClass,
            NetworkKind::ResourceClaimTemplate,
        ] {
            assert_eq!(serde_json::json!(kind), kind.as_str());
        }
    }
}
