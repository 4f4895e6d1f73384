//! Zone transfers to secondaries, and the notifications that tell them of changes.

pub(crate) mod notifier;
pub mod transfer;
pub mod tsig;
