//! Leader election against an API server within the process, over links that fail as the test wants them to.
//!
//! Time is paused: what takes an hour by the candidates' clocks takes a moment, and can be measured exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what goes wrong in a test fails it")]

mod candidate;
mod faults;
mod handover;
mod rivals;
