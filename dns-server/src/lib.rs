//! An authoritative DNS server for the second NICs of pods.
//!
//! MultiNetworkServices and their slices become headless-style records; the answers are those of the
//! Kubernetes DNS specification, with addresses of secondary networks. This crate is the server; the
//! binary `multinet-dns` is [`app::run`].
//!
//! # How an answer comes about
//!
//! Nothing is computed when a query arrives: its answer has been made when the cluster changed.
//!
//! ```text
//!   source::{kube, manifests, snapshot}
//!        │ apply · delete · reset · commit
//!        v
//!   state ── index ──> build ──> answers            once per change, per service
//!            objects   pure      the map
//! - - - - - - - - - - - - - - - -  │  - - - - - - - - - - - - - - - - - - - -
//!                                  v
//!   udp · tcp ──> engine ──> query::render ──> reply      once per query: look up, copy
//!   https · quic   │  ▲
//!                  v  │
//!                  slow        odd packets, read by hickory's parser
//! ```
//!
//! Each layer knows only those before it: [`index`] knows no RRset, [`build`] no map, [`answers`] no packet,
//! [`query`] no socket. All of these are pure but for the map and its clock.
//!
//! # What is shared, and how
//!
//! | what | who writes | who reads | how |
//! |---|---|---|---|
//! | [`answers::Answers`] | the publisher, one at a time | every worker | a concurrent map; each entry is an `Arc`, replaced whole |
//! | index and publisher | the source's tasks | transfers, snapshots, `/debug/state` | one mutex in [`state::State`], never taken by an ordinary query |
//! | counters | their own worker | the scrape | relaxed atomics without contention |
//! | certificates | the follower | handshakes | an `ArcSwap` |
//!
//! # What has to hold
//!
//! - A name is in the map exactly if it exists, so that a miss proves NXDOMAIN.
//! - A set never points at a host that is not in the map.
//! - What is known in part is not served: until every watch has synced there is SERVFAIL, or a snapshot.
//! - Whatever the packet, the reply is well-formed, and the same from the fast and the slow path.

#![deny(unsafe_code)]

pub mod answers;
pub mod app;
pub mod build;
pub mod config;
pub mod engine;
pub mod https;
pub mod index;
pub mod listen;
pub mod listeners;
pub mod metrics;
pub mod name;
pub mod query;
pub mod quic;
pub mod rrset;
pub mod slow;
pub mod source;
pub mod state;
pub mod tcp;
pub mod tls;
pub mod transfer;
pub mod txt;
pub mod udp;
pub mod zone;
