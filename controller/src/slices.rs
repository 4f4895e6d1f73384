//! Plans the slices of a service: their desired content, and the fewest writes that lead there
//! (pure).
//!
//! ```text
//!  Desired ──────┐                 ┌─> pack: which endpoint goes into which slice
//!  mirror's own ─┴─> planner ──────┼─> metadata: labels, owner, time of the change
//!  existing slices ─────┘  └> Plan └─> names of new slices
//! ```
//!
//! The same planner serves MultiNetworkEndpointSlices (here) and the core EndpointSlices of
//! [mirrors](crate::mirror). Property tests over random histories (`pack/tests/properties.rs`)
//! check that the slices together contain the wanted endpoints, that each endpoint is in one slice,
//! that a second plan is empty, and that a change of one endpoint writes one slice.
//!
//! A slice is rewritten only if readers would understand it differently from what is wanted. Absent
//! conditions equal their defaults, and the order of ports has no meaning.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use multinet_crds::{
    Endpoint, EndpointConditions, IpFamily, MultiNetworkEndpointSlice, MultiNetworkEndpointSliceSpec,
    NetworkReference, Port, labels,
};
use multinet_runtime::ObjectKey;

use self::metadata::{CommonMetadata, controller_of, label};
use self::pack::{Identity, PackEntry};
pub use self::planner::PackOptions;
use self::planner::{DesiredSlices, Slice};
use crate::name_summary::NameSummary;

pub(crate) mod metadata;
mod names;
pub(crate) mod pack;
pub(crate) mod planner;

/// Desired content of the MultiNetworkEndpointSlices of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The service that owns the slices.
    pub owner: Owner,
    /// Labels of the service. Its slices get them too, as in Kubernetes, except for the labels that
    /// tell slices apart.
    pub labels: BTreeMap<String, String>,
    /// The ports of every endpoint.
    pub ports: Vec<Port>,
    /// Groups for each network of the spec and each family of `ipFamilies`, in their order, with or
    /// without endpoints.
    pub groups: Vec<Group>,
}

/// A MultiNetworkService that owns slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of the service and of its slices.
    pub namespace: String,
    /// Name of the service.
    pub name: String,
    /// Uid of the service, which distinguishes services of the same name.
    pub uid: String,
}

/// Endpoints of a service on one network and in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The network, with all defaults filled in: the namespace of a namespaced kind, and the alias.
    pub network: NetworkReference,
    /// Family of the endpoints' addresses.
    pub family: IpFamily,
    /// Endpoints, each with one address in canonical notation. Endpoints with other numbers of
    /// addresses, and repeated ones, are skipped.
    pub endpoints: Vec<Endpoint>,
}

/// Writes to perform. The objects are complete: new ones have names, and the others have the
/// resourceVersion that they were planned on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// Slices to create.
    pub create: Vec<S>,
    /// Slices to update.
    pub update: Vec<S>,
    /// Slices to delete.
    pub delete: Vec<SliceId>,
}

impl<S> Plan<S> {
    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes() == 0
    }

    /// Returns the number of slices to create, update and delete.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }

    /// Keeps the first `most` writes, and drops the others. Returns whether there were others.
    pub fn cut(&mut self, most: usize) -> bool {
        let before = self.writes();
        self.create.truncate(most);
        self.update.truncate(most - self.create.len());
        self.delete.truncate(most - self.create.len() - self.update.len());
        self.writes() < before
    }
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self { create: Vec::new(), update: Vec::new(), delete: Vec::new() }
    }
}

/// Preconditions for deleting a slice: its key, uid and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceId {
    /// Namespace and name of the slice.
    pub key: ObjectKey,
    /// Uid of the slice.
    pub uid: String,
    /// The resourceVersion of the slice that the delete was planned on.
    pub resource_version: String,
}

impl SliceId {
    fn of(metadata: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            key: ObjectKey::from(metadata),
            uid: text(&metadata.uid),
            resource_version: text(&metadata.resource_version),
        }
    }
}

/// Plans the writes that turn `existing` into the desired slices. `existing` must be the slices
/// that [belong](service_of) to this service. `trigger` is the time of the change.
pub fn plan(
    desired: &Desired,
    existing: &[Arc<MultiNetworkEndpointSlice>],
    packing: PackOptions,
    trigger: Option<Timestamp>,
) -> Plan<MultiNetworkEndpointSlice> {
    let owner = &desired.owner;
    let mut labels = desired.labels.clone();
    labels.insert(labels::SERVICE_NAME.to_owned(), owner.name.clone());
    labels.insert(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_CONTROLLER.to_owned());
    let slices: DesiredSlices<'_, MultiNetworkEndpointSlice> = DesiredSlices {
        common: CommonMetadata { owner, labels, annotation: labels::LAST_CHANGE_TRIGGER_TIME, trigger },
        prefix: &owner.name,
        ports: &desired.ports,
        groups: desired
            .groups
            .iter()
            .map(|group| ((group.network.clone(), group.family), group.endpoints.iter().collect()))
            .collect(),
    };
    slices.plan(existing, packing)
}

