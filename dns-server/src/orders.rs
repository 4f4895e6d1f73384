//! Root of the crate `multinet-dns-orders`: the store and the answer path with other locks.
//!
//! A scheduler ([shuttle](https://docs.rs/shuttle)) chooses the order of all steps that threads take
//! at its own locks, atomics and maps. The modules below are the server's, unchanged: they reach
//! what threads share through `crate::sync`, which is another file here. The tests are in
//! `dns-server/orders/tests/`.

#![forbid(unsafe_code)]
#![allow(dead_code, missing_docs, reason = "a part of the server, of which the tests use a part")]

pub mod answers;
pub mod build;
pub mod compose;
pub mod cookie;
mod edns;
pub mod endpoints;
pub mod group;
pub mod index;
pub mod journal;
pub mod limit;
pub mod lookup;
pub mod name;
pub mod publisher;
pub mod query;
pub mod records;
pub mod reverse;
pub mod rrset;
pub mod slice;
pub mod slow;
pub mod state;
#[path = "../orders/sync.rs"]
mod sync;
pub mod transfer;
pub mod tsig;
pub mod txt;
pub mod zone;
