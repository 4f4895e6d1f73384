//! Tests of the real `multinet-dns` binary on real sockets: golden tables of answers, flags, files,
//! signals, and other people's clients.
//!
//! The tables (`tables/*.txt`) have whole replies to single questions about the fixtures
//! (`fixtures/*.yaml`). Tests with more than one question are in a module by topic.

mod admin;
mod clients;
mod command_line;
mod dnstap;
mod documentation;
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
mod vertices;
mod zones;
