//! Direct edges of Numaflow's Pipelines: second NICs for the vertices at their ends, and names for
//! the pods on these.
//!
//! ```text
//!   API server                     pure                                  API server
//!  ┌───────────┐        ┌────────────────────────┐           ┌────────┐  services
//!  │ Pipelines │ ─────> │ index: annotation,     │ ────────> │ leader │ ─────────> events
//!  │ Vertices  │        │ plan, reconcile        │ Decision  └────────┘  resets of Vertices
//!  │ services… │        └──────────┬─────────────┘                              │
//!  └───────────┘                   │ End                                        v
//!   a Vertex, as Numaflow  ┌───────┴────────┐  JSON patch      ┌────────────────────────┐
//!   writes it ───────────> │ webhook inject │ ───────────────> │ Vertex with its plan   │
//!                          └────────────────┘                  └────────────────────────┘
//! ```
//!
//! 1. [`annotation`] parses the direct edges of each Pipeline, strictly and each by itself.
//! 2. [`plan`] joins the edges of a namespace to the needs of each vertex. The stamp of a plan
//!    changes with it.
//! 3. [`webhook`] merges a vertex' plan into its Vertex ([`inject`]) whenever Numaflow writes it,
//!    so that the first pod already has everything.
//! 4. [`reconcile`] compares a namespace with its plan when it has its turn ([`turns`]), and
//!    [`leader`] writes what is missing: a MultiNetworkService for each end, events, and an empty
//!    hash for each Vertex without its plan, which makes Numaflow write it anew. [`attempts`] and
//!    [`refusal`] decide how often.
//! 5. [`keeper`] makes the webhook's certificate and writes it into the webhook's configuration.
//! 6. [`files`] does the same for manifests, without a cluster.
//!
//! # Invariants
//!
//! - Pipelines and pods are never written. What Numaflow decides about a Vertex stays its decision.
//! - No state is stored but the stamp in a Vertex' spec.
//! - What the author of a Pipeline has set is never replaced.

#![forbid(unsafe_code)]

pub mod annotation;
pub mod app;
pub mod attempts;
pub mod certificate;
pub mod config;
pub mod events;
pub mod files;
pub mod index;
pub mod inject;
pub mod keeper;
pub mod leader;
pub mod metrics;
pub mod objects;
pub mod plan;
pub mod reconcile;
pub mod refusal;
pub mod server;
pub mod service;
pub mod turns;
pub mod webhook;

#[cfg(test)]
mod fixtures;
mod limits;
