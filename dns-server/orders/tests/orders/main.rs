//! The store and the rate limiter under the schedules of shuttle.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

// The tests shared by both crates name the server by its own name.
extern crate multinet_dns_orders as multinet_dns;

#[path = "../../../tests/model/ask.rs"]
#[expect(dead_code, reason = "the model asks for more")]
mod ask;
#[path = "../../../tests/model/events.rs"]
#[expect(dead_code, reason = "likewise")]
mod events;
#[path = "../../../tests/model/expected.rs"]
#[expect(dead_code, reason = "likewise")]
mod expected;
mod limiting;
mod publishing;
