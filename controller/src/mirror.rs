//! Core EndpointSlices of a mirror (pure). A mirror is a headless core Service whose slices contain
//! the ready addresses, so that the cluster's own DNS answers with them.
//!
//! They are planned in the same way as MultiNetworkEndpointSlices (see [`slices`](crate::slices)),
//! with one group per family.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{
    Endpoint as CoreEndpoint, EndpointConditions, EndpointPort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use multinet_crds::{Endpoint, IpFamily, Port, Protocol, TargetReference, labels};
use multinet_runtime::ObjectKey;

use crate::slices::metadata::{CommonMetadata, controller_of, label};
use crate::slices::pack::{Identity, PackEntry};
use crate::slices::planner::{DesiredSlices, PackOptions, Slice, remove};
use crate::slices::{Owner, Plan, same_or_empty, same_ports};

/// Label of slices of a headless Service, which has no value. It tells kube-proxy to ignore them.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Annotation with the time of the change, like [`labels::LAST_CHANGE_TRIGGER_TIME`]. CoreDNS
/// computes its programming latency from it.
const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Desired content of a mirror's slices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredMirror {
    /// The MultiNetworkService that is mirrored.
    pub owner: Owner,
    /// Name of the core Service that the MultiNetworkService is mirrored to.
    pub service: String,
    /// The ports of every endpoint.
    pub ports: Vec<Port>,
    /// Ready endpoints of the mirrored networks that Kubernetes accepts, each address once, with
    /// the family of the address.
    pub endpoints: Vec<(IpFamily, Endpoint)>,
}

/// Plans the writes that turn `existing` into the desired slices. Without desired slices, plans to
/// delete all of them. `existing` must be the slices that [belong](service_of) to this service. See
/// [`slices::plan`](crate::slices::plan) for the other arguments.
pub(crate) fn plan(
    desired: Option<&DesiredMirror>,
    existing: &[Arc<EndpointSlice>],
    packing: PackOptions,
    trigger: Option<Timestamp>,
) -> Plan<EndpointSlice> {
    let Some(desired) = desired else {
        return remove(existing);
    };
    let endpoints: Vec<(IpFamily, CoreEndpoint)> =
        desired.endpoints.iter().map(|(family, endpoint)| (*family, core_endpoint(endpoint))).collect();
    let of = |wanted| endpoints.iter().filter(move |(family, _)| *family == wanted).map(|(_, entry)| entry);
    let slices: DesiredSlices<'_, EndpointSlice> = DesiredSlices {
        common: CommonMetadata {
            owner: &desired.owner,
            labels: core_labels(desired),
            annotation: LAST_CHANGE_TRIGGER_TIME,
            trigger,
        },
        prefix: &desired.service,
        ports: &desired.ports,
        groups: IpFamily::ALL.map(|family| (family, of(family).collect())).into(),
    };
    slices.plan(existing, packing)
}

/// Returns the service whose mirror a core slice belongs to; `None` if the controller must not
/// write the slice. The slice's labels decide. If one of the two labels was removed, the slice's
/// controller decides. A slice with another `managed-by` label belongs to another writer:
/// Kubernetes tells writers of EndpointSlices apart by that label. It stays until its owner is
/// deleted.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let metadata = &slice.metadata;
    let name = match label(metadata, labels::CORE_MANAGED_BY) {
        Some(labels::MANAGED_BY_CONTROLLER) => {
            label(metadata, labels::SERVICE_NAME).or_else(|| controller_of(metadata))
        }
        None | Some("") => controller_of(metadata),
        Some(_) => None,
    };
    Some(ObjectKey::from(metadata).beside(name?))
}

