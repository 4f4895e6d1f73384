//! Senders and receivers over real sockets on loopback.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod delivery;
mod endings;
mod fetch;
mod hostile;
mod log;
mod names;
mod raw;
mod rig;
mod secure;
