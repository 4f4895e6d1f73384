//! Resolution against a DNS server on real sockets that does what it is told: answers, fails, is silent, truncates.

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod failures;
mod service;
mod support;
mod watch;
