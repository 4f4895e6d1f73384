//! What the decisions and the writer tell each other: what is to be written, and what became of it.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkServiceStatus};
use multinet_runtime::ObjectKey;

use crate::slices::Plan;

/// What is to be written for a service, so that its slices say what they should.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Nobody knows what slices are there: they have to be listed and handed to `ClusterIndex::refreshed` first. The plans are empty.
    pub needs_list: bool,
    /// The slices that DNS is made of.
    pub slices: Plan<MultiNetworkEndpointSlice>,
    /// The core EndpointSlices of the Service that it is mirrored to.
    pub mirrors: Plan<EndpointSlice>,
}

impl Work {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.needs_list && self.slices.is_empty() && self.mirrors.is_empty()
    }
}

/// What is to be said, now that the work is done or has failed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The status to write; `None`: it is already so, or there is no service to have one.
    pub status: Option<StatusWrite>,
    /// What people should see in the events of an object.
    pub notices: Vec<Notice>,
}

/// A status that differs from what the service has.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// The MultiNetworkService.
    pub service: ObjectKey,
    /// The version of it that the status was made for: neither a service of the same name that came after it gets the status,
    /// nor one that somebody else has written meanwhile.
    pub resource_version: String,
    /// The whole status, conditions of other writers left out.
    pub status: MultiNetworkServiceStatus,
    /// Whether anything but the numbers of endpoints and conflicts has changed. Numbers may wait a moment, for more to change.
    pub urgent: bool,
}

/// Something that a person should see, as an event of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The object, with its uid.
    pub regarding: ObjectReference,
    /// Whether something is wrong.
    pub warning: bool,
    /// CamelCase.
    pub reason: &'static str,
    /// One line that says what, and what to do.
    pub note: String,
}

/// API groups that a cluster need not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OptionalApi {
    /// `k8s.cni.cncf.io`: NetworkAttachmentDefinitions, as Multus reads them.
    Multus,
    /// `resource.k8s.io`: claims, their templates and classes, and the devices that drivers offer.
    Dra,
}

impl OptionalApi {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Multus, Self::Dra];

    /// The group, as the API server spells it.
    pub fn group(self) -> &'static str {
        match self {
            Self::Multus => "k8s.cni.cncf.io",
            Self::Dra => "resource.k8s.io",
        }
    }
}
