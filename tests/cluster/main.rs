//! Tests of our programs with a real control plane, and behind a real CoreDNS.

mod account;
mod caching;
mod controller;
mod coredns;
mod deploy;
mod examples;
mod failover;
mod faults;
mod follow;
mod helm;
mod install;
mod late;
mod network_status;
mod node_local;
mod numaflow;
mod publish;
mod quickstart;
mod restart;
mod roles;
mod rules;
mod shared;
