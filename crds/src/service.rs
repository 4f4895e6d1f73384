//! MultiNetworkService: the object by which users publish pods' addresses on secondary networks.

#![allow(clippy::duplicated_attributes, reason = "every printer column has a type of its own")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::network::NetworkReference;
use crate::port::Port;
use crate::{rules, schema};

/// An address family: IPv4 or IPv6.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// `IPv4`
    #[serde(rename = "IPv4")]
    Ipv4,
    /// `IPv6`
    #[serde(rename = "IPv6")]
    Ipv6,
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Returns the family of an address.
    pub fn of(address: std::net::IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// Returns the family's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

/// Spec of a MultiNetworkService. Field names follow EndpointSelector (KEP-6116) and EndpointSlice
/// v1.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "multinetwork.numaproj.io",
    version = "v1alpha1",
    kind = "MultiNetworkService",
    plural = "multinetworkservices",
    shortname = "mnsvc",
    category = "multinet",
    namespaced,
    status = "MultiNetworkServiceStatus",
    derive = "PartialEq",
    doc = "A headless service on secondary networks: the addresses that the selected pods have on these networks are published in DNS, under the name <name>.<namespace>.svc of multinet's zone.",
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.endpoints.ready",
        description = "Pods that are ready on at least one network, and so published"
    ),
    printcolumn(
        name = "Total",
        type_ = "integer",
        json_path = ".status.endpoints.total",
        description = "Pods that have an address, ready or not"
    ),
    printcolumn(
        name = "Hostname",
        type_ = "string",
        json_path = ".status.hostname",
        description = "DNS name of the service",
        priority = 1
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#,
        description = "Whether the object is valid"
    ),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Programmed")].status"#,
        description = "Whether the slices match the spec"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(rules::MIRROR_HAS_A_NETWORK)
        .message(Message::Expression(rules::MIRROR_HAS_NO_NETWORK.into()))
        .field_path(".mirror.network")
)]
pub struct MultiNetworkServiceSpec {
    /// Selects the pods of the namespace that are the endpoints. An empty selector selects all
    /// pods. Absent: another program writes the MultiNetworkEndpointSlices, with the label
    /// multinetwork.numaproj.io/service-name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The secondary networks whose addresses are published, 1 to 16, each under one alias.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(
        merge_strategy = ListMerge::Atomic,
        validation = Rule::new(rules::ALIASES_ARE_UNIQUE)
            .message(Message::Expression(rules::ALIAS_OCCURS_TWICE.into())),
        validation = Rule::new(rules::NETWORKS_ARE_UNIQUE)
            .message(Message::Expression(rules::NETWORK_OCCURS_TWICE.into()))
    )]
    pub networks: Vec<NetworkReference>,

    /// The ports that every endpoint has, 0 to 100, with unique names.
    #[serde(default)]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub ports: Vec<Port>,

    /// The address families to publish: IPv4, IPv6 or both. Default: both.
    #[serde(default = "all_families")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub ip_families: Vec<IpFamily>,

    /// Whether to publish endpoints that are not ready, once they have an address. Default: false.
    #[serde(default)]
    pub publish_not_ready_addresses: bool,

    /// Time to live of the DNS records in seconds, 0 to 3600. Default: the DNS server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ttl_seconds")]
    pub ttl_seconds: Option<u16>,

    /// A core Service that gets the addresses, too, for clusters whose DNS cannot be reconfigured.
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mirror")]
    pub mirror: Option<Mirror>,
}

impl MultiNetworkServiceSpec {
    /// Returns the network with this alias; `None` if no network has it.
    pub fn network(&self, alias: &str) -> Option<&NetworkReference> {
        self.networks.iter().find(|network| network.alias() == alias)
    }
}

fn all_families() -> Vec<IpFamily> {
    IpFamily::ALL.to_vec()
}

/// A headless core Service without selector, in the same namespace. The controller writes the ready
/// addresses to EndpointSlices of it, so that the cluster's own DNS answers with them.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Name of the core Service: a DNS label. It must exist, be headless and have no selector.
    #[schemars(schema_with = "schema::dns_label")]
    pub service_name: String,

    /// Alias of the network whose addresses the Service gets. Default: all networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_label")]
    pub network: Option<String>,
}

/// State of a MultiNetworkService, as the controller last observed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MultiNetworkServiceStatus {
    /// Conditions, one of each type: Accepted, ResolvedRefs, Programmed, EndpointsReady,
    /// AddressConflict, Capped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Numbers of pods in the slices. Absent: not counted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EndpointCounts")]
    pub endpoints: Option<EndpointCounts>,

    /// Numbers of pods in the slices per network, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["alias".into()]))]
    pub networks: Vec<NetworkCounts>,

    /// DNS name of the service, such as infer.vision.svc.multinet.cluster.local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub hostname: Option<String>,
}

/// Numbers of pods over all networks and address families. Endpoints without a pod count as one pod
/// per hostname, or per address where they have no hostname.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounts {
    /// Pods that are ready on at least one network, and so published.
    #[schemars(schema_with = "schema::count")]
    pub ready: u32,
    /// Pods that have an address on at least one network, ready or not.
    #[schemars(schema_with = "schema::count")]
    pub total: u32,
}

/// Numbers of pods on one network.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkCounts {
    /// Alias of the network.
    #[schemars(schema_with = "schema::dns_label")]
    pub alias: String,
    /// Pods that are ready and have an address on the network.
    #[schemars(schema_with = "schema::count")]
    pub ready: u32,
    /// Pods that have an address on the network, ready or not.
    #[schemars(schema_with = "schema::count")]
    pub total: u32,
    /// Selected pods with a sandbox but without an address on the network.
    #[schemars(schema_with = "schema::count")]
    pub missing: u32,
}
