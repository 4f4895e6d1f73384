//! Our binaries against a real control plane, and behind a real CoreDNS.

mod caching;
mod coredns;
mod deploy;
mod examples;
mod failover;
mod faults;
mod follow;
mod helm;
mod install;
mod late;
mod node_local;
mod quickstart;
mod restart;
mod rules;
mod undecodable;
