//! Claim check, within a Pipeline: references go through Numaflow's buffers, payloads from pod to
//! pod.

mod fetching;
mod id;
mod offering;
mod shares;
mod stream;

pub use fetching::FetchingSink;
pub use id::stable_id;
pub use offering::{Claim, OfferingMap};
