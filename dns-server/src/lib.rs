//! An authoritative DNS server for the second NICs of pods.
//!
//! MultiNetworkServices and their slices become headless-style records; the answers are those of the
//! Kubernetes DNS specification, with addresses of secondary networks. This crate is the server; the
//! binary `multinet-dns` is [`app::run`].
//!
//! # How an answer comes about
//!
//! All that is to be decided has been decided when the cluster changed. A query is one look-up of the service that it
//! is about; its address records are copied as they lie, records with names in them are put together from the
//! endpoint's label and the end of the name in the question.
//!
//! ```text
//!   source::{kube, manifests, snapshot}
//!        │ start · apply · delete · reset · commit
//!        v
//!   state ── index ──> build, group ──> publisher ──> answers     once per change, per service
//!            objects   pure                           the maps
//! - - - - - - - - - - - - - - - - - - - - - - - - - - - -  │  - - - - - - - - - - - -
//!                                                          v
//!   udp · tcp ──> engine ──> query::render ──────> lookup, compose ──> reply      once per query
//!   https · quic   │  ▲
//!                  v  │
//!                  slow        odd packets; signatures (tsig)
//! ```
//!
//! Secondaries follow beside that: with every change the publisher feeds a [`journal`], the [`notifier`] tells
//! them of it, and they fetch what has changed ([`transfer`]).
//!
//! Each layer knows only those before it: [`index`] knows no record, [`build`] no map, [`answers`] no packet,
//! [`query`] no socket. All of these are pure but for the maps and their clock.
//!
//! # What is shared, and how
//!
//! | what | who writes | who reads | how |
//! |---|---|---|---|
//! | [`answers::Answers`] | the publisher, one at a time | every worker | a concurrent map of services, each swapped whole; addresses in order behind a lock |
//! | index, publisher and journal | the source's thread | transfers, snapshots, `/debug/state` | one mutex in [`state::State`], never taken by an ordinary query |
//! | counters | their own thread | the scrape | relaxed atomics without contention |
//! | what is asked for most, if that is wanted | the same | `/debug/top` | a mutex for each |
//! | certificates | the follower | handshakes | an `ArcSwap` |
//!
//! # What has to hold
//!
//! - A service is in the map exactly if it has a ready endpoint, so that a miss proves NXDOMAIN.
//! - All that is said of a service comes from one version of it, so no set points at a host that is not there.
//! - What is known in part is not served: until every watch has synced there is SERVFAIL, or a snapshot.
//! - Whatever the packet, the reply is well-formed, and the same from the fast and the slow path.

#![deny(unsafe_code)]

pub mod answers;
pub mod app;
mod aside;
pub mod build;
pub mod compose;
pub mod config;
pub mod cookie;
pub mod dnstap;
mod edns;
pub mod endpoints;
pub mod engine;
pub mod group;
pub mod https;
pub mod index;
pub mod journal;
pub mod limit;
pub mod listen;
pub mod listeners;
pub mod lookup;
pub mod metrics;
pub mod name;
pub mod notifier;
pub mod publisher;
pub mod query;
pub mod quic;
pub mod records;
pub mod reverse;
pub mod rrset;
pub mod secrets;
pub mod slice;
pub mod slow;
#[expect(unsafe_code, reason = "setsockopt has no safe wrapper")]
mod socket;
pub mod source;
pub mod state;
mod sync;
pub mod tcp;
pub mod tls;
pub mod top;
pub mod transfer;
pub mod tsig;
pub mod txt;
pub mod udp;
pub mod zone;