fn core_labels(desired: &DesiredMirror) -> BTreeMap<String, String> {
    [
        (labels::CORE_SERVICE_NAME, desired.service.as_str()),
        (labels::CORE_MANAGED_BY, labels::MANAGED_BY_CONTROLLER),
        (HEADLESS, ""),
        // Two services may be mirrored to one core Service. This label tells their slices apart.
        (labels::SERVICE_NAME, desired.owner.name.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn core_endpoint(endpoint: &Endpoint) -> CoreEndpoint {
    let conditions = &endpoint.conditions;
    CoreEndpoint {
        addresses: endpoint.addresses.clone(),
        conditions: Some(EndpointConditions {
            ready: Some(conditions.is_ready()),
            serving: Some(conditions.is_serving()),
            terminating: Some(conditions.is_terminating()),
        }),
        hostname: endpoint.hostname.clone(),
        node_name: endpoint.node_name.clone(),
        zone: endpoint.zone.clone(),
        target_ref: endpoint.target_ref.as_ref().map(core_reference),
        ..CoreEndpoint::default()
    }
}

fn core_reference(target: &TargetReference) -> ObjectReference {
    ObjectReference {
        kind: target.kind.clone(),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        uid: target.uid.clone(),
        ..ObjectReference::default()
    }
}

fn core_port(port: &Port) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone()),
        port: Some(i32::from(port.port)),
        protocol: Some(port.protocol.as_str().to_owned()),
        app_protocol: port.app_protocol.clone(),
    }
}

/// Converts a core port, with the API's defaults. Returns `None` for a port that the controller
/// would not write.
fn own_port(port: &EndpointPort) -> Option<Port> {
    let protocol = match port.protocol.as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    Some(Port {
        name: port.name.clone().unwrap_or_default(),
        port: u16::try_from(port.port?).ok()?,
        protocol,
        app_protocol: port.app_protocol.clone(),
    })
}

impl Slice for EndpointSlice {
    type Entry = CoreEndpoint;
    type Group = IpFamily;

    const FIXED_LABEL: Option<&'static str> = Some(labels::CORE_SERVICE_NAME);

    fn family_of(group: &IpFamily) -> IpFamily {
        *group
    }

    fn family(&self) -> Option<IpFamily> {
        IpFamily::ALL.into_iter().find(|family| family.as_str() == self.address_type)
    }

    fn is_of(&self, group: &IpFamily) -> bool {
        self.family() == Some(*group)
    }

    fn has_ports(&self, ports: &[Port]) -> bool {
        let found: Option<Vec<Port>> = self.ports.iter().flatten().map(own_port).collect();
        found.is_some_and(|found| same_ports(found.iter(), ports))
    }

    fn entries(&self) -> &[CoreEndpoint] {
        &self.endpoints
    }

    fn build(metadata: ObjectMeta, group: &IpFamily, ports: &[Port], endpoints: Vec<CoreEndpoint>) -> Self {
        let ports = Some(ports.iter().map(core_port).collect());
        Self { metadata, address_type: group.as_str().to_owned(), ports, endpoints }
    }
}

impl PackEntry for CoreEndpoint {
    fn identity(&self) -> Option<Identity<'_>> {
        let [address] = self.addresses.as_slice() else {
            return None;
        };
        let target = self.target_ref.as_ref();
        Some(Identity {
            address: address.parse().ok()?,
            hostname: self.hostname.as_deref().unwrap_or_default(),
            namespace: target.and_then(|target| target.namespace.as_deref()).unwrap_or_default(),
            name: target.and_then(|target| target.name.as_deref()).unwrap_or_default(),
        })
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        let (target, others) = (self.target_ref.as_ref(), other.target_ref.as_ref());
        self.addresses == other.addresses
            && conditions(self) == conditions(other)
            && self.hostname == other.hostname
            && self.node_name == other.node_name
            && self.zone == other.zone
            && same_or_empty(target, others)
            && same_or_empty(self.hints.as_ref(), other.hints.as_ref())
        // `deprecated_topology` is not compared, since the API server keeps its value whatever is
        // written.
    }
}

/// Returns the conditions ready, serving and terminating of an endpoint, with the API's defaults.
fn conditions(endpoint: &CoreEndpoint) -> [bool; 3] {
    let conditions = endpoint.conditions.as_ref();
    [
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true),
        conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
    ]
}

#[cfg(test)]
mod tests;
