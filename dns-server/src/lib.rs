//! An authoritative DNS server for the second NICs of pods.
//!
//! The records of MultiNetworkServices and their slices are those of headless services in the
//! Kubernetes DNS specification, with addresses of secondary networks. This crate is the server;
//! [`app::run`] is the program `multinet-dns`.
//!
//! # How a query is answered
//!
//! All decisions are made when the cluster changes. A query takes one lookup of its service.
//! Address records are copied as they are; records with names in them are composed from the
//! endpoint's label and the end of the name in the question.
//!
//! ```text
//!   source::{kube, manifests, snapshot}
//!        │ start · apply · delete · reset · commit
//!        v
//!   store   state ── index ──> build, group ──> publisher ──> answers     per change
//!                    objects   pure                           the maps
//! - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - -  │  - - - - - - - - - -
//!                                                                  v
//!   net     udp · tcp ──> engine ──>   answer   query::render ──> lookup, compose ──> reply
//!           https · quic   │  ▲
//!                          v  │
//!                        answer::slow     odd packets; signatures (secondary::tsig)
//! ```
//!
//! | module | holds | uses |
//! |---|---|---|
//! | [`store`] | objects, and the records made of them | |
//! | [`answer`] | from a query's bytes to its reply, without a socket | `store` |
//! | [`secondary`] | zone transfers, NOTIFY, signatures | `store`, `answer` |
//! | [`ops`] | metrics, dnstap, the most frequent queries | `store`, `answer` |
//! | [`net`] | sockets, and the engine that answers what they receive | all of these |
//! | [`source`] | objects from Kubernetes, from manifests, from a snapshot | `store`, `ops` |
//!
//! Secondaries follow along: with every change the publisher feeds a [journal](store::journal), the
//! [notifier](secondary::notifier) tells the secondaries, and they fetch what has changed
//! ([`secondary::transfer`]).
//!
//! # Shared state
//!
//! | data | written by | read by | shared through |
//! |---|---|---|---|
//! | [`Answers`](store::answers::Answers) | the publisher | every worker | a concurrent map |
//! | index, journal | the source's thread | transfers, snapshots, `/debug/state` | one mutex |
//! | counters | their own thread | the scrape | relaxed atomics without contention |
//! | sketches of the most frequent queries | their own thread | `/debug/top` | a mutex each |
//! | certificates | the follower | handshakes | an `ArcSwap` |
//!
//! The map's entries are services, each of which is replaced as a whole. No ordinary query takes
//! the mutex of the index, which is in [`State`](store::state::State).
//!
//! # Invariants
//!
//! - A service is in the map exactly if it has a ready endpoint, so a miss proves NXDOMAIN.
//! - All answers about a service come from one version of it, so no record names a host that does
//!   not exist.
//! - Partial knowledge is not served: until every watch has synced, the answer is SERVFAIL or comes
//!   from a snapshot.
//! - The reply to any packet is well-formed, and the same from the fast and the slow path.

#![deny(unsafe_code)]

// In the order of the arrows: a module uses only modules above it (`make check` tests this).

mod sync;

mod limits;

pub mod store;

pub mod answer;

pub mod secondary;

pub mod ops;

pub mod net;

pub mod source;

mod config;

mod secrets;

mod listeners;

pub mod app;
