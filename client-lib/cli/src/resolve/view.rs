//! Endpoints as JSON. The field names are documented in `multinet resolve --help`, and stay. Pure.

use multinet_client::{Endpoint, EndpointAddress, PodRef, Resolved};
use serde::Serialize;
use serde_json::Result;

use super::change::{Difference, Kind};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResolvedView<'a> {
    name: &'a str,
    ttl_seconds: u64,
    endpoints: Vec<EndpointView<'a>>,
}

#[derive(Serialize)]
struct EndpointView<'a> {
    host: &'a str,
    target: &'a str,
    port: u16,
    node: Option<&'a str>,
    zone: Option<&'a str>,
    pod: Option<PodView<'a>>,
    addresses: Vec<AddressView<'a>>,
}

#[derive(Serialize)]
struct PodView<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    uid: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AddressView<'a> {
    ip: std::net::IpAddr,
    network: Option<&'a str>,
    interface: Option<&'a str>,
    mac: Option<&'a str>,
    rdma_devices: &'a [String],
    pci: Option<&'a str>,
    numa: Option<u16>,
}

#[derive(Serialize)]
struct ChangeView<'a> {
    change: &'a str,
    endpoint: EndpointView<'a>,
}

#[derive(Serialize)]
struct StateView<'a> {
    change: &'a str,
    error: Option<&'a str>,
}

/// Returns a service's endpoints as one JSON object, on several lines.
pub(super) fn once(resolved: &Resolved) -> Result<String> {
    let view = ResolvedView {
        name: &resolved.name,
        ttl_seconds: resolved.ttl.as_secs(),
        endpoints: resolved.endpoints.iter().map(endpoint).collect(),
    };
    Ok(serde_json::to_string_pretty(&view)? + "\n")
}

/// Returns a line of JSON for each change of an endpoint.
pub(super) fn changes(changes: &[Difference<'_>]) -> Result<String> {
    let line = |(kind, of): &Difference<'_>| {
        let change = match kind {
            Kind::Added => "added",
            Kind::Removed => "removed",
            Kind::Changed => "changed",
        };
        Ok(serde_json::to_string(&ChangeView { change, endpoint: endpoint(of) })? + "\n")
    };
    changes.iter().map(line).collect()
}

/// Returns a line of JSON for a change of DNS's state: held, recovered or lost.
pub(super) fn state(change: &str, error: Option<&str>) -> Result<String> {
    Ok(serde_json::to_string(&StateView { change, error })? + "\n")
}

fn endpoint(of: &Endpoint) -> EndpointView<'_> {
    EndpointView {
        host: &of.host,
        target: &of.target,
        port: of.port,
        node: of.node.as_deref(),
        zone: of.zone.as_deref(),
        pod: of.pod.as_ref().map(pod),
        addresses: of.addresses.iter().map(address).collect(),
    }
}

fn pod(of: &PodRef) -> PodView<'_> {
    PodView { namespace: of.namespace.as_deref(), name: of.name.as_deref(), uid: of.uid.as_deref() }
}

fn address(of: &EndpointAddress) -> AddressView<'_> {
    AddressView {
        ip: of.ip,
        network: of.network.as_deref(),
        interface: of.interface.as_deref(),
        mac: of.mac.as_deref(),
        rdma_devices: &of.rdma_devices,
        pci: of.pci.as_deref(),
        numa: of.numa,
    }
}
