//! Controller that publishes the addresses of pods' secondary interfaces as
//! MultiNetworkEndpointSlices.
//!
//! ```text
//!   API server                      pure                                     API server
//!  ┌───────────┐  views   ┌──────────────────────────┐  Work      ┌────────┐ slices
//!  │ pods      │ ───────> │ index                    │ ─────────> │ writer │ ───────> mirrors
//!  │ nodes     │          │  ├ sources               │            │        │ ───────> status
//!  │ claims …  │          │  ├ selector conflicts    │ <───────── │        │
//!  │ services  │          │  ├ endpoints status      │  answers   └────────┘
//!  │ slices    │          │  └ slices mirror         │                ▲   ▲ WorkItem
//!  └───────────┘          └────────────┬─────────────┘   Leadership ──┘   │
//!    optional: API groups that         └─ dirty services ──> queue ───────┘
//!    may be absent
//! ```
//!
//! The path of a change:
//!
//! 1. A watch decodes the object into its [view](views), a type with the few fields that matter.
//!    The [`ClusterIndex`](index::ClusterIndex) parses it into a [`model`] type. All [sources]
//!    describe a pod's interfaces with the same types.
//! 2. The index finds the services that the change affects, by [selectors](selector), claims, nodes
//!    and [shared addresses](conflicts). At the watch's commit, it adds them to the [`queue`].
//!    Other services cause no work.
//! 3. A task of the writer takes a service from the queue, and asks the index for its [work]: the
//!    [endpoints] that it should have within the [limits](caps), and the [fewest writes](slices)
//!    that lead there. The writer sends them while this process is the leader. It records the API
//!    server's answers in the index, so that the next plan need not wait for the watch.
//! 4. The result goes into the service's [`status`]. Problems that people should see also become
//!    [events].
//!
//! Everything up to the writer is pure. It maps objects to decisions, has no client, and takes the
//! time as an argument.
//!
//! # Invariants
//!
//! - Nothing is written before all watches have listed their objects, nor by a process that does
//!   not hold the lease.
//! - Every write names the version that it was planned on. After a version conflict, or without an
//!   answer, the writer lists the service's slices and plans again.
//! - One task at a time works on a service. Namespaces take [turns](fair_queue), and so do the
//!   services in a namespace, so that none waits for all the work of another.
//! - Standbys watch too, so that a new leader knows all objects at once.

#![forbid(unsafe_code)]

pub mod app;
pub mod caps;
pub mod events;
pub mod fair_queue;
pub mod index;
pub mod metrics;
pub mod model;
pub mod optional;
pub mod queue;
pub mod slices;
pub mod sources;
pub mod views;
pub mod work;
pub mod writer;

mod config;
mod conflicts;
mod endpoints;
mod limits;
mod mirror;
mod missing;
mod multimap;
mod name_summary;
mod rate_limiter;
mod selector;
mod status;
mod tally;
mod untrusted;
