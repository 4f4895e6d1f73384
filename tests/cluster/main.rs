//! Our binaries against a real control plane, and behind a real CoreDNS.

mod caching;
mod coredns;
mod failover;
mod faults;
mod follow;
mod late;
mod node_local;
mod quickstart;
mod restart;
mod rules;
mod undecodable;
