//! API types, labels and validation of `multinetwork.numaproj.io/v1alpha1`.
//!
//! The API has two kinds. Users write a [`MultiNetworkService`], which selects pods and secondary
//! networks and gives them a DNS name. multinet's controller writes its
//! [`MultiNetworkEndpointSlice`]s, which hold the pods' addresses and describe their devices. For a
//! service without a selector, another program may write them.
//!
//! ```text
//!   MultiNetworkService infer                          MultiNetworkEndpointSlice infer-7x2kq
//!   spec.selector ──> pods                             label service-name: infer
//!   spec.networks[] {kind, name, namespace, alias} ──> spec.network      one per network …
//!   spec.ipFamilies[] ───────────────────────────────> spec.addressType  … and family
//!   spec.ports[] ────────────────────────────────────> spec.ports[]
//!                          pods' addresses, nodes ───> spec.endpoints[] {addresses, device, …}
//!   status.{conditions, endpoints, hostname} <──────── counted by the controller
//! ```
//!
//! Field names follow EndpointSlice v1, EndpointSelector (KEP-6116) and GEP-3539, so that moving to
//! an upstream API will be a rename. Slices have a kind of their own, because EndpointSlice v1 has
//! no fields for networks and devices.
//!
//! # Rules
//!
//! The rules exist twice: as schema and CEL for the API server ([`all_crds`]), and as functions
//! ([`validate`]) for objects from files ([`manifest`]). `tests/rules` has a table of valid and
//! invalid objects, on which both must agree. [`syntax`] has the kinds of text with their patterns.
//!
//! The types can hold invalid objects, too: a watch delivers objects that may be older than a rule.
//! Optional fields with a default are not `Option`s. Both schema and serde fill in the default.
//!
//! # Modules
//!
//! | module | |
//! |---|---|
//! | [`conditions`] | types and reasons of conditions |
//! | [`labels`] | label and annotation keys |
//! | [`manifest`] | objects from files, decoded as the API server would |
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
