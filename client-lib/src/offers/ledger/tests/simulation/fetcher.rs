//! Work of a pod that fetches payloads and processes them.

use std::rc::Weak;
use std::time::Instant;

use super::super::{OfferKey, Ticket};
use super::queue::Delivery;
use crate::reference::OfferId;

/// Payload of a message.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) id: OfferId,
    pub(super) length: usize,
}

/// A fetch that the offering pod knows of.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) ticket: Ticket,
    pub(super) key: OfferKey,
    /// Memory of the offering pod. It has to stay until the ticket is back, although this does not
    /// keep it: a network adapter may read it.
    pub(super) payload: Weak<Payload>,
}

/// Work on a reference that the queue has delivered.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) delivery: Delivery,
    pub(super) since: Instant,
    pub(super) stage: Stage,
    /// The live fetch, from `Reading` on. `None` once its connection has broken.
    pub(super) held: Option<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Asking,
    /// The payload is on its way from the offering pod.
    Reading,
    /// The whole payload has come.
    Ready,
    Processed,
}

impl Work {
    pub(super) fn new(now: Instant, delivery: Delivery) -> Self {
        Self { delivery, since: now, stage: Stage::Asking, held: None }
    }
}