/// Returns whether any two slices of a group fit into one. A slice is given as its group and its
/// number of endpoints.
pub(crate) fn could_merge<G: Ord>(slices: impl Iterator<Item = (G, usize)>, limit: usize) -> bool {
    let mut slices: Vec<(G, usize)> = slices.collect();
    slices.sort_unstable();
    slices.windows(2).any(|two| two[0].0 == two[1].0 && two[0].1 + two[1].1 <= limit)
}

/// Returns the service that a slice belongs to; `None` if the controller must not write the slice.
/// The slice's labels decide, or else its controller, so that a slice stays ours if its labels are
/// changed. A slice of another writer is ours only if the service is its controller.
pub fn service_of(slice: &MultiNetworkEndpointSlice) -> Option<ObjectKey> {
    let metadata = &slice.metadata;
    let labelled = label(metadata, labels::SERVICE_NAME).filter(|_| is_labelled(slice));
    Some(ObjectKey::from(metadata).beside(labelled.or_else(|| controller_of(metadata))?))
}

/// Returns whether the slice's labels say that multinet-controller manages it.
pub(crate) fn is_labelled(slice: &MultiNetworkEndpointSlice) -> bool {
    label(&slice.metadata, labels::MANAGED_BY) == Some(labels::MANAGED_BY_CONTROLLER)
}

impl Slice for MultiNetworkEndpointSlice {
    type Entry = Endpoint;
    type Group = (NetworkReference, IpFamily);

    const FIXED_LABEL: Option<&'static str> = None;

    fn family_of((_, family): &Self::Group) -> IpFamily {
        *family
    }

    fn family(&self) -> Option<IpFamily> {
        Some(self.spec.address_type)
    }

    fn is_of(&self, (wanted, family): &Self::Group) -> bool {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let network = &self.spec.network;
        self.spec.address_type == *family
            && network.kind == wanted.kind
            && network.name == wanted.name
            && network.namespace(own) == wanted.namespace(own)
            && network.alias() == wanted.alias()
    }

    fn has_ports(&self, ports: &[Port]) -> bool {
        same_ports(self.spec.ports.iter(), ports)
    }

    fn entries(&self) -> &[Endpoint] {
        &self.spec.endpoints
    }

    fn build(
        mut metadata: ObjectMeta,
        (network, family): &Self::Group,
        ports: &[Port],
        endpoints: Vec<Endpoint>,
    ) -> Self {
        let (network, ports) = (network.clone(), ports.to_vec());
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(labels::ENDPOINTS.to_owned(), summary(&endpoints));
        Self {
            metadata,
            spec: MultiNetworkEndpointSliceSpec { address_type: *family, network, ports, endpoints },
        }
    }
}

impl PackEntry for Endpoint {
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
        // The notation of the address counts: a slice with another notation is rewritten to the
        // canonical one.
        self.addresses == other.addresses
            && same_conditions(&self.conditions, &other.conditions)
            && self.hostname == other.hostname
            && self.node_name == other.node_name
            && self.zone == other.zone
            && same_or_empty(self.target_ref.as_ref(), other.target_ref.as_ref())
            && same_or_empty(self.device.as_ref(), other.device.as_ref())
    }
}

/// Returns the first addresses with their pods, for `kubectl get`. A printer column cannot show a
/// list.
fn summary(endpoints: &[Endpoint]) -> String {
    let shown = endpoints.iter().map(|endpoint| {
        let address = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
        match endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref()) {
            Some(pod) => format!("{address} ({pod})"),
            None => address.to_owned(),
        }
    });
    shown.collect::<NameSummary>().to_string()
}

fn same_conditions(a: &EndpointConditions, b: &EndpointConditions) -> bool {
    a.is_ready() == b.is_ready()
        && a.is_serving() == b.is_serving()
        && a.is_terminating() == b.is_terminating()
}

/// Returns whether two values are equal. An absent value equals an empty one.
pub(crate) fn same_or_empty<T: Default + PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
    let nothing = T::default();
    a.unwrap_or(&nothing) == b.unwrap_or(&nothing)
}

/// Returns whether `found` and `wanted` are the same ports, in any order.
pub(crate) fn same_ports<'a>(found: impl Iterator<Item = &'a Port>, wanted: &[Port]) -> bool {
    let mut found: Vec<&Port> = found.collect();
    let mut wanted: Vec<&Port> = wanted.iter().collect();
    found.sort_unstable();
    wanted.sort_unstable();
    found == wanted
}

#[cfg(test)]
pub(crate) mod tests;
