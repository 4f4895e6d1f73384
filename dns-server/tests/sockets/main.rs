//! The listeners on real sockets, with a real engine behind them. Tests that depend on time use
//! tokio's paused clock and in-memory streams. No test measures speed.

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod guard;
mod https;
mod quic;
mod support;
mod tcp;
mod tls;
mod udp;
