//! Events of watches, and the objects that exist after them.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService, labels};
use multinet_dns::store::state::State;
use multinet_runtime::{Index, ObjectKey};
use proptest::prelude::*;
use serde_json::json;

/// Names of objects and their parts: few, so that they collide.
pub(crate) const NAMESPACES: [&str; 2] = ["red", "blue"];
pub(crate) const SERVICES: [&str; 3] = ["one", "two", "three"];
pub(crate) const PIPELINE: &str = "frames";
pub(crate) const VERTEX: &str = "in";
pub(crate) const NETWORKS: [&str; 2] = ["rail0", "rail1"];
pub(crate) const HOSTS: [&str; 3] = ["a", "b", "c"];
pub(crate) const PORTS: [&str; 2] = ["http", "rdma"];
pub(crate) const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];
pub(crate) const ADDRESSES: [&str; 8] =
    ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "fd00::1", "fd00::2", "fd00:0:0:1::", "::1:1"];
const SLICES: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];

/// The fields of a service that matter for DNS.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) ttl: Option<u16>,
}

/// The fields of a slice that matter for DNS.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    /// The service that its label names.
    pub(crate) service: Option<&'static str>,
    /// The vertex of the pipeline [`PIPELINE`] that its labels name.
    pub(crate) vertex: Option<&'static str>,
    pub(crate) network: &'static str,
    /// Name, protocol and number; names are unique.
    pub(crate) ports: Vec<(&'static str, &'static str, u16)>,
    pub(crate) endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) host: Option<&'static str>,
    pub(crate) ready: Option<bool>,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Service(ObjectKey, Service),
    Slice(ObjectKey, Slice),
    DeleteService(ObjectKey),
    DeleteSlice(ObjectKey),
    /// A watch lists again, with only some of the objects, chosen by these bits.
    Relist(u64),
    /// A commit without a change.
    Nothing,
}

/// Generates any event.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    let key = |names: &'static [&'static str]| {
        (prop::sample::select(&NAMESPACES[..]), prop::sample::select(names)).prop_map(|(namespace, name)| {
            ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
        })
    };
    prop_oneof![
        3 => (key(&SERVICES), prop::option::of(0u16..100))
            .prop_map(|(key, ttl)| Event::Service(key, Service { ttl })),
        8 => (key(&SLICES), slice()).prop_map(|(key, slice)| Event::Slice(key, slice)),
        1 => key(&SERVICES).prop_map(Event::DeleteService),
        2 => key(&SLICES).prop_map(Event::DeleteSlice),
        1 => any::<u64>().prop_map(Event::Relist),
        1 => Just(Event::Nothing),
    ]
}

fn slice() -> impl Strategy<Value = Slice> {
    let ports = (
        prop::sample::subsequence(&PORTS[..], 0..=2),
        prop::sample::select(&PROTOCOLS[..]),
        1u16..4,
        any::<bool>(),
    )
        .prop_map(|(names, protocol, number, unnamed)| {
            let unnamed = unnamed.then_some(("", "TCP", 9));
            names.into_iter().map(|name| (name, protocol, number)).chain(unnamed).collect()
        });
    let endpoint = (
        prop::sample::select(&ADDRESSES[..]).prop_map(|text| text.parse().expect("an address")),
        prop::option::of(prop::sample::select(&HOSTS[..])),
        prop::option::of(prop::bool::weighted(0.7)),
    );
    let endpoints = prop::collection::vec(
        endpoint.prop_map(|(address, host, ready)| Endpoint { address, host, ready }),
        0..5,
    );
    let service = prop::option::weighted(0.9, prop::sample::select(&SERVICES[..]));
    let vertex = prop::option::of(Just(VERTEX));
    (service, vertex, prop::sample::select(&NETWORKS[..]), ports, endpoints).prop_map(
        |(service, vertex, network, ports, endpoints)| Slice { service, vertex, network, ports, endpoints },
    )
}

/// All existing objects.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) services: BTreeMap<ObjectKey, Service>,
    pub(crate) slices: BTreeMap<ObjectKey, Slice>,
}

