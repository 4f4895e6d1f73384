//! Sockets: UDP, TCP, TLS, HTTPS and QUIC, and the engine that answers what they receive.

pub mod connections;
mod crypto_runtime;
pub mod engine;
pub mod https;
pub mod listen;
pub mod quic;
#[expect(unsafe_code, reason = "setsockopt has no safe wrapper")]
mod socket;
pub mod tcp;
pub mod tls;
pub mod udp;
