//! `multinet bench`, `send` and `recv`: the real binary, over loopback.

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod bench;
mod secure;
mod support;
mod transfer;
