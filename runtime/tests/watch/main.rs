//! The watch driver against an API server that does what the test tells it to.
//!
//! Every request that the driver makes waits in [`FakeApi`](multinet_testing::fake_api::FakeApi) until the test answers it, and every call of the index
//! waits in [`world::Calls`] until the test has seen it; so each test reads as a conversation. Time is
//! paused: pauses and limits pass at once, and can be measured exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what goes wrong in a test fails it")]

mod coalescing;
mod lists;
mod outages;
mod streams;
mod undecodable;
mod world;
