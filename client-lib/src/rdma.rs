//! Frames over RDMA: reliable queue pairs, which the [handshake](crate::handshake) sets up.
//!
//! ```text
//!   sender                                                           receiver
//!   frame ── copied or zero-copy ──── WRITE_WITH_IMM, imm = slot ──> slot ── Received, in place
//!   ring  <──── WRITE_WITH_IMM, inline ──── free slots, acknowledged frames ──── Connection
//!         ── immediate alone: half of the ring has been read ──────>
//! ```
//!
//! The messages are those of the [wire](crate::wire), and the same state machines as over TCP
//! decide who may send what, and when. The TCP connection of the handshake stays open: each side
//! says goodbye over it, and the kernel notices by it that the other host is gone.
//!
//! - Each connection has a protection domain of its own, so that a peer writes only to the memory
//!   whose key it was told.
//! - A large payload in memory of [`Buffer::host`](crate::Buffer::host) is sent from where it lies.
//!   Everything else is copied to registered memory first.
//! - A payload in a GPU is sent from where it lies, and arrives in the receiver's GPU, if the
//!   devices can reach them ([`gpu_method`]). It has memory of its own, and is written before its
//!   header.
//! - Each device has one thread in a program, or one for each way in which the device is used. It
//!   polls completions and handles them ([`device`]).
//! - A large frame may be striped over several queue pairs ([`stripes`]).
//! - What is written where, and when a completion is requested, is decided without a device
//!   ([`ledger`]).
//!
//! Without the feature `rdma`, `absent.rs` takes the place of this module.

mod device;
mod gpu_method;
mod layout;
mod ledger;
mod local_gid;
mod queue_pair;
mod receive_memory;
mod role;
mod setup;
mod stripes;
mod unusable;

pub(crate) use device::{CompletionHandler, RdmaDevices};
pub(crate) use layout::Immediate;
pub(crate) use ledger::{LocalSlots, Violation};
pub(crate) use queue_pair::QueuePair;
pub(crate) use receive_memory::ReceiveMemory;
pub(crate) use role::Role;
pub(crate) use setup::Prepared;
pub(crate) use stripes::StripeAssembly;
pub(crate) use unusable::{QueuePairError, Unusable};

use multinet_memory::GpuSlice;
use multinet_verbs::{GpuReceiveBuffer, ReceivedBytes};

/// A frame that the sender's device has written to one of our slots.
pub(crate) struct ReceivedFrame {
    slot: u16,
    /// Key and metadata, copied: a program decides by them, and the sender could change them in
    /// place.
    prefix: Vec<u8>,
    payload: Payload,
}

/// The payload of a received frame, where it lies.
enum Payload {
    Host(ReceivedBytes),
    /// In a GPU. The buffer keeps the registration as long as the program may read the payload.
    Gpu(GpuSlice, #[expect(dead_code, reason = "only held")] GpuReceiveBuffer),
}

impl ReceivedFrame {
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the payload in the machine's memory, which is empty if it lies in a GPU.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Host(payload) => payload,
            Payload::Gpu(..) => &[],
        }
    }

    /// Returns the payload in a GPU's memory; `None` if it lies in the machine's.
    pub(crate) fn gpu(&self) -> Option<&GpuSlice> {
        match &self.payload {
            Payload::Host(_) => None,
            Payload::Gpu(slice, _) => Some(slice),
        }
    }
}
