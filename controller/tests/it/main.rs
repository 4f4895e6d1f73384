//! Tests of the crate from outside: its pure core against a model, its I/O against a fake API
//! server, and the stored inputs of fuzzing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what goes wrong in a test fails it")]

mod corpus;
mod model;
mod shell;
