//! Frames that have come and that nobody has received yet. The senders' credits bound it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::Received;

#[derive(Default)]
pub(super) struct Queue {
    frames: Mutex<VecDeque<Received>>,
    arrival: Notify,
}

impl Queue {
    pub(super) fn push(&self, received: Received) {
        self.frames().push_back(received);
        self.arrival.notify_one();
    }

    pub(super) fn pop(&self) -> Option<Received> {
        self.frames().pop_front()
    }

    /// Completes when a frame has come.
    pub(super) fn arrival(&self) -> Notified<'_> {
        self.arrival.notified()
    }

    /// No code panics while it holds the lock.
    fn frames(&self) -> MutexGuard<'_, VecDeque<Received>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
