//! An authoritative DNS server for the second NICs of pods.
//!
//! MultiNetworkServices and their slices become headless-style records; the answers are those of the
//! Kubernetes DNS specification, with addresses of secondary networks. This crate is the server; the
//! binary `multinet-dns` is [`app::run`].
//!
//! # How an answer comes about
//!
//! All decisions are made when the cluster changes. A query is one look-up of the service that it is about; its address
//! records are copied as they lie, and records with names in them are put together from the endpoint's label and the end
//! of the name in the question.
//!
//! ```text
//!   source::{kube, manifests, snapshot}
//!        │ start · apply · delete · reset · commit
//!        v
//!   store   state ── index ──> build, group ──> publisher ──> answers     once per change, per service
//!                    objects   pure                           the maps
//! - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - -  │  - - - - - - - - - -
//!                                                                  v
//!   net     udp · tcp ──> engine ──>   answer   query::render ──> lookup, compose ──> reply   once per query
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
//! Secondaries follow beside that: with every change the publisher feeds a [journal](store::journal), the
//! [notifier](secondary::notifier) tells them of it, and they fetch what has changed ([`secondary::transfer`]).
//!
//! # What is shared, and how
//!
//! | what | who writes | who reads | how |
//! |---|---|---|---|
//! | [`Answers`](store::answers::Answers) | the publisher, one at a time | every worker | a concurrent map of services, each swapped whole; addresses in order behind a lock |
//! | index, publisher and journal | the source's thread | transfers, snapshots, `/debug/state` | one mutex in [`State`](store::state::State), never taken by an ordinary query |
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

// In the order of the arrows: a module uses only those above it (`make check`).

mod sync;

pub mod store;

pub mod answer;

pub mod secondary;

pub mod ops;

pub mod net;

pub mod source;

pub mod config;

pub mod secrets;

pub mod listeners;

pub mod app;
