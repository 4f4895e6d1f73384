//! Resolution against a scripted DNS server on real sockets, which answers, fails, stays silent or
//! truncates.

mod failures;
mod service;
mod support;
mod watch;
