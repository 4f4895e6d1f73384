//! Tests of the I/O against an API server that is controlled by the test.
//!
//! Every request waits in [`FakeApi`](multinet_testing::fake_api::FakeApi) until the test answers
//! it, so each test reads like a conversation. The real
//! [`ClusterIndex`](multinet_controller::index::ClusterIndex) decides. Time is paused: pauses and
//! limits pass at once, and can be measured exactly.

mod burst;
mod events;
mod failures;
mod leadership;
mod optional;
mod rig;
mod steps;
