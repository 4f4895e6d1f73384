//! Leader election against an API server in this process, over links whose faults the test chooses.
//!
//! The clock is paused: an hour of the candidates' time passes in a moment, and is measured
//! exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

mod candidate;
mod faults;
mod handover;
mod rivals;
