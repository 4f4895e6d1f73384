//! Tests of the crate from outside: its pure core against a model, its I/O against a fake API
//! server, and the stored inputs of fuzzing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

mod corpus;
mod model;
mod shell;
