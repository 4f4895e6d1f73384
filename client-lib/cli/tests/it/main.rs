//! Tests of the real binary: its command line, and `bench`, `send`, `recv`, `put` and `get`
//! over loopback. Tests
//! that need a DNS server are in `client-lib/e2e/client/`.

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod bench;
mod command_line;
mod endings;
mod exec;
mod fetch;
mod impostors;
mod messages;
mod raw;
mod secure;
mod strangers;
mod support;
mod transfer;
