//! A frame that has come.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use multinet_memory::{GpuError, GpuSlice};

use super::Acknowledge;
use super::control::Connection;
use super::gpu::{GpuSlots, Uploaded};
use super::slots::Slot;
use crate::frame::FrameId;
use crate::handshake::Delivery;
use crate::wire::Data;

/// A frame that has come. Dropping it gives its memory, and the credit for it, back to the sender.
///
/// Under [at least once](Delivery::AtLeastOnce), the sender keeps the frame until it is [acknowledged](Self::acknowledge).
#[must_use = "dropping it without acknowledge() returns it to its sender"]
pub struct Received {
    header: Data,
    /// Empty once it has been given back.
    slot: Slot,
    connection: Arc<Connection>,
    /// If a GPU is set.
    uploaded: Option<Uploaded>,
    is_acknowledged: bool,
}

/// Who sent a frame.
#[derive(Clone, Copy)]
pub struct Sender<'r>(&'r Connection);

impl Received {
    pub(super) fn new(
        header: Data,
        slot: Slot,
        connection: Arc<Connection>,
        gpu: Option<&Arc<GpuSlots>>,
    ) -> Self {
        let uploaded = gpu.map(|slots| Uploaded::new(Arc::clone(slots)));
        Self { header, slot, connection, uploaded, is_acknowledged: false }
    }

    /// Length of the payload in bytes, wherever it lies.
    pub fn len(&self) -> usize {
        self.header.payload as usize
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.header.payload == 0
    }

    /// The payload in the GPU that the listener [was given](super::ListenerBuilder::gpu), until the frame is dropped. If a device has written it there, it is where it
    /// was written; else this copies it, the first time, and returns when that is done: for large frames not a thing for an async task that others wait for.
    ///
    /// All that the GPU is to do with it has to be done before the frame is dropped or acknowledged: then its place is used again. What a sender may still do to it is
    /// said at [`bytes`](Self::bytes).
    ///
    /// # Errors
    ///
    /// [`GpuError`], if no GPU was given, it has no memory left, or it has failed.
    pub fn gpu(&self) -> Result<&GpuSlice, GpuError> {
        match (self.slot.gpu(), &self.uploaded) {
            (Some(landed), _) => {
                landed.memory().flush()?;
                Ok(landed)
            }
            (None, Some(uploaded)) => uploaded.payload(self.bytes()),
            (None, None) => {
                Err(GpuError::new("the listener has no GPU: give it one by ListenerBuilder::gpu"))
            }
        }
    }

    /// The payload, where the processor can read it: nothing of one that a device has written to a GPU, where [`gpu`](Self::gpu) has it.
    ///
    /// Under RDMA it is read where the sender's device has written it. A sender that breaks the protocol can go on writing there until the frame is dropped, so
    /// whoever does not trust its senders copies first what it decides by. Key and metadata are copies.
    pub fn bytes(&self) -> &[u8] {
        self.slot.payload(&self.header)
    }

    /// The key that it was sent with; empty if there was none.
    pub fn key(&self) -> &[u8] {
        self.slot.key(&self.header)
    }

    /// The metadata that it was sent with; empty if there was none.
    pub fn metadata(&self) -> &[u8] {
        self.slot.metadata(&self.header)
    }

    /// The time that it was sent with.
    pub fn timestamp(&self) -> Option<SystemTime> {
        let nanoseconds = Duration::from_nanos(self.header.timestamp.unsigned_abs());
        match self.header.timestamp {
            0 => None,
            1.. => UNIX_EPOCH.checked_add(nanoseconds),
            _ => UNIX_EPOCH.checked_sub(nanoseconds),
        }
    }

    /// Which frame it is. It has the same id whenever, and to whomever, it is sent.
    pub fn id(&self) -> FrameId {
        FrameId { session: self.connection.session(), sequence: self.header.sequence }
    }

    /// Whether it has been sent before, to this receiver, which did not get or want it, or to another, which may have.
    pub fn is_repeat(&self) -> bool {
        self.header.is_repeat
    }

    /// Who sent it.
    pub fn sender(&self) -> Sender<'_> {
        Sender(&self.connection)
    }

    /// Tells the sender that it need not keep the frame any longer: whatever had to be done with it has been done.
    pub fn acknowledge(mut self) {
        self.is_acknowledged = true;
    }

    /// Our code has it now.
    pub(super) fn taken(&self) {
        self.connection.taken();
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        match self.connection.delivery() {
            Delivery::AtMostOnce => self.connection.give_back(slot),
            Delivery::AtLeastOnce => {
                let is_acknowledged =
                    self.is_acknowledged || self.connection.acknowledge_mode() == Acknowledge::OnDrop;
                self.connection.settle(slot, self.header.sequence, is_acknowledged);
            }
        }
    }
}

impl<'r> Sender<'r> {
    /// What it calls itself: its pod's name, as a rule.
    pub fn name(&self) -> &'r str {
        self.0.name()
    }

    /// Its address.
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.address()
    }

    /// Uid of its pod, if it told.
    pub fn uid(&self) -> Option<&'r str> {
        self.0.uid()
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("sender", &self.connection.name())
            .field("sequence", &self.header.sequence)
            .field("length", &self.len())
            .finish()
    }
}

impl fmt::Debug for Sender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.address())
    }
}
