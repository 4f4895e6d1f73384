//! What a service's slices should say, and the fewest writes that make them say it. Pure.
//!
//! ```text
//!  Desired ──────┐                 ┌─> pack: which endpoint into which slice
//!  mirror's own ─┴─> planner ──────┼─> metadata: labels, owner, time of the change
//!  existing slices ─────┘  └> Plan └─> names of new slices
//! ```
//!
//! The same planner serves MultiNetworkEndpointSlices (here) and the core EndpointSlices of [mirrors](crate::mirror).
//! Property tests check it over random histories (`pack/tests/properties.rs`): the union of the slices is what is wanted, each
//! endpoint stands in one slice, a second plan is empty, a change of one endpoint writes one slice.
//!
//! A slice is rewritten if it would be *read* as something else than what is wanted, not if it is merely spelled otherwise:
//! absent conditions are their defaults, ports have no order.

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
use self::pack::{Entry, Identity};
pub use self::planner::PackOptions;
use self::planner::{DesiredSlices, Slice};
use crate::name_summary::NameSummary;

pub(crate) mod metadata;
mod names;
pub(crate) mod pack;
pub(crate) mod planner;

/// What a service's slices should say.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The service.
    pub owner: Owner,
    /// The service's own labels. Its slices get them too, as core's do, except for those that tell slices apart.
    pub labels: BTreeMap<String, String>,
    /// The ports of every endpoint.
    pub ports: Vec<Port>,
    /// One for each network of the spec and family of `ipFamilies`, in their order, with endpoints or without.
    pub groups: Vec<Group>,
}

/// A MultiNetworkService that owns slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its namespace, and that of its slices.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Tells services of one name apart.
    pub uid: String,
}

/// The endpoints of a service on one network and in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The network, with all its parts: the namespace too, if the kind has one, and the alias always.
    pub network: NetworkReference,
    /// The family.
    pub family: IpFamily,
    /// The endpoints, each with exactly one address in its canonical notation. Others are passed over, as are repeated ones.
    pub endpoints: Vec<Endpoint>,
}

/// What must be written. The objects are complete: new ones have names, others the resourceVersion that they were
/// planned on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// Slices to create.
    pub create: Vec<S>,
    /// Slices to write anew.
    pub update: Vec<S>,
    /// Slices to delete.
    pub delete: Vec<SliceId>,
}

impl<S> Plan<S> {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes() == 0
    }

    /// How many objects are written.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }

    /// Leaves so many writes at most, those that go first. Returns whether there were more.
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

/// A slice to delete, and the version of it that is to go: the preconditions of the deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceId {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
}

impl SliceId {
    fn of(metadata: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            key: ObjectKey { namespace: text(&metadata.namespace), name: text(&metadata.name) },
            uid: text(&metadata.uid),
            resource_version: text(&metadata.resource_version),
        }
    }
}

/// Plans the writes that make `existing` say what is desired. `existing` are the slices that [belong](service_of) to this
/// service. `trigger` is when the change happened.
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

/// Returns whether any two slices of a group fit into one. Each slice is its group and how many endpoints it has.
pub(crate) fn could_merge<G: Ord>(slices: impl Iterator<Item = (G, usize)>, limit: usize) -> bool {
    let mut slices: Vec<(G, usize)> = slices.collect();
    slices.sort_unstable();
    slices.windows(2).any(|two| two[0].0 == two[1].0 && two[0].1 + two[1].1 <= limit)
}

/// The service that a slice belongs to, if it is ours to write: by its labels; or, whatever somebody has made of them, by its
/// controller, of which an object has one. One that others write is ours neither way, unless they have made the service its controller.
pub fn service_of(slice: &MultiNetworkEndpointSlice) -> Option<ObjectKey> {
    let metadata = &slice.metadata;
    let labelled = label(metadata, labels::SERVICE_NAME).filter(|_| is_labelled(slice));
    let name = labelled.or_else(|| controller_of(metadata))?.to_owned();
    Some(ObjectKey { namespace: metadata.namespace.clone().unwrap_or_default(), name })
}

/// Whether the slice itself says that it is ours.
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

impl Entry for Endpoint {
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
        // The text of the address counts: other notations of it are made canonical.
        self.addresses == other.addresses
            && same_conditions(&self.conditions, &other.conditions)
            && self.hostname == other.hostname
            && self.node_name == other.node_name
            && self.zone == other.zone
            && same_or_empty(self.target_ref.as_ref(), other.target_ref.as_ref())
            && same_or_empty(self.device.as_ref(), other.device.as_ref())
    }
}

/// The first addresses with their pods, for `kubectl get`: a printer column shows one value, and no list.
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

/// Whether two parts are the same, where one that says nothing is as good as none.
pub(crate) fn same_or_empty<T: Default + PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
    let nothing = T::default();
    a.unwrap_or(&nothing) == b.unwrap_or(&nothing)
}

/// Whether `found` are these ports, in whichever order.
pub(crate) fn same_ports<'a>(found: impl Iterator<Item = &'a Port>, wanted: &[Port]) -> bool {
    let mut found: Vec<&Port> = found.collect();
    let mut wanted: Vec<&Port> = wanted.iter().collect();
    found.sort_unstable();
    wanted.sort_unstable();
    found == wanted
}

#[cfg(test)]
pub(crate) mod tests;
