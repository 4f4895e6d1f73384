//! What is sent: a payload, and a little beside it.

use std::time::SystemTime;

use bytes::Bytes;

use crate::buffer::Buffer;
use crate::wire::{MAX_KEY, MAX_METADATA};

/// A frame to be sent: a payload in one or several buffers, and a header beside it.
///
/// # Examples
///
/// ```
/// use multinet_client::Frame;
///
/// let frame = Frame::new(vec![0; 4096]).key("camera-17").metadata("pts=1024");
/// assert_eq!(frame.len(), 4096);
/// ```
#[derive(Clone, Debug)]
pub struct Frame {
    pub(crate) payload: Buffer,
    /// What follows the first buffer. Usually nothing, which costs no allocation.
    pub(crate) rest: Vec<Buffer>,
    pub(crate) key: Bytes,
    pub(crate) metadata: Bytes,
    pub(crate) timestamp: Option<SystemTime>,
}

impl Frame {
    /// A frame with one buffer of payload, which may be empty.
    pub fn new(payload: impl Into<Buffer>) -> Self {
        Self {
            payload: payload.into(),
            rest: Vec::new(),
            key: Bytes::new(),
            metadata: Bytes::new(),
            timestamp: None,
        }
    }

    /// With one more buffer behind the payload. The receiver gets one payload, without a seam.
    #[must_use]
    pub fn and(mut self, buffer: impl Into<Buffer>) -> Self {
        self.rest.push(buffer.into());
        self
    }

    /// With a key, of at most 255 bytes: under [`Choice::ByKey`](crate::Choice::ByKey), frames of one key reach one peer, in order.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = key.into();
        self
    }

    /// With metadata of the caller's own, at most 4096 bytes.
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// With a time, such as that of the capture. It travels in nanoseconds since 1970.
    #[must_use]
    pub fn timestamp(mut self, timestamp: SystemTime) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Length of the payload in bytes.
    pub fn len(&self) -> usize {
        self.buffers().map(Buffer::len).sum()
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.buffers().all(Buffer::is_empty)
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(&self.payload).chain(&self.rest)
    }

    /// Which part of the header is longer than it may be: its name, its length, what it may have.
    pub(crate) fn too_long(&self) -> Option<(&'static str, usize, usize)> {
        [("key", self.key.len(), MAX_KEY), ("metadata", self.metadata.len(), MAX_METADATA)]
            .into_iter()
            .find(|&(_, length, most)| length > most)
    }
}

impl<P: Into<Buffer>> From<P> for Frame {
    fn from(payload: P) -> Self {
        Self::new(payload)
    }
}

/// Which frame: who sent it, and its number among that sender's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId {
    /// The sender's session: a random number for each [`PeerSet`](crate::PeerSet).
    pub session: u128,
    /// Counts from 1. A frame that is sent again keeps its number.
    pub sequence: u64,
}
