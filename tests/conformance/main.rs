//! What `multinet-dns` must answer: golden tables and named rules, put to the real binary over real
//! sockets.
//!
//! The tables (`tables/*.txt`) hold whole replies to plain questions about the fixtures
//! (`fixtures/*.yaml`); what needs more than one question and one reply is a test in the module of its
//! theme.

mod admin;
mod command_line;
mod fixtures;
mod manifests;
mod messages;
mod readme;
mod rfc8906;
mod rotation;
mod serial;
mod streams;
mod table;
mod tables;
mod transfer;
mod transports;
mod truncation;
mod zones;
