//! The listeners on real sockets, with a real engine behind them. What depends on time runs on tokio's paused
//! clock and in-memory streams: nothing here measures how fast anything is.

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod guard;
mod https;
mod quic;
mod support;
mod tcp;
mod tls;
mod udp;
