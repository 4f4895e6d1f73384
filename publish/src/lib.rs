//! Publishes the names of MultiNetworkServices as keys in etcd, for the plugin `etcd` of a stock
//! CoreDNS.
//!
//! ```text
//!   API server                     pure                                      etcd
//!  ┌──────────┐        ┌───────────────────────────────┐           ┌─────────────────────┐
//!  │ services │ ─────> │ index: who has which name      │ changes  │ /skydns/…     keys   │
//!  │ slices   │        │   └─ keys: names to keys       │ ───────> │ /multinet/owner/…    │
//!  └──────────┘        │ store: keys known, least change│  writer  └─────────────────────┘
//!                      └───────────────────────────────┘                    │
//!                                                                CoreDNS, plugin etcd
//! ```
//!
//! 1. The watches feed the [`index`], which divides all names into [slots](index::Slot): a
//!    service, a vertex, an address. Of the services that claim a slot, the oldest has it.
//! 2. For each slot that changed, [`keys`] makes the keys that etcd should have. The [`quota`]
//!    limits those of a service and of a namespace.
//! 3. The [`store`] knows the keys that etcd has, and returns the fewest puts and deletes.
//! 4. The [`writer`] sends them in transactions while this process leads.
//!
//! # Invariants
//!
//! - Every transaction names the owner of the prefix, and the version of each key that it changes.
//!   So a former leader, another cluster and other programs' keys are noticed before anything is
//!   written. After such a conflict, the writer lists all keys and plans again.
//! - A key of this program is marked in its value. Keys without the mark are never written.
//! - No key has a lease: CoreDNS asks etcd about the lease of every record of every answer, and
//!   names would vanish with the publisher. Every key has a time to live.

#![forbid(unsafe_code)]

pub mod app;
pub mod config;
pub mod etcd;
pub mod index;
pub mod keys;
pub mod metrics;
pub mod objects;
pub mod quota;
pub mod store;
pub mod writer;

mod limits;
