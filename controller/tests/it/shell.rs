//! The shell against an API server that does what the test tells it to.
//!
//! Every request waits in [`FakeApi`](multinet_testing::fake_api::FakeApi) until the test answers it, so each test reads as a conversation. What is decided is
//! decided by the real [`ClusterIndex`](multinet_controller::index::ClusterIndex). Time is paused: pauses and limits pass at once, and
//! can be measured exactly.

mod burst;
mod events;
mod failures;
mod leadership;
mod optional;
mod rig;
mod steps;
