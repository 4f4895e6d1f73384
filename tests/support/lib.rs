//! Fixtures of the cross-crate tests.

pub mod ask;
pub mod cluster;
pub mod coredns;
pub mod dns;
pub mod http;
pub mod manifests;
pub mod objects;
pub mod pki;
pub mod process;
pub mod proxy;
pub mod replica;
pub mod server;
pub mod skip;
pub mod tools;
pub mod wait;
pub mod witness;
