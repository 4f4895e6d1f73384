//! Copies between the GPU's memory and the machine's.
//!
//! A GPU copies by itself, and at full speed, only from and to memory that is locked. Other memory goes through two slots, of which one is
//! filled or emptied by the processor while the GPU copies the other.
#![allow(unsafe_code, reason = "tells the GPU where to copy")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::context::{Context, Event, Locked, Stream};
use super::failure;
use crate::error::GpuError;

/// Large enough that the GPU's copies, at 25 to 50 GB/s, are much longer than the calls that ask for them.
const SLOT: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

/// One direction. Who has it is the only one to use its slots; between calls they are idle.
pub(super) struct Lane {
    context: Arc<Context>,
    slots: [Slot; 2],
    order: Event,
}

/// Locked memory of [`SLOT`] bytes, and the stream that copies from and to it.
struct Slot {
    stream: Stream,
    buffer: Locked,
}

impl Lane {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, GpuError> {
        let slot = || Ok(Slot { stream: Stream::new(context)?, buffer: Locked::new(context, SLOT)? });
        let slots = [slot()?, slot()?];
        Ok(Self { context: Arc::clone(context), slots, order: Event::new(context)? })
    }

    /// Copies bytes to the GPU.
    ///
    /// # Safety
    ///
    /// There is room for them at that address, in memory of this GPU.
    pub(super) unsafe fn write(&mut self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        self.begin()?;
        let direct = is_locked(&self.context, bytes)
            // SAFETY: as was promised; the bytes are borrowed until the stream is done, below.
            && unsafe { self.slots[0].stream.upload(to, bytes.as_ptr(), bytes.len()) }.is_ok();
        let asked = if direct {
            Ok(())
        } else {
            // SAFETY: as was promised.
            unsafe { self.write_by_slots(to, bytes) }
        };
        // Whatever has come of it.
        let ended = self.end();
        asked.and(ended)
    }

    /// Copies bytes from the GPU.
    ///
    /// # Safety
    ///
    /// There are that many at that address, in memory of this GPU.
    pub(super) unsafe fn read(&mut self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.begin()?;
        let direct = is_locked(&self.context, bytes)
            // SAFETY: as was promised; the bytes are borrowed until the stream is done, below.
            && unsafe { self.slots[0].stream.download(from, bytes.as_mut_ptr(), bytes.len()) }.is_ok();
        let asked = if direct {
            Ok(())
        } else {
            // SAFETY: as was promised. Should the GPU have begun a direct copy before it was refused, that is in the first slot's stream, and so
            // done before the processor writes to the bytes.
            unsafe { self.read_by_slots(from, bytes) }
        };
        // Whatever has come of it.
        let ended = self.end();
        asked.and(ended)
    }

    /// Has copies wait for what the program has asked the GPU to do.
    fn begin(&self) -> Result<(), GpuError> {
        self.order.record()?;
        self.slots.iter().try_for_each(|slot| slot.stream.wait_for(&self.order))
    }

    /// Returns when no copy is under way, also after one has failed: nobody is to find the GPU at work in a slot, or in memory that was only
    /// borrowed.
    fn end(&self) -> Result<(), GpuError> {
        let [first, second] = self.slots.each_ref().map(|slot| slot.stream.settle());
        first.and(second)
    }

    /// # Safety
    ///
    /// As of [`write`](Self::write). Afterwards, copies may still be under way.
    unsafe fn write_by_slots(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        let mut to = to;
        for (number, piece) in bytes.chunks(SLOT.get()).enumerate() {
            let slot = &self.slots[number % 2];
            if number >= 2 {
                slot.stream.settle()?;
            }
            let start = slot.buffer.start().as_ptr();
            // SAFETY: a piece is no longer than a slot; the GPU is done with this one; and nobody else has it.
            unsafe { start.copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            // SAFETY: there is room, as was promised. The slot is not written to again before the stream is done.
            unsafe { slot.stream.upload(to, start, piece.len()) }?;
            to += piece.len() as CUdeviceptr;
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As of [`read`](Self::read).
    unsafe fn read_by_slots(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        let mut from = from;
        let mut before: Option<(&Slot, &mut [u8])> = None;
        for (number, piece) in bytes.chunks_mut(SLOT.get()).enumerate() {
            let slot = &self.slots[number % 2];
            // SAFETY: the bytes are there, as was promised. A piece is no longer than a slot, and this one has been emptied.
            unsafe { slot.stream.download(from, slot.buffer.start().as_ptr(), piece.len()) }?;
            from += piece.len() as CUdeviceptr;
            if let Some((slot, piece)) = before.replace((slot, piece)) {
                slot.empty(piece)?;
            }
        }
        before.map_or(Ok(()), |(slot, piece)| slot.empty(piece))
    }
}

impl Slot {
    /// Copies its first bytes, when the GPU has put them there.
    fn empty(&self, piece: &mut [u8]) -> Result<(), GpuError> {
        self.stream.settle()?;
        // SAFETY: a piece is no longer than a slot; the GPU is done with this one; and nobody else has it.
        unsafe {
            piece.as_mut_ptr().copy_from_nonoverlapping(self.buffer.start().as_ptr(), piece.len());
        }
        Ok(())
    }
}

/// Whether the driver knows the first and the last of these bytes of the machine's as locked ones. What lies between them may yet be of several
/// allocations, or not be locked: then the driver may refuse to copy it directly, and the slots are for that.
fn is_locked(context: &Context, bytes: &[u8]) -> bool {
    let Ok(_current) = context.enter() else {
        return false;
    };
    let host = |byte: &u8| {
        let mut kind = 0_u32;
        let address = &raw const *byte as usize as CUdeviceptr;
        // SAFETY: `kind` outlives the call, and is as large as the attribute. Any address may be asked about.
        let code = unsafe {
            (context.library.cuPointerGetAttribute)(
                (&raw mut kind).cast(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                address,
            )
        };
        // An address that the driver does not know is an error to it, and the rule.
        code == failure::SUCCESS && kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32
    };
    bytes.first().is_some_and(host) && bytes.last().is_some_and(host)
}
