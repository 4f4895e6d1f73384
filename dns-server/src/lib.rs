//! The DNS server.
