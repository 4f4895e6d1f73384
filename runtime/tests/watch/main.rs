//! The watch against a fake API server.
//!
//! Each request of the watch waits in [`FakeApi`](multinet_testing::fake_api::FakeApi) until the
//! test answers it. Each call of the index waits in [`world::Calls`] until the test has checked it.
//! So a test reads as a conversation. The clock is paused: pauses and limits pass at once, and are
//! measured exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

mod coalescing;
mod lists;
mod outages;
mod streams;
mod undecodable;
mod world;
