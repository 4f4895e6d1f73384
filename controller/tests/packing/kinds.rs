//! The two kinds of slices, as the properties see them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint as CoreEndpoint, EndpointConditions, EndpointSlice};
use kube::Resource;
use multinet_controller::slices::Plan;
use multinet_controller::{mirror, slices};
use multinet_crds::{Endpoint, IpFamily, MultiNetworkEndpointSlice, Port};
use multinet_runtime::ObjectKey;
use serde_json::json;

use crate::world::World;

/// A kind of slice.
pub(crate) trait Kind: Resource<DynamicType = ()> + Clone + PartialEq + Debug {
    type Endpoint: Clone + PartialEq + Debug;

    fn plan(world: &World, existing: &[Arc<Self>], trigger: Option<Timestamp>, seed: u64) -> Plan<Self>;

    /// All endpoints that the slices should hold, by group.
    fn groups(world: &World) -> BTreeMap<String, Vec<Self::Endpoint>>;

    /// The group that the slice is of.
    fn group(&self) -> String;

    fn labels(world: &World) -> BTreeMap<String, String>;

    fn service(&self) -> Option<ObjectKey>;

    fn family(&self) -> String;

    fn ports(&self) -> Vec<Port>;

    fn clear_ports(&mut self);

    /// Makes the slice one of another network, if the kind knows networks.
    fn set_network(&mut self, name: &str, alias: &str);

    fn endpoints(&self) -> &[Self::Endpoint];

    fn endpoints_mut(&mut self) -> &mut Vec<Self::Endpoint>;

    fn addresses_mut(endpoint: &mut Self::Endpoint) -> &mut Vec<String>;

    fn zone_mut(endpoint: &mut Self::Endpoint) -> &mut Option<String>;
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

impl Kind for MultiNetworkEndpointSlice {
    type Endpoint = Endpoint;

    fn plan(world: &World, existing: &[Arc<Self>], trigger: Option<Timestamp>, seed: u64) -> Plan<Self> {
        slices::plan(&world.desired(), existing, world.limit, trigger, seed)
    }

    fn groups(world: &World) -> BTreeMap<String, Vec<Endpoint>> {
        let groups = world.desired().groups.into_iter();
        groups.map(|group| (format!("{:?} {:?}", group.network, group.family), group.endpoints)).collect()
    }

    fn group(&self) -> String {
        format!("{:?} {:?}", self.spec.network, self.spec.address_type)
    }

    fn labels(world: &World) -> BTreeMap<String, String> {
        let mut labels = labels([
            ("multinetwork.numaproj.io/service-name", "infer"),
            ("multinetwork.numaproj.io/managed-by", "multinet-controller"),
        ]);
        labels.extend(world.labels());
        labels
    }

    fn service(&self) -> Option<ObjectKey> {
        slices::service_of(self)
    }

    fn family(&self) -> String {
        self.spec.address_type.as_str().to_owned()
    }

    fn ports(&self) -> Vec<Port> {
        self.spec.ports.clone()
    }

    fn clear_ports(&mut self) {
        self.spec.ports.clear();
    }

    fn set_network(&mut self, name: &str, alias: &str) {
        self.spec.network.name = name.to_owned();
        self.spec.network.alias = Some(alias.to_owned());
    }

    fn endpoints(&self) -> &[Endpoint] {
        &self.spec.endpoints
    }

    fn endpoints_mut(&mut self) -> &mut Vec<Endpoint> {
        &mut self.spec.endpoints
    }

    fn addresses_mut(endpoint: &mut Endpoint) -> &mut Vec<String> {
        &mut endpoint.addresses
    }

    fn zone_mut(endpoint: &mut Endpoint) -> &mut Option<String> {
        &mut endpoint.zone
    }
}

impl Kind for EndpointSlice {
    type Endpoint = CoreEndpoint;

    fn plan(world: &World, existing: &[Arc<Self>], trigger: Option<Timestamp>, seed: u64) -> Plan<Self> {
        mirror::plan(Some(&world.mirror()), existing, world.limit, trigger, seed)
    }

    fn groups(world: &World) -> BTreeMap<String, Vec<CoreEndpoint>> {
        let mut groups = BTreeMap::from(IpFamily::ALL.map(|family| (family.as_str().to_owned(), Vec::new())));
        for (family, endpoint) in world.mirror().endpoints {
            groups.entry(family.as_str().to_owned()).or_default().push(core(endpoint));
        }
        groups
    }

    fn group(&self) -> String {
        self.address_type.clone()
    }

    fn labels(world: &World) -> BTreeMap<String, String> {
        labels([
            ("kubernetes.io/service-name", world.mirror().service.as_str()),
            ("endpointslice.kubernetes.io/managed-by", "multinet-controller"),
            ("service.kubernetes.io/headless", ""),
            ("multinetwork.numaproj.io/service-name", "infer"),
        ])
    }

    fn service(&self) -> Option<ObjectKey> {
        mirror::service_of(self)
    }

    fn family(&self) -> String {
        self.address_type.clone()
    }

    fn ports(&self) -> Vec<Port> {
        let ports = json!(self.ports.clone().unwrap_or_default());
        serde_json::from_value(ports).unwrap_or_else(|error| panic!("{error}"))
    }

    fn clear_ports(&mut self) {
        self.ports = None;
    }

    fn set_network(&mut self, _name: &str, _alias: &str) {}

    fn endpoints(&self) -> &[CoreEndpoint] {
        &self.endpoints
    }

    fn endpoints_mut(&mut self) -> &mut Vec<CoreEndpoint> {
        &mut self.endpoints
    }

    fn addresses_mut(endpoint: &mut CoreEndpoint) -> &mut Vec<String> {
        &mut endpoint.addresses
    }

    fn zone_mut(endpoint: &mut CoreEndpoint) -> &mut Option<String> {
        &mut endpoint.zone
    }
}

fn core(endpoint: Endpoint) -> CoreEndpoint {
    let Endpoint { addresses, conditions, hostname, node_name, zone, target_ref, device: _ } = endpoint;
    let conditions = EndpointConditions {
        ready: conditions.ready,
        serving: conditions.serving,
        terminating: conditions.terminating,
    };
    let target_ref = target_ref.map(|target| ObjectReference {
        kind: target.kind,
        namespace: target.namespace,
        name: target.name,
        uid: target.uid,
        ..ObjectReference::default()
    });
    CoreEndpoint {
        addresses,
        conditions: Some(conditions),
        hostname,
        node_name,
        zone,
        target_ref,
        ..CoreEndpoint::default()
    }
}
