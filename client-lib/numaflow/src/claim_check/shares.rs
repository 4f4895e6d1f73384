//! Offers that several answers wait for.
//!
//! Numaflow may deliver a message again while the answer for its earlier delivery is still open.
//! Both answers share one offer, and its one copy of the payload. It is withdrawn with the last of
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use multinet_client::{Offer, OfferId};
use parking_lot::Mutex;

/// Answers that are open, by the ids of their payloads.
#[derive(Clone, Default)]
pub(super) struct Shares(Arc<Mutex<HashMap<OfferId, Shared>>>);

#[derive(Default)]
struct Shared {
    answers: usize,
    /// Offer of the payload, once it is made.
    offer: Option<Offer>,
}

/// Share of one answer, which is given up when this is dropped.
pub(super) struct Share {
    all: Shares,
    id: OfferId,
}

impl Shares {
    /// Counts an answer, before its payload is put on offer.
    pub(super) fn join(&self, id: OfferId) -> Share {
        self.0.lock().entry(id.clone()).or_default().answers += 1;
        Share { all: self.clone(), id }
    }
}

impl Share {
    /// Records the offer that the answer waits for.
    pub(super) fn set(&self, offer: Offer) {
        if let Some(shared) = self.all.0.lock().get_mut(&self.id) {
            shared.offer = Some(offer);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let Some(shared) = all.get_mut(&self.id) else { return };
        shared.answers -= 1;
        // Under the lock: an answer that joins now must not share an offer that ends.
        if shared.answers == 0
            && let Some(Shared { offer: Some(offer), .. }) = all.remove(&self.id)
        {
            offer.withdraw();
        }
    }
}
