//! MultiNetworkEndpointSlice: some endpoints of a service, on one network and in one address
//! family.

#![allow(clippy::duplicated_attributes, reason = "every printer column has a type of its own")]

use std::net::{AddrParseError, IpAddr};

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::labels;
use crate::network::NetworkReference;
use crate::port::Port;
use crate::schema;
use crate::service::IpFamily;
use crate::syntax::DNS_LABEL;

/// Spec of a MultiNetworkEndpointSlice. It is like EndpointSlice v1, with a network, and with the
/// device of each endpoint.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "multinetwork.numaproj.io",
    version = "v1alpha1",
    kind = "MultiNetworkEndpointSlice",
    plural = "multinetworkendpointslices",
    shortname = "mneps",
    category = "multinet",
    namespaced,
    derive = "PartialEq",
    doc = "Some endpoints of a MultiNetworkService, on one of its networks and in one address family. The label multinetwork.numaproj.io/service-name names the service; a slice without it is ignored. Readers take the union of a service's slices.",
    printcolumn(
        name = "AddressType",
        type_ = "string",
        json_path = ".spec.addressType",
        description = "Family of the addresses"
    ),
    printcolumn(
        name = "Network",
        type_ = "string",
        json_path = ".spec.network.alias",
        description = "Alias of the network"
    ),
    printcolumn(
        name = "Service",
        type_ = "string",
        json_path = r#".metadata.labels.multinetwork\.numaproj\.io/service-name"#,
        description = "The service that the endpoints belong to"
    ),
    printcolumn(
        name = "Endpoints",
        type_ = "string",
        json_path = r#".metadata.annotations.multinetwork\.numaproj\.io/endpoints"#,
        description = "The first addresses and their pods, as the controller writes them"
    ),
    printcolumn(
        name = "Port",
        type_ = "integer",
        json_path = ".spec.ports[0].port",
        description = "The first port",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.endpoints.all(e, e.addresses.all(a, isIP(a) && ip(a).family() == (self.addressType == 'IPv4' ? 4 : 6) && !ip(a).isUnspecified()))")
        .message(Message::Expression(
            "'every address must be one of type ' + self.addressType + ' (not unspecified, no zone, no IPv4-mapped IPv6); \"'\
             + self.endpoints.map(e, e.addresses[0]).filter(a, !isIP(a) || ip(a).family() != (self.addressType == 'IPv4' ? 4 : 6) || ip(a).isUnspecified())[0]\
             + '\" is not'".into()
        ))
        .field_path(".endpoints")
)]
pub struct MultiNetworkEndpointSliceSpec {
    /// Family of all addresses of the slice: IPv4 or IPv6. Immutable.
    #[x_kube(
        validation = Rule::new("self == oldSelf")
            .message("addressType is immutable; delete the slice and create another")
    )]
    pub address_type: IpFamily,

    /// The network that all addresses of the slice are on.
    pub network: NetworkReference,

    /// The ports that every endpoint has, 0 to 100, with unique names.
    #[serde(default)]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub ports: Vec<Port>,

    /// The endpoints, 0 to 1000. Readers drop duplicates.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint: an address of a pod, with its state, node and device.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Exactly one address, of the slice's addressType. It must not be unspecified (0.0.0.0, ::),
    /// have a zone, or be IPv4-mapped. Any notation of IPv6 is allowed; readers compare addresses,
    /// not their texts.
    #[schemars(schema_with = "schema::addresses")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<String>,

    /// State of the endpoint. Absent: ready.
    #[serde(default, skip_serializing_if = "EndpointConditions::is_unset")]
    pub conditions: EndpointConditions,

    /// DNS label of the endpoint's own name, below the service's name. Endpoints with the same
    /// hostname share one name with several addresses. Absent: the DNS server makes a name from the
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dns_label")]
    pub hostname: Option<String>,

    /// Name of the Node that the endpoint runs on: a DNS name of at most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::node_name")]
    pub node_name: Option<String>,

    /// Zone of the endpoint: the Node's label topology.kubernetes.io/zone, at most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::zone")]
    pub zone: Option<String>,

    /// The object that has the address: a Pod. Its uid lets a client notice that a pod was replaced
    /// under the same address and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TargetReference")]
    pub target_ref: Option<TargetReference>,

    /// The device that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Device")]
    pub device: Option<Device>,
}

impl Endpoint {
    /// Parses the endpoint's only address; `None` if the list is empty.
    pub fn address(&self) -> Option<Result<IpAddr, AddrParseError>> {
        self.addresses.first().map(|text| text.parse())
    }

    /// Returns whether to publish the endpoint: its condition `ready`, or its default, true.
    pub fn is_ready(&self) -> bool {
        self.conditions.is_ready()
    }

    /// Returns what is known about one of the endpoint's addresses, on the network with this alias,
    /// as pairs of a key and a value.
    pub fn facts(&self, address: IpAddr, alias: &str) -> impl Iterator<Item = (&'static str, String)> {
        let device = self.device.as_ref();
        let pod = self.target_ref.as_ref();
        let facts = [
            ("addr", Some(address.to_string())),
            ("net", Some(alias.to_owned())),
            ("if", device.and_then(|device| device.interface.clone())),
            ("mac", device.and_then(|device| device.mac.clone())),
            ("rdma", device.and_then(|device| device.rdma_device.clone())),
            ("pci", device.and_then(|device| device.pci_address.clone())),
            ("numa", device.and_then(|device| device.numa_node).map(|node| node.to_string())),
            ("node", self.node_name.clone()),
            ("zone", self.zone.clone()),
            ("pod", pod.and_then(|pod| Some(format!("{}/{}", pod.namespace.as_ref()?, pod.name.as_ref()?)))),
            ("uid", pod.and_then(|pod| pod.uid.clone())),
        ];
        facts.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }
}

