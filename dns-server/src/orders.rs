//! Root of the crate `multinet-dns-orders`: the store and the answer path with other locks.
//!
//! A scheduler ([shuttle](https://docs.rs/shuttle)) chooses the order of all steps that threads
//! take at its own locks, atomics and maps. The modules below are those of the server, unchanged:
//! they use shared state through `crate::sync`, which is another file here. The tests are in
//! `dns-server/orders/tests/`.

#![forbid(unsafe_code)]
#![allow(dead_code, missing_docs, reason = "a part of the server, of which the tests use a part")]

pub mod answer;
mod limits;
/// Zone transfers and signatures. The notifier is left out, since it shares no state.
pub mod secondary {
    pub mod transfer;
    pub mod tsig;
}
pub mod store;
#[path = "../orders/sync.rs"]
mod sync;