impl World {
    /// Applies an event to the objects, and to `state` as the watches would.
    pub(crate) fn take(&mut self, event: &Event, state: &State) {
        match event.clone() {
            Event::Service(key, service) => {
                state.apply(service_object(&key, &service));
                self.services.insert(key, service);
            }
            Event::Slice(key, slice) => {
                state.apply(slice_object(&key, &slice));
                self.slices.insert(key, slice);
            }
            Event::DeleteService(key) => {
                Index::<MultiNetworkService>::delete(state, &key);
                self.services.remove(&key);
            }
            Event::DeleteSlice(key) => {
                Index::<MultiNetworkEndpointSlice>::delete(state, &key);
                self.slices.remove(&key);
            }
            Event::Relist(bits) => {
                let mut position = 0u32;
                let mut stays = || {
                    position += 1;
                    bits.rotate_left(position) & 3 != 0 // three of four
                };
                self.services.retain(|_, _| stays());
                self.slices.retain(|_, _| stays());
                self.relist(state);
                self.sync(state);
            }
            Event::Nothing => {}
        }
        commit(state);
    }

    /// Applies every object again, as a new list of a watch does.
    fn relist(&self, state: &State) {
        self.services.iter().for_each(|(key, service)| state.apply(service_object(key, service)));
        self.slices.iter().for_each(|(key, slice)| state.apply(slice_object(key, slice)));
    }

    /// Ends the lists of both watches.
    pub(crate) fn sync(&self, state: &State) {
        self.sync_one(state, true);
        self.sync_one(state, false);
    }

    /// Ends the list of one watch.
    pub(crate) fn sync_one(&self, state: &State, services: bool) {
        if services {
            let live: HashSet<ObjectKey> = self.services.keys().cloned().collect();
            Index::<MultiNetworkService>::reset(state, &live);
        } else {
            let live: HashSet<ObjectKey> = self.slices.keys().cloned().collect();
            Index::<MultiNetworkEndpointSlice>::reset(state, &live);
        }
        commit(state);
    }
}

/// Commits the changes of both watches.
pub(crate) fn commit(state: &State) {
    Index::<MultiNetworkService>::commit(state);
    Index::<MultiNetworkEndpointSlice>::commit(state);
}

/// Returns the service as the API server stores it.
pub(crate) fn service_object(key: &ObjectKey, service: &Service) -> MultiNetworkService {
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {
            "networks": NETWORKS.map(|network| json!({"name": network})),
            "ttlSeconds": service.ttl,
        },
    });
    serde_json::from_value(object).expect("a service")
}

/// Returns the slice as the API server stores it.
pub(crate) fn slice_object(key: &ObjectKey, slice: &Slice) -> MultiNetworkEndpointSlice {
    let mut labels = json!({});
    if let Some(service) = slice.service {
        labels[labels::SERVICE_NAME] = json!(service);
    }
    if let Some(vertex) = slice.vertex {
        labels[labels::PIPELINE_NAME] = json!(PIPELINE);
        labels[labels::VERTEX_NAME] = json!(vertex);
    }
    let ports: Vec<_> = slice
        .ports
        .iter()
        .map(|(name, protocol, port)| json!({"name": name, "protocol": protocol, "port": port}))
        .collect();
    let endpoints: Vec<_> = slice
        .endpoints
        .iter()
        .map(|endpoint| {
            json!({
                "addresses": [endpoint.address],
                "hostname": endpoint.host,
                "conditions": {"ready": endpoint.ready, "serving": false, "terminating": true},
            })
        })
        .collect();
    let object = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkEndpointSlice",
        "metadata": {"namespace": key.namespace, "name": key.name, "labels": labels},
        "spec": {
            "addressType": "IPv4", // both families may occur: records follow the addresses
            "network": {"name": slice.network, "namespace": key.namespace},
            "ports": ports,
            "endpoints": endpoints,
        },
    });
    serde_json::from_value(object).expect("a slice")
}
