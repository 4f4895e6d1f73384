//! multinet-controller: pods' second NICs become MultiNetworkEndpointSlices, by themselves.
//!
//! ```text
//!   API server                      pure                                     API server
//!  ┌───────────┐  views   ┌──────────────────────────┐  Work      ┌────────┐ slices
//!  │ pods      │ ───────> │ world                    │ ─────────> │ writer │ ───────> mirrors
//!  │ nodes     │          │  ├ sources               │            │        │ ───────> status
//!  │ claims …  │          │  ├ selector conflicts    │ <───────── │        │
//!  │ services  │          │  ├ endpoints status      │  answers   └────────┘
//!  │ slices    │          │  └ slices mirror         │                ▲   ▲ WorkItem
//!  └───────────┘          └────────────┬─────────────┘   Leadership ──┘   │
//!    optional: which of them there are └─ dirty services ──> queue ───────┘
//! ```
//!
//! Along one change:
//!
//! 1. A watch decodes the object into its [view](views), a type with the few fields that matter, and hands it to the
//!    [`ClusterIndex`](index::ClusterIndex), where it becomes a [`model`] type: parsed once, at the edge. What the
//!    [sources] say of a pod's interfaces is alike from there on.
//! 2. The world finds the services that the change concerns, by [selectors](selector), claims, nodes and
//!    [shared addresses](conflicts), and at the watch's commit puts them into the [`queue`]. Nothing is done for other services.
//! 3. A worker of the writer takes a service from the queue and asks the world for its [work]: the [endpoints] that
//!    it should have, as far as [limits](caps) allow, and the [fewest writes](slices) that get its slices there. The writer sends them, as long as this process
//!    leads, and tells the world what the API server answered, so that the next decision need not wait for the watch.
//! 4. What became of it goes into the service's [`status`], and what people should see into events.
//!
//! Steps 1 to 3 up to the writer are pure: objects in, decisions out, no client and no clock but the one passed in.
//!
//! # What holds
//!
//! - Nothing is written before all watches have synced, nor by a process that does not hold the lease.
//! - Every write names the version that it was planned on. One that meets another version, or whose answer does not come,
//!   makes the writer list that service's slices and plan anew.
//! - A service is worked on by one worker at a time. Namespaces take [turns], and so do the services of each: none waits for all
//!   that another one has to be done.
//! - Standbys watch too: a new leader knows everything at once.

#![forbid(unsafe_code)]

pub mod app;
pub mod caps;
pub mod config;
pub mod conflicts;
pub mod endpoints;
pub mod events;
pub mod fair_queue;
pub mod index;
pub mod metrics;
pub mod mirror;
pub mod missing;
pub mod model;
pub mod multimap;
pub mod name_summary;
pub mod optional;
pub mod queue;
pub mod rate_limiter;
pub mod selector;
pub mod slices;
pub mod sources;
pub mod status;
pub mod tally;
pub mod views;
pub mod work;
pub mod writer;

mod untrusted;
