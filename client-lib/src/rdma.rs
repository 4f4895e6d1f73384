//! Frames by RDMA: queue pairs of the reliable kind, set up by the [handshake](crate::handshake).
//!
//! ```text
//!   sender                                                         receiver
//!   frame ── copied, or lent ──── WRITE_WITH_IMM, imm = slot ────> slot ── Received, where it lies
//!   free slots, acknowledged frames <──── WRITE_WITH_IMM, inline ── ring <── Control
//!   half of the ring has been read ────── immediate alone ───────>
//! ```
//!
//! The messages are those of the [wire](crate::wire), and who may send what when is decided by the same state machines as over TCP. The connection of the
//! handshake stays: each side says goodbye by it, and by it the kernel notices that a host is gone.
//!
//! - Each connection has a protection domain of its own: what a peer is told a key of, it alone can write to.
//! - A large payload that [`Buffer::host`](crate::Buffer::host) has made is sent from where it lies; all else is copied to registered memory first.
//! - A payload of a GPU is sent from where it lies, and comes to where it is wanted, if the device can: [`gpu`]. It has a place of its own then, and is written
//!   before its header is.
//! - A device has one thread in a program, or one for each way of using it, which looks at what has completed and hears it: [`rail`].
//! - Large frames may be cut, and go by several queue pairs: [`stripes`].
//! - What is written, to where, and when a completion is asked for is decided without a device: [`accounts`].
//!
//! Without the feature `rdma`, `absent.rs` stands in the place of this.

mod accounts;
mod gpu;
mod layout;
mod queue_pair;
mod rail;
mod role;
mod setup;
mod slots;
mod stripes;
mod unusable;

pub(crate) use accounts::{OwnSlots, Violation};
pub(crate) use layout::Immediate;
pub(crate) use queue_pair::QueuePair;
pub(crate) use rail::{Completes, Rails};
pub(crate) use role::Role;
pub(crate) use setup::Prepared;
pub(crate) use slots::Spare;
pub(crate) use stripes::Gathering;
pub(crate) use unusable::Unusable;

use std::sync::{Mutex, MutexGuard, PoisonError};

use multinet_memory::GpuSlice;

use crate::wire::Data;

/// A frame in one of our slots.
pub(crate) struct Landed {
    slot: u16,
    /// Key and metadata, copied: programs decide by them.
    prefix: Vec<u8>,
    payload: Payload,
}

/// Where its payload lies.
enum Payload {
    Host(multinet_verbs::Landed),
    /// In a GPU; the registration stays as long as somebody reads there.
    Gpu(GpuSlice, #[expect(dead_code, reason = "only held")] multinet_verbs::GpuLanding),
}

impl Landed {
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn key(&self, data: &Data) -> &[u8] {
        &self.prefix[..usize::from(data.key)]
    }

    pub(crate) fn metadata(&self, data: &Data) -> &[u8] {
        &self.prefix[usize::from(data.key)..]
    }

    /// The payload, unless it is in a GPU.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Host(payload) => payload,
            Payload::Gpu(..) => &[],
        }
    }

    /// The payload, if it is in a GPU.
    pub(crate) fn gpu(&self) -> Option<&GpuSlice> {
        match &self.payload {
            Payload::Host(_) => None,
            Payload::Gpu(slice, _) => Some(slice),
        }
    }
}

/// No code of ours panics while it holds one of these locks; whatever does, such as a GPU's, leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
