//! MultiNetworkServices in terms of their owners' intent, with their JSON as the API server sends
//! it.

use std::collections::BTreeSet;

use multinet_crds::{IpFamily, MultiNetworkService, NetworkKind};
use multinet_runtime::ObjectKey;
use serde_json::{Value, json};

use super::objects::{Object, metadata, time};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) is_deleted: bool,
    pub(crate) spec: ServiceSpec,
    pub(crate) status: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceSpec {
    /// A label of the service itself.
    pub(crate) label: Option<&'static str>,
    pub(crate) selector: Option<Vec<Requirement>>,
    pub(crate) networks: Vec<NetworkUse>,
    pub(crate) ports: Vec<(&'static str, u16)>,
    pub(crate) families: BTreeSet<IpFamily>,
    pub(crate) publishes_not_ready: bool,
    /// Name of the core Service, and the place of the mirrored network, if only one is mirrored.
    pub(crate) mirror: Option<(&'static str, Option<usize>)>,
    pub(crate) flaw: Option<Flaw>,
}

/// A way in which a service can be invalid. (An older schema may have accepted such a service.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flaw {
    NoNetworks,
    AliasTwice,
    NoValues,
    UnknownAlias,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NetworkUse {
    pub(crate) kind: NetworkKind,
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Requirement {
    Equal(&'static str, &'static str),
    In(&'static str, Vec<&'static str>),
    NotIn(&'static str, Vec<&'static str>),
    Exists(&'static str),
    Absent(&'static str),
}

/// Returns the alias of the network at this place.
pub(crate) fn alias(place: usize) -> String {
    format!("net-{place}")
}

impl ServiceSpec {
    fn json(&self) -> Value {
        let mut networks: Vec<Value> = self
            .networks
            .iter()
            .enumerate()
            .map(|(place, network)| {
                json!({"kind": network.kind, "namespace": network.namespace, "name": network.name, "alias": alias(place)})
            })
            .collect();
        let mut labels = json!({});
        let mut expressions = Vec::new();
        for requirement in self.selector.iter().flatten() {
            let mut add = |key, operator, values: &[&str]| {
                expressions.push(json!({"key": key, "operator": operator, "values": values}));
            };
            match requirement {
                Requirement::Equal(key, value) => labels[key] = json!(value),
                Requirement::In(key, values) => add(key, "In", values),
                Requirement::NotIn(key, values) => add(key, "NotIn", values),
                Requirement::Exists(key) => add(key, "Exists", &[]),
                Requirement::Absent(key) => add(key, "DoesNotExist", &[]),
            }
        }
        let mut mirror =
            self.mirror.map(|(name, place)| json!({"serviceName": name, "network": place.map(alias)}));
        match self.flaw {
            Some(Flaw::NoNetworks) => networks.clear(),
            Some(Flaw::AliasTwice) => networks.push(json!({"name": "rail9", "alias": alias(0)})),
            Some(Flaw::NoValues) => expressions.push(json!({"key": "app", "operator": "In"})),
            Some(Flaw::UnknownAlias) => mirror = Some(json!({"serviceName": "core-a", "network": "nowhere"})),
            None => {}
        }
        let has_selector = self.selector.is_some() || self.flaw == Some(Flaw::NoValues);
        let selector = has_selector.then(|| json!({"matchLabels": labels, "matchExpressions": expressions}));
        json!({
            "selector": selector,
            "networks": networks,
            "ports": self.ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect::<Vec<_>>(),
            "ipFamilies": self.families,
            "publishNotReadyAddresses": self.publishes_not_ready,
            "mirror": mirror,
        })
    }
}

impl Object for Service {
    type View = MultiNetworkService;

    fn json(&self, key: &ObjectKey, version: u64) -> Value {
        let mut metadata = metadata(key, version);
        metadata["uid"] = json!(self.uid);
        metadata["generation"] = json!(self.generation);
        metadata["managedFields"] = json!([]);
        if let Some(label) = self.spec.label {
            metadata["labels"] = json!({"team": label});
        }
        if self.is_deleted {
            metadata["deletionTimestamp"] = json!(time(1));
        }
        json!({
            "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
            "metadata": metadata, "spec": self.spec.json(), "status": self.status,
        })
    }
}