impl MultiNetworkEndpointSlice {
    /// Returns the names of the vertex and the pipeline of Numaflow that the slice's labels name;
    /// `None` unless both are DNS labels.
    pub fn vertex(&self) -> Option<(&str, &str)> {
        let label = |key| Some(self.metadata.labels.as_ref()?.get(key)?.as_str());
        let name = |key| label(key).filter(|name| DNS_LABEL.accepts(name));
        Some((name(labels::VERTEX_NAME)?, name(labels::PIPELINE_NAME)?))
    }
}

/// State of an endpoint, as in EndpointSlice v1. Only ready decides whether it is published.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct EndpointConditions {
    /// Whether to publish the endpoint: it serves and is not terminating, or the service publishes
    /// addresses that are not ready. Absent: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub ready: Option<bool>,

    /// Whether the endpoint serves, terminating or not. Absent: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub serving: Option<bool>,

    /// Whether the endpoint is being deleted. Absent: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub terminating: Option<bool>,
}

impl EndpointConditions {
    /// Returns `ready`, or its default, true.
    pub fn is_ready(&self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Returns `serving`, or its default, true.
    pub fn is_serving(&self) -> bool {
        self.serving.unwrap_or(true)
    }

    /// Returns `terminating`, or its default, false.
    pub fn is_terminating(&self) -> bool {
        self.terminating.unwrap_or(false)
    }

    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// The object that has an address, as in the targetRef of EndpointSlice v1.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct TargetReference {
    /// Kind of the object, such as Pod: printable ASCII, at most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_kind")]
    pub kind: Option<String>,

    /// Namespace of the object: a DNS label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_namespace")]
    pub namespace: Option<String>,

    /// Name of the object: a DNS name of at most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_name")]
    pub name: Option<String>,

    /// UID of the object: printable ASCII, at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_uid")]
    pub uid: Option<String>,
}

/// The device that has an address. From it, a client chooses the nearest of several endpoints.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name of the network interface in the pod, such as net1: at most 15 characters of printable
    /// ASCII without /, : and spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::interface")]
    pub interface: Option<String>,

    /// Hardware address with colons: 6 or 8 bytes, or the 20 of IP over InfiniBand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::mac")]
    pub mac: Option<String>,

    /// Name of the RDMA device, such as mlx5_2; several are joined by commas. Printable ASCII, at
    /// most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::rdma_device")]
    pub rdma_device: Option<String>,

    /// PCI address, such as 0000:18:00.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pci_address")]
    pub pci_address: Option<String>,

    /// NUMA node of the device, 0 to 1023.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::numa_node")]
    pub numa_node: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_conditions_default_as_in_endpoint_slice_v1() {
        let absent = EndpointConditions::default();
        assert!(absent.is_ready() && absent.is_serving() && !absent.is_terminating());
        let opposite =
            EndpointConditions { ready: Some(false), serving: Some(false), terminating: Some(true) };
        assert!(!opposite.is_ready() && !opposite.is_serving() && opposite.is_terminating());
    }

    #[test]
    fn notations_of_one_address_parse_to_the_same_address() {
        let endpoint = |text: &str| Endpoint { addresses: vec![text.to_owned()], ..Endpoint::default() };
        assert_eq!(endpoint("2001:DB8:0:0::1").address(), endpoint("2001:db8::1").address());
        assert!(endpoint("10.0.0.999").address().is_some_and(|address| address.is_err()));
        assert_eq!(Endpoint::default().address(), None);
    }

    #[test]
    fn a_slice_names_a_vertex_if_both_labels_are_dns_labels() {
        let vertex = |labels: &[(&str, &str)]| {
            let spec = serde_json::json!({"addressType": "IPv4", "network": {"name": "rdma-a"}});
            let mut slice = MultiNetworkEndpointSlice::new("s", serde_json::from_value(spec).unwrap());
            let owned = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
            slice.metadata.labels = Some(owned.collect());
            slice.vertex().map(|(vertex, pipeline)| format!("{vertex}.{pipeline}"))
        };
        let (pipeline, name) = (labels::PIPELINE_NAME, labels::VERTEX_NAME);
        assert_eq!(vertex(&[(pipeline, "frames"), (name, "infer")]).as_deref(), Some("infer.frames"));
        for labels in [&[][..], &[(name, "infer")], &[(pipeline, "frames")]] {
            assert_eq!(vertex(labels), None);
        }
        for value in ["", "a.b", "A", "-a", "a_b"] {
            assert_eq!(vertex(&[(pipeline, value), (name, "infer")]), None, "{value}");
            assert_eq!(vertex(&[(pipeline, "frames"), (name, value)]), None, "{value}");
        }
    }

    #[test]
    fn absent_fields_are_not_serialized() {
        let endpoint = Endpoint { addresses: vec!["192.0.2.1".to_owned()], ..Endpoint::default() };
        assert_eq!(serde_json::json!(endpoint), serde_json::json!({"addresses": ["192.0.2.1"]}));
    }
}
