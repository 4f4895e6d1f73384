//! Leader election against an API server in this process, over links whose faults the test chooses.
//!
//! The clock is paused: an hour of the candidates' time passes in a moment, and is measured
//! exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what goes wrong in a test fails it")]

mod candidate;
mod faults;
mod handover;
mod rivals;
