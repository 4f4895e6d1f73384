//! The place of a received frame.

use multinet_memory::GpuSlice;

use crate::rdma::ReceivedFrame;
use crate::wire::Data;

/// Slot with a received frame in it.
pub(super) enum Slot {
    /// Memory of this process with key, metadata and payload. What follows is left from earlier
    /// frames.
    Own(Vec<u8>),
    /// Registered memory to which the sender has written the frame by RDMA.
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "only RDMA writes to slots"))]
    Landed(ReceivedFrame),
}

impl Slot {
    pub(super) fn key(&self, data: &Data) -> &[u8] {
        &self.prefix(data)[..usize::from(data.key)]
    }

    pub(super) fn metadata(&self, data: &Data) -> &[u8] {
        &self.prefix(data)[usize::from(data.key)..]
    }

    /// Returns key and metadata.
    fn prefix(&self, data: &Data) -> &[u8] {
        match self {
            Self::Own(slot) => &slot[..data.prefix()],
            Self::Landed(landed) => landed.prefix(),
        }
    }

    /// Returns the payload's place in a GPU, or `None` if the payload is in the machine's memory.
    pub(super) fn gpu(&self) -> Option<&GpuSlice> {
        match self {
            Self::Own(_) => None,
            Self::Landed(landed) => landed.gpu(),
        }
    }

    /// Returns the payload, which is empty here if it has come to a GPU.
    pub(super) fn payload(&self, data: &Data) -> &[u8] {
        match self {
            Self::Own(slot) => &slot[data.prefix()..data.body()],
            Self::Landed(landed) => landed.payload(),
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}
