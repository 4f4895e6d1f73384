//! Zone transfers to secondaries, and what tells them that there is something to fetch.

pub mod notifier;
pub mod transfer;
pub mod tsig;
