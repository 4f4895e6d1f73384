//! Answers that `multinet-dns` must give: golden tables and named rules, checked against the real
//! binary on real sockets.
//!
//! The tables (`tables/*.txt`) hold whole replies to plain questions about the fixtures
//! (`fixtures/*.yaml`); what needs more than one question and one reply is a test in the module of
//! its theme.

mod admin;
mod clients;
mod command_line;
mod dnstap;
mod fast_open;
mod fixtures;
mod incremental;
mod manifests;
mod messages;
mod notify;
mod operations;
mod protection;
mod readme;
mod rotation;
mod secondaries;
mod serial;
mod signals;
mod table;
mod tables;
mod transfer;
mod transports;
mod truncation;
mod tsig;
mod zones;
