//! MultiNetworkService: which pods, on which networks, under which name.

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

    /// The family of an address.
    pub fn of(address: std::net::IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

/// What a MultiNetworkService wants. Field names follow EndpointSelector (KEP-6116) and EndpointSlice v1.
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
        description = "Pods that are answered on at least one network"
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
        description = "The name to ask for",
        priority = 1
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#,
        description = "Whether the object makes sense"
    ),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Programmed")].status"#,
        description = "Whether the slices say what the object wants"
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
    /// Which pods of the namespace are the endpoints; an empty selector selects them all. Absent: somebody
    /// else writes the MultiNetworkEndpointSlices, with the label multinetwork.numaproj.io/service-name.
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

    /// Publish endpoints from the moment that they have an address, ready or not. Default: false.
    #[serde(default)]
    pub publish_not_ready_addresses: bool,

    /// Time to live of the answers in seconds, 0 to 3600. Default: that of the DNS server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ttl_seconds")]
    pub ttl_seconds: Option<u16>,

    /// A core Service to fill as well, for clusters in which nobody may reconfigure DNS. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mirror")]
    pub mirror: Option<Mirror>,
}

impl MultiNetworkServiceSpec {
    /// A spec for these networks, with the default for everything else.
    pub fn new(networks: Vec<NetworkReference>) -> Self {
        Self {
            selector: None,
            networks,
            ports: Vec::new(),
            ip_families: all_families(),
            publish_not_ready_addresses: false,
            ttl_seconds: None,
            mirror: None,
        }
    }

    /// The network with this alias.
    pub fn network(&self, alias: &str) -> Option<&NetworkReference> {
        self.networks.iter().find(|network| network.alias() == alias)
    }
}

fn all_families() -> Vec<IpFamily> {
    IpFamily::ALL.to_vec()
}

/// A headless core Service without selector, in the same namespace, that the controller also fills with
/// the ready addresses, so that the cluster's own DNS answers for it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Name of the core Service: a DNS label. It must exist, be headless and have no selector.
    #[schemars(schema_with = "schema::dns_label")]
    pub service_name: String,

    /// Alias of the one network whose addresses it gets. Default: those of all networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_label")]
    pub network: Option<String>,
}

/// What the controller found and did.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MultiNetworkServiceStatus {
    /// Conditions, one of each type: Accepted, ResolvedRefs, Programmed, EndpointsReady, AddressConflict, Capped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// How many pods the slices hold. Absent: not counted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EndpointCounts")]
    pub endpoints: Option<EndpointCounts>,

    /// How many pods the slices hold on each network, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["alias".into()]))]
    pub networks: Vec<NetworkCounts>,

    /// The name to ask for, such as infer.vision.svc.multinet.cluster.local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_subdomain")]
    pub hostname: Option<String>,
}

/// Numbers of pods, over all networks and families. A slice's endpoint that names no pod is one pod per host name, else one per
/// address.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounts {
    /// Pods that are ready on at least one network, and so answered.
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
    /// Selected pods that have a sandbox, and no address on the network.
    #[schemars(schema_with = "schema::count")]
    pub missing: u32,
}
