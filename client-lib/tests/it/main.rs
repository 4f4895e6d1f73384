//! Tests of the crate from outside. Those of senders and receivers are in a separate binary,
//! `peers`, which also runs in a guest.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod api;
mod resolve;
mod tls;
