//! `multinet-controller` against a real control plane: what a test does to pods, services and
//! claims has to come out in slices, status, events, and in the answers of a real `multinet-dns`
//! and CoreDNS.

mod bad_objects;
mod basics;
mod changes;
mod conflicts;
mod dra;
mod faults;
mod invalid;
mod limits;
mod many;
mod metrics;
mod mirror;
mod parity;
mod rbac;
mod references;
mod repack;
mod restart;
pub(crate) mod stage;
