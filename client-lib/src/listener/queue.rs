//! Frames that have come and that nobody has received yet. The senders' credits bound it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::Received;

pub(super) struct Queue {
    frames: Mutex<VecDeque<Received>>,
    /// A permit for each frame.
    count: Semaphore,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { frames: Mutex::default(), count: Semaphore::new(0) }
    }

    pub(super) fn push(&self, received: Received) {
        self.frames().push_back(received);
        self.count.add_permits(1);
    }

    /// The next frame, if one is there.
    pub(super) fn try_pop(&self) -> Option<Received> {
        self.count.try_acquire().ok()?.forget();
        self.frames().pop_front()
    }

    /// The next frame; `None` when the queue has been closed. Cancelling it loses nothing.
    pub(super) async fn pop(&self) -> Option<Received> {
        self.count.acquire().await.ok()?.forget();
        self.frames().pop_front()
    }

    /// Nobody gets a frame any more.
    pub(super) fn close(&self) {
        self.count.close();
    }

    /// No code panics while it holds the lock.
    fn frames(&self) -> MutexGuard<'_, VecDeque<Received>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
