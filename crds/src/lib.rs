//! API types, labels and validation of `multinetwork.numaproj.io/v1alpha1`.
//!
//! Two kinds make the API. A [`MultiNetworkService`] is what users write: which pods, on which secondary
//! networks, under which name. [`MultiNetworkEndpointSlice`]s are what comes of it: addresses, with what is
//! known of each one's device. multinet's controller writes them; anybody else may, for a service without a
//! selector.
//!
//! ```text
//!   MultiNetworkService infer                          MultiNetworkEndpointSlice infer-7x2kq
//!   spec.selector ──> pods                             label service-name: infer
//!   spec.networks[] {kind, name, namespace, alias} ──> spec.network      one per network …
//!   spec.ipFamilies[] ───────────────────────────────> spec.addressType  … and family
//!   spec.ports[] ────────────────────────────────────> spec.ports[]
//!                          pods' addresses, nodes ───> spec.endpoints[] {addresses, hostname, device, …}
//!   status.{conditions, endpoints, hostname} <──────── counted by the controller
//! ```
//!
//! Field names follow EndpointSlice v1, EndpointSelector (KEP-6116) and GEP-3539, so that moving to an
//! upstream API is a rename; a slice has a kind of its own because EndpointSlice v1 has no room for what is
//! known of an address.
//!
//! # Rules
//!
//! The rules stand in the schema and in CEL, for the API server ([`all_crds`]), and again as functions
//! ([`validate`]), for objects from files ([`manifest`]). `tests/rules` holds a table of good and bad
//! objects that both judge alike. Kinds of text, with their patterns, are in [`syntax`].
//!
//! The types hold whatever the API server would decode, valid or not: they are what a watch delivers, and
//! an object may be older than a rule. Optional fields that have a default are not `Option`s; the default is
//! in the schema and in serde alike.
//!
//! # What is where
//!
//! | module | |
//! |---|---|
//! | [`conditions`] | condition types, reasons, how to set one |
//! | [`labels`] | label and annotation keys |
//! | [`manifest`] | objects from YAML, as the API server would take them |
//! | [`syntax`] | kinds of text |
//! | [`validate`] | the rules |

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "KubeSchema copies the types, pub and all, into functions' bodies")]

pub mod conditions;
pub mod labels;
pub mod manifest;
pub mod syntax;
pub mod validate;

mod crd;
mod network;
mod numbers;
mod port;
mod rules;
mod schema;
mod service;
mod slice;

pub use crd::{all_crds, crd_manifests};
pub use network::{NetworkKind, NetworkReference};
pub use port::{Port, Protocol};
pub use service::{
    EndpointCounts, IpFamily, Mirror, MultiNetworkService, MultiNetworkServiceSpec,
    MultiNetworkServiceStatus, NetworkCounts,
};
pub use slice::{
    Device, Endpoint, EndpointConditions, MultiNetworkEndpointSlice, MultiNetworkEndpointSliceSpec,
    TargetReference,
};
