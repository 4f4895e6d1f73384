//! Resolution against a DNS server on real sockets that does what it is told: answers, fails, is silent, truncates.

mod failures;
mod service;
mod support;
mod watch;
