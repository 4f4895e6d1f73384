//! Limits of what senders can make a listener use.

use std::time::Duration;

/// Limits on memory, connections and time that a listener lets senders use.
/// [`ListenerBuilder`](super::ListenerBuilder) says what each means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) frame_size: u32,
    pub(super) slots: u32,
    /// `None` stands for a part of the memory that this process may use.
    pub(super) memory: Option<usize>,
    pub(super) connections: usize,
    pub(super) patience: Duration,
    pub(super) silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_size: 8 << 20,
            slots: 16,
            memory: None,
            connections: 1024,
            patience: Duration::from_secs(5),
            silence: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Returns the length of a slot. It has room for a key and metadata, too, and for the padding
    /// before the payload under RDMA.
    pub(super) fn slot_size(&self) -> usize {
        let before =
            (crate::wire::HEADER + crate::wire::MAX_KEY + crate::wire::MAX_METADATA).next_multiple_of(64);
        before + (self.frame_size as usize).next_multiple_of(64)
    }
}
