//! Manifests of services and slices, as a user would write them.

use std::net::IpAddr;

use kube::api::{DynamicObject, ObjectMeta};
use kube::core::TypeMeta;
use serde_json::{Value, json};

/// Kind of services on secondary networks.
pub const SERVICE: &str = "MultiNetworkService";
/// Kind of their slices.
pub const SLICE: &str = "MultiNetworkEndpointSlice";

/// Returns API version and kind of one of our kinds.
pub fn types(kind: &str) -> TypeMeta {
    TypeMeta { api_version: "multinetwork.numaproj.io/v1alpha1".to_owned(), kind: kind.to_owned() }
}

/// Manifest of a MultiNetworkService on the network `rdma-a`, alias `rail0`, with the port `rdma`.
/// The test writes its slices.
#[derive(Debug, Clone)]
pub struct Service {
    name: String,
    ttl: Option<u32>,
}

impl Service {
    /// Creates a service with the DNS server's default time to live.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ttl: None }
    }

    /// Sets the time to live.
    #[must_use]
    pub fn ttl(mut self, seconds: u32) -> Self {
        self.ttl = Some(seconds);
        self
    }
}

impl From<Service> for DynamicObject {
    fn from(service: Service) -> Self {
        let mut spec = json!({"networks": [{"name": "rdma-a", "alias": "rail0"}], "ports": ports()});
        if let Some(ttl) = service.ttl {
            spec["ttlSeconds"] = json!(ttl);
        }
        object(SERVICE, &service.name, None, spec)
    }
}

/// Manifest of a slice of such a service.
#[derive(Debug, Clone)]
pub struct Slice {
    name: String,
    service: String,
    endpoints: Vec<(String, IpAddr, bool)>,
}

impl Slice {
    /// Creates a slice without endpoints.
    pub fn new(name: &str, service: &str) -> Self {
        Self { name: name.to_owned(), service: service.to_owned(), endpoints: Vec::new() }
    }

    /// Adds a ready endpoint.
    #[must_use]
    pub fn ready(self, hostname: &str, address: impl Into<IpAddr>) -> Self {
        self.endpoint(hostname, address, true)
    }

    /// Adds an endpoint that is not ready.
    #[must_use]
    pub fn not_ready(self, hostname: &str, address: impl Into<IpAddr>) -> Self {
        self.endpoint(hostname, address, false)
    }

    fn endpoint(mut self, hostname: &str, address: impl Into<IpAddr>, ready: bool) -> Self {
        self.endpoints.push((hostname.to_owned(), address.into(), ready));
        self
    }
}

impl From<Slice> for DynamicObject {
    fn from(slice: Slice) -> Self {
        let ipv6 = slice.endpoints.iter().any(|(_, address, _)| address.is_ipv6());
        let endpoints: Vec<Value> = slice
            .endpoints
            .iter()
            .map(|(hostname, address, ready)| {
                json!({
                    "addresses": [address],
                    "conditions": {"ready": ready},
                    "hostname": hostname,
                    "nodeName": "gpu-1",
                    "device": {"interface": "net1", "rdmaDevice": "mlx5_2"},
                })
            })
            .collect();
        let spec = json!({
            "addressType": if ipv6 { "IPv6" } else { "IPv4" },
            "network": {"kind": "NetworkAttachmentDefinition", "name": "rdma-a", "namespace": "default", "alias": "rail0"},
            "ports": ports(),
            "endpoints": endpoints,
        });
        object(SLICE, &slice.name, Some(&slice.service), spec)
    }
}

fn ports() -> Value {
    json!([{"name": "rdma", "port": 18515, "protocol": "TCP"}])
}

fn object(kind: &str, name: &str, service: Option<&str>, spec: Value) -> DynamicObject {
    let label = |service: &str| ("multinetwork.numaproj.io/service-name".to_owned(), service.to_owned());
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: service.map(|service| [label(service)].into()),
        ..ObjectMeta::default()
    };
    DynamicObject { types: Some(types(kind)), metadata, data: json!({ "spec": spec }) }
}
