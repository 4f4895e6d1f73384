//! Types that the index and the writer exchange: what to write, and what to report afterwards.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkServiceStatus};
use multinet_runtime::ObjectKey;

use crate::slices::Plan;

/// Writes that bring a service's slices to their desired state.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Whether the service's slices must be listed and passed to `ClusterIndex::replace_listed`
    /// first, since the index may have missed changes. The plans are then empty.
    pub needs_list: bool,
    /// Writes of the service's MultiNetworkEndpointSlices.
    pub slices: Plan<MultiNetworkEndpointSlice>,
    /// Writes of the core EndpointSlices of the service's mirror.
    pub mirrors: Plan<EndpointSlice>,
}

impl Work {
    /// Returns whether there is nothing to list or to write.
    pub fn is_empty(&self) -> bool {
        !self.needs_list && self.slices.is_empty() && self.mirrors.is_empty()
    }
}

/// Status and events to publish after the writes have succeeded or failed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Status to write; `None` if the service has it already or does not exist.
    pub status: Option<StatusWrite>,
    /// Notices to publish as events.
    pub notices: Vec<Notice>,
}

/// A status that differs from the one that the service has.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The MultiNetworkService whose status is written.
    pub service: ObjectKey,
    /// Version of the service that the status was computed for. The write fails for a newer service
    /// of the same name, and if another writer has changed the service meanwhile.
    pub resource_version: String,
    /// The status, without conditions of other writers.
    pub status: MultiNetworkServiceStatus,
    /// Whether the change is more than numbers. A change of numbers may wait a moment for further
    /// changes.
    pub urgent: bool,
}

/// A message for people, to be published as a warning about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The object that the event is about, with its uid.
    pub regarding: ObjectReference,
    /// Reason of the event, in CamelCase.
    pub reason: String,
    /// Text of the event: one line that tells what is wrong and what to do.
    pub note: String,
}

/// An API group that a cluster may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OptionalApi {
    /// `k8s.cni.cncf.io`, with Multus' NetworkAttachmentDefinitions.
    Multus,
    /// `resource.k8s.io`, with claims, their templates and classes, and the devices that drivers
    /// offer.
    Dra,
}

impl OptionalApi {
    /// All optional API groups.
    pub const ALL: [Self; 2] = [Self::Multus, Self::Dra];

    /// Returns the name of the group.
    pub fn group(self) -> &'static str {
        match self {
            Self::Multus => "k8s.cni.cncf.io",
            Self::Dra => "resource.k8s.io",
        }
    }
}
