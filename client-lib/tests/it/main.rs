//! The crate from outside. Senders and receivers have a binary of their own, `peers`, which also runs in a guest.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod api;
mod resolve;
mod tls;
