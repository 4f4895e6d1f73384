//! The parts of services and slices that keys are made of.

use std::net::{AddrParseError, IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use multinet_crds::syntax::DNS_LABEL;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, Protocol, labels};

/// The parts of a MultiNetworkService that keys are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Time to live of the service's records, in seconds. `None` means the default.
    pub ttl: Option<u32>,
    /// Creation time in seconds since 1970. Of several services with one name, the oldest has it.
    pub created: i64,
}

impl From<&MultiNetworkService> for Service {
    fn from(service: &MultiNetworkService) -> Self {
        let created = service.metadata.creation_timestamp.as_ref();
        Self {
            ttl: service.spec.ttl_seconds.map(u32::from),
            created: created.map_or(i64::MAX, |Time(time)| time.as_second()),
        }
    }
}

/// The parts of a MultiNetworkEndpointSlice that keys are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the service that the slice belongs to, in the slice's namespace.
    pub service: String,
    /// Names of a vertex and its pipeline, if the slice's labels name them.
    pub vertex: Option<(String, String)>,
    /// Alias of the network that the addresses are on.
    pub alias: String,
    /// Ports with a name, which every endpoint has. Others have no records.
    pub ports: Vec<Port>,
    /// Ready endpoints, one for each address.
    pub endpoints: Vec<Endpoint>,
}

/// A port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Name of the port: a DNS label.
    pub name: String,
    /// Protocol, as in the names of SRV records: `_tcp`.
    pub protocol: &'static str,
    /// Port number.
    pub number: u16,
}

/// A ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host label: the hostname in the slice, or a label made from the address.
    pub host: String,
    /// Whether the label is a hostname from the slice.
    pub is_named: bool,
    /// Address on the slice's network.
    pub address: IpAddr,
    /// Facts about the address, as pairs `key=value` with spaces between them.
    pub text: String,
}

impl Slice {
    /// Parses a slice. Returns `Ok(None)` if it belongs to no service, or is being deleted: its
    /// writer has replaced it, and no longer updates it.
    ///
    /// # Errors
    ///
    /// If the address of an endpoint is none. The API server refuses such slices.
    pub fn parse(slice: &MultiNetworkEndpointSlice) -> Result<Option<Self>, AddrParseError> {
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|all| all.get(labels::SERVICE_NAME));
        let Some(service) = service.filter(|_| slice.metadata.deletion_timestamp.is_none()) else {
            return Ok(None);
        };
        let alias = slice.spec.network.alias();
        let mut endpoints = Vec::new();
        for endpoint in slice.spec.endpoints.iter().filter(|endpoint| endpoint.is_ready()) {
            let named = endpoint.hostname.as_ref().filter(|name| DNS_LABEL.accepts(name));
            for address in &endpoint.addresses {
                let address = address.parse()?;
                let facts = endpoint.facts(address, alias);
                // Spaces are between pairs only.
                let facts = facts.map(|(key, value)| (key, value.replace(", ", ",")));
                let facts = facts.filter(|(_, value)| !value.contains(' '));
                let text: Vec<String> = facts.map(|(key, value)| format!("{key}={value}")).collect();
                endpoints.push(Endpoint {
                    host: named.cloned().unwrap_or_else(|| address_label(address)),
                    is_named: named.is_some(),
                    address,
                    text: text.join(" "),
                });
            }
        }
        let named = slice.spec.ports.iter().filter(|port| !port.name.is_empty());
        Ok(Some(Self {
            service: service.clone(),
            vertex: slice.vertex().map(|(vertex, pipeline)| (vertex.to_owned(), pipeline.to_owned())),
            alias: alias.to_owned(),
            ports: named
                .map(|port| Port {
                    name: port.name.clone(),
                    protocol: match port.protocol {
                        Protocol::Tcp => "_tcp",
                        Protocol::Udp => "_udp",
                        Protocol::Sctp => "_sctp",
                    },
                    number: port.port,
                })
                .collect(),
            endpoints,
        }))
    }
}

/// Returns the label of an endpoint without a hostname, as multinet-dns makes it: its address with
/// `-` for each `.` and `:`. If that begins or ends with `-`, a `0` is added there.
pub fn address_label(address: IpAddr) -> String {
    let label = address.to_string().replace(['.', ':'], "-");
    let [first, last] = [label.starts_with('-'), label.ends_with('-')].map(|is| if is { "0" } else { "" });
    format!("{first}{label}{last}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(metadata: serde_json::Value) -> Option<Slice> {
        let slice = json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice",
            "metadata": metadata,
            "spec": {
                "addressType": "IPv4", "network": {"name": "rdma-a", "alias": "rail0"},
                "ports": [{"name": "p", "port": 7}, {"name": "", "port": 8}],
                "endpoints": [
                    {"addresses": ["10.0.0.1"], "hostname": "h", "targetRef": {"uid": "u"}, "zone": "a b",
                        "device": {"rdmaDevice": "mlx5_0, mlx5_1"}},
                    {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                    {"addresses": ["10.0.0.3"]},
                ],
            },
        });
        Slice::parse(&serde_json::from_value(slice).unwrap()).unwrap()
    }

    #[test]
    fn a_slice_has_its_ready_endpoints_and_named_ports() {
        let labels = json!({labels::SERVICE_NAME: "infer", labels::PIPELINE_NAME: "frames", labels::VERTEX_NAME: "in"});
        let slice = parse(json!({"name": "s", "namespace": "n", "labels": labels})).unwrap();
        assert_eq!(slice.vertex, Some(("in".to_owned(), "frames".to_owned())));
        assert_eq!((slice.alias.as_str(), slice.ports.len()), ("rail0", 1));
        let hosts: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.host.as_str()).collect();
        assert_eq!(hosts, ["h", "10-0-0-3"]);
        assert_eq!(slice.endpoints[0].text, "addr=10.0.0.1 net=rail0 rdma=mlx5_0,mlx5_1 uid=u");
    }

    #[test]
    fn a_slice_without_its_label_or_being_deleted_belongs_to_no_service() {
        assert_eq!(parse(json!({"name": "s"})), None);
        let labels = json!({labels::SERVICE_NAME: "infer"});
        let deleted = json!({"name": "s", "labels": labels, "deletionTimestamp": "2026-11-26T05:00:00Z"});
        assert_eq!(parse(deleted), None);
    }

    #[test]
    fn address_labels_never_begin_or_end_with_a_dash() {
        for (address, label) in [
            ("192.168.111.5", "192-168-111-5"),
            ("fd00::5", "fd00--5"),
            ("fd00::", "fd00--0"),
            ("::1", "0--1"),
        ] {
            assert_eq!(address_label(address.parse().unwrap()), label);
        }
    }
}
