//! Received frames that the program has not taken yet. The senders' credits bound them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::control::Connection;
use super::slot::Slot;
use crate::wire::Data;

/// A frame that the program has not taken. If it is dropped, no decision on it is reported: its
/// sender still has it, or, at most once, has lost it.
pub(super) struct Arrived {
    pub(super) header: Data,
    pub(super) slot: Slot,
    pub(super) connection: Arc<Connection>,
}

/// Queue of received frames, from all connections to all tasks of the program that receive.
pub(super) struct Queue {
    frames: Mutex<VecDeque<Arrived>>,
    /// Has a permit for each frame in the queue, added after the frame; closed with the queue.
    count: Semaphore,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { frames: Mutex::default(), count: Semaphore::new(0) }
    }

    pub(super) fn push(&self, arrived: Arrived) {
        self.frames.lock().push_back(arrived);
        self.count.add_permits(1);
    }

    /// Takes the next frame, or returns `None` if the queue is empty or closed.
    pub(super) fn try_pop(&self) -> Option<Arrived> {
        self.count.try_acquire().ok()?.forget();
        self.frames.lock().pop_front()
    }

    /// Waits for the next frame. Returns `None` when the queue has been closed. Cancellation loses
    /// nothing.
    pub(super) async fn pop(&self) -> Option<Arrived> {
        self.count.acquire().await.ok()?.forget();
        self.frames.lock().pop_front()
    }

    /// Returns the number of frames in the queue.
    pub(super) fn len(&self) -> usize {
        self.count.available_permits()
    }

    /// Closes the queue: the program gets no more frames, not even those in it.
    pub(super) fn close(&self) {
        self.count.close();
    }
}
