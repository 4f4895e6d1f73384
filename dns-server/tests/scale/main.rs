//! What endpoints cost: memory for each. `make soak` does the same with a million, from a real API server.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_dns::answers::Answers;
use multinet_dns::state::State;
use multinet_dns::zone::{ZoneSettings, Zones};
use multinet_runtime::{Index, ObjectKey};
use serde_json::json;

/// What an endpoint may take with its names, its text, its address both ways and its SRV records, in octets.
const MOST: usize = 600;

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

/// A slice of `count` endpoints whose addresses begin at `first`, with all that the controller says of one.
fn slice(name: &str, service: &str, first: u32, count: u32) -> MultiNetworkEndpointSlice {
    let endpoint = |number: u32| {
        let [a, b, c, d] = number.to_be_bytes();
        json!({
            "addresses": [format!("10.{b}.{c}.{d}")],
            "hostname": format!("{service}-{number}"),
            "nodeName": format!("gpu-node-{:04}", number % 5000),
            "zone": "eu-central-1a",
            "targetRef": {"kind": "Pod", "namespace": "a-namespace", "name": format!("{service}-{number}"),
                          "uid": format!("6f9619ff-8b86-d011-b42d-{number:012x}")},
            "device": {"interface": "net1", "mac": format!("02:42:{a:02x}:{b:02x}:{c:02x}:{d:02x}"),
                       "rdmaDevice": "mlx5_0", "pciAddress": "0000:3b:00.2", "numaNode": 0},
        })
    };
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkEndpointSlice",
        "metadata": {"namespace": "a-namespace", "name": name,
                     "labels": {"multinetwork.numaproj.io/service-name": service}},
        "spec": {"addressType": "IPv4", "network": {"name": "rail0", "namespace": "a-namespace"},
                 "ports": [{"name": "frames", "protocol": "TCP", "port": 7000}],
                 "endpoints": (first..first + count).map(endpoint).collect::<Vec<_>>()},
    });
    serde_json::from_value(object).expect("a slice")
}

/// Services of one slice of a hundred endpoints each, in sync.
fn fill(state: &State, services: u32) {
    let (mut service_keys, mut slice_keys) = (HashSet::new(), HashSet::new());
    for number in 0..services {
        let name = format!("service-{number}");
        state.apply(service(&name));
        let slice_name = format!("{name}-00000");
        state.apply(slice(&slice_name, &name, number * 100, 100));
        slice_keys.insert(key(slice_name));
        service_keys.insert(key(name));
    }
    Index::<MultiNetworkService>::reset(state, &service_keys);
    Index::<MultiNetworkEndpointSlice>::reset(state, &slice_keys);
    Index::<MultiNetworkEndpointSlice>::commit(state);
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident set");
    line.trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

#[test]
fn an_endpoint_takes_little_memory() {
    const SERVICES: u32 = 300;
    let state = state();
    let before = resident();
    fill(&state, SERVICES);
    let each = (resident() - before) / (SERVICES as usize * 100);
    assert!(each <= MOST, "{each} octets each");
}
