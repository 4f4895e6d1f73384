//! Frames that have come and that nobody has received yet. The senders' credits bound it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::control::Connection;
use super::slots::Slot;
use crate::wire::Data;

/// A frame that our code has not got. Where it is dropped, nobody has decided on it, and its sender is told nothing: it has it still, or has lost it.
pub(super) struct Arrived {
    pub(super) header: Data,
    pub(super) slot: Slot,
    pub(super) connection: Arc<Connection>,
}

pub(super) struct Queue {
    frames: Mutex<VecDeque<Arrived>>,
    /// A permit for each frame.
    count: Semaphore,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { frames: Mutex::default(), count: Semaphore::new(0) }
    }

    pub(super) fn push(&self, arrived: Arrived) {
        self.frames().push_back(arrived);
        self.count.add_permits(1);
    }

    /// The next frame, if one is there.
    pub(super) fn try_pop(&self) -> Option<Arrived> {
        self.count.try_acquire().ok()?.forget();
        self.frames().pop_front()
    }

    /// The next frame; `None` when the queue has been closed. Cancelling it loses nothing.
    pub(super) async fn pop(&self) -> Option<Arrived> {
        self.count.acquire().await.ok()?.forget();
        self.frames().pop_front()
    }

    /// Nobody gets a frame any more.
    pub(super) fn close(&self) {
        self.count.close();
    }

    /// No code panics while it holds the lock.
    fn frames(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
