//! Memory per endpoint. `make soak` measures it with a million endpoints from a real API server.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_dns::store::answers::Answers;
use multinet_dns::store::state::State;
use multinet_dns::store::zone::{ZoneSettings, Zones};
use multinet_runtime::{Index, ObjectKey};
use serde_json::json;

/// Limit in bytes for a usual endpoint with its names, text, forward and reverse address, and SRV
/// records.
const MOST: usize = 600;

/// Limit in bytes for an endpoint whose every text is as long as the schema allows. With 200,000 of
/// these, the quota of a namespace (docs/operations.md), the server stays below the memory limit of
/// our manifests.
const MOST_EVER: usize = 1500;

/// Limit in bytes for a service without its endpoints, with as many ports as the schema allows.
const MOST_OF_A_SERVICE: usize = 32 << 10;

/// Shape of the measured services.
#[derive(Clone, Copy)]
struct Shape {
    services: u32,
    networks: u32,
    /// Slices on each network, and endpoints in each slice.
    slices: u32,
    endpoints: u32,
    ports: u32,
    /// Whether texts are as long as the API server accepts.
    is_long: bool,
}

const USUAL: Shape =
    Shape { services: 300, networks: 1, slices: 1, endpoints: 100, ports: 1, is_long: false };

/// Slices as the controller writes them.
const LARGE: Shape =
    Shape { services: 1, networks: 4, slices: 400, endpoints: 25, ports: 100, is_long: true };

/// Many ports, and few endpoints.
const SMALL: Shape = Shape { services: 500, networks: 2, slices: 1, endpoints: 1, ports: 100, is_long: true };

fn key(name: String) -> ObjectKey {
    ObjectKey { namespace: "a-namespace".to_owned(), name }
}

fn state() -> State {
    let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
    let name = |text: &str| text.parse().expect("a name");
    let reverse = [name("in-addr.arpa"), name("ip6.arpa")];
    let zones = Zones::new(vec![name("multinet.cluster.local")], &reverse, &settings).expect("zones");
    State::new(Arc::new(Answers::new(zones, 1)), 5, |_| {})
}

fn service(name: &str) -> MultiNetworkService {
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"namespace": "a-namespace", "name": name},
        "spec": {"networks": [{"name": "rail0"}]},
    });
    serde_json::from_value(object).expect("a service")
}

/// Pads a text to its maximum length, if the shape has long texts.
fn text(begin: String, length: usize, shape: Shape) -> String {
    if shape.is_long { format!("{begin:x<length$}") } else { begin }
}

/// Returns a slice of endpoints whose addresses begin at `first`, with all fields that the
/// controller writes.
fn slice(name: &str, service: &str, network: u32, first: u32, shape: Shape) -> MultiNetworkEndpointSlice {
    let text = |begin: String, length| text(begin, length, shape);
    let endpoint = |number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        let (address, family) = if shape.is_long {
            (format!("fd00::{b:x}:{c:x}:{d:x}"), 20)
        } else {
            (format!("10.{b}.{c}.{d}"), 6)
        };
        let mac: Vec<String> =
            [2, 66, a, b, c, d].iter().cycle().take(family).map(|octet| format!("{octet:02x}")).collect();
        json!({
            "addresses": [address],
            "hostname": text(format!("{service}-{number}"), 63),
            "nodeName": text(format!("gpu-node-{:04}", number % 5000), 249),
            "zone": text("eu-central-1a".to_owned(), 63),
            "targetRef": {"kind": "Pod", "namespace": "a-namespace", "name": text(format!("{service}-{number}"), 239),
                          "uid": format!("6f9619ff-8b86-d011-b42d-{number:012x}")},
            "device": {"interface": text("net1".to_owned(), 15), "mac": mac.join(":"),
                       "rdmaDevice": text("mlx5_0".to_owned(), 64), "pciAddress": "0000:3b:00.2", "numaNode": 0},
        })
    };
    let port = |number: u32| json!({"name": text(format!("frames-{number}"), 62), "protocol": "TCP", "port": 7000 + number});
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkEndpointSlice",
        "metadata": {"namespace": "a-namespace", "name": name,
                     "labels": {"multinetwork.numaproj.io/service-name": service}},
        "spec": {"addressType": if shape.is_long { "IPv6" } else { "IPv4" },
                 "network": {"name": "rail", "namespace": "a-namespace", "alias": text(format!("rail{network}"), 63)},
                 "ports": (0..shape.ports).map(port).collect::<Vec<_>>(),
                 "endpoints": (first..first + shape.endpoints).map(endpoint).collect::<Vec<_>>()},
    });
    serde_json::from_value(object).expect("a slice")
}

/// Applies services of this shape, and syncs. Returns the number of endpoints.
fn fill(state: &State, shape: Shape) -> usize {
    let (mut service_keys, mut slice_keys) = (HashSet::new(), HashSet::new());
    let mut endpoints = 0;
    for number in 0..shape.services {
        let name = format!("service-{number}");
        state.apply(service(&name));
        for (network, part) in
            (0..shape.networks).flat_map(|network| (0..shape.slices).map(move |part| (network, part)))
        {
            let slice_name = format!("{name}-{network}-{part:05}");
            state.apply(slice(&slice_name, &name, network, endpoints, shape));
            endpoints += shape.endpoints;
            slice_keys.insert(key(slice_name));
        }
        service_keys.insert(key(name));
    }
    Index::<MultiNetworkService>::reset(state, &service_keys);
    Index::<MultiNetworkEndpointSlice>::reset(state, &slice_keys);
    Index::<MultiNetworkEndpointSlice>::commit(state);
    endpoints as usize
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident set");
    line.trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

/// A single test, since it measures the memory of the whole process.
#[test]
fn an_endpoint_takes_little_memory() {
    // Freed memory would be reused and escape the measurement.
    let mut kept = Vec::new();
    let mut taken = |shape| {
        let state = state();
        let before = resident();
        let endpoints = fill(&state, shape);
        kept.push(state);
        (resident().saturating_sub(before), endpoints)
    };
    let (octets, endpoints) = taken(USUAL);
    let usual = octets / endpoints;
    let (octets, endpoints) = taken(LARGE);
    let large = octets / endpoints;
    let (octets, endpoints) = taken(SMALL);
    let service = octets.saturating_sub(endpoints * large) / SMALL.services as usize;
    eprintln!("an endpoint: {usual} bytes; the largest: {large}; a service with 100 ports: {service}");
    assert!(usual <= MOST && large <= MOST_EVER && service <= MOST_OF_A_SERVICE);
}
