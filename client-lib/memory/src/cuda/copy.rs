//! Copies between the GPU's memory and the machine's.
//!
//! A GPU copies at full speed, and without the processor, only from and to page-locked memory.
//! Other memory is copied by two locked slots: the processor fills or empties one while the GPU
//! copies the other.
#![allow(unsafe_code, reason = "tells the GPU where to copy")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::context::{Context, Event, Locked, Stream};
use super::failure;
use crate::error::GpuError;

/// The size of a slot. At 25 to 50 GB/s, a copy of this size takes much longer than the calls that
/// start it.
const SLOT: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

/// The slots for one direction. The holder is the only user; between calls the slots are idle.
pub(super) struct Copier {
    context: Arc<Context>,
    slots: [Slot; 2],
    order: Event,
}

/// Locked memory of [`SLOT`] bytes, and the stream that copies from and to it.
struct Slot {
    stream: Stream,
    buffer: Locked,
}

impl Copier {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, GpuError> {
        let slot = || Ok(Slot { stream: Stream::new(context)?, buffer: Locked::new(context, SLOT)? });
        let slots = [slot()?, slot()?];
        Ok(Self { context: Arc::clone(context), slots, order: Event::new(context)? })
    }

    /// Copies bytes to the GPU.
    ///
    /// # Safety
    ///
    /// The destination has room for them, in memory of this GPU.
    pub(super) unsafe fn write(&mut self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        self.in_order(|| {
            let direct = is_locked(&self.context, bytes)
                // SAFETY: the caller's promise; the bytes are borrowed until the stream is idle.
                && unsafe { self.slots[0].stream.upload(to, bytes.as_ptr(), bytes.len()) }.is_ok();
            if direct {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            unsafe { self.write_by_slots(to, bytes) }
        })
    }

    /// Copies bytes from the GPU.
    ///
    /// # Safety
    ///
    /// The source has that many bytes, in memory of this GPU.
    pub(super) unsafe fn read(&mut self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.in_order(|| {
            let direct = is_locked(&self.context, bytes)
                // SAFETY: the caller's promise; the bytes are borrowed until the stream is idle.
                && unsafe { self.slots[0].stream.download(from, bytes.as_mut_ptr(), bytes.len()) }.is_ok();
            if direct {
                return Ok(());
            }
            // SAFETY: the caller's promise. If the GPU had begun the direct copy before it was
            // refused, that copy is in the first slot's stream, and so complete before the
            // processor writes to the bytes.
            unsafe { self.read_by_slots(from, bytes) }
        })
    }

    /// Copies after the earlier work of the program on the GPU, and waits until no copy is in
    /// flight, even after one has failed. Otherwise the GPU could still be using a slot, or memory
    /// that was only borrowed.
    fn in_order(&self, copy: impl FnOnce() -> Result<(), GpuError>) -> Result<(), GpuError> {
        self.order.record()?;
        self.slots.iter().try_for_each(|slot| slot.stream.wait_for(&self.order))?;
        let copied = copy();
        let [first, second] = self.slots.each_ref().map(|slot| slot.stream.synchronize());
        copied.and(first).and(second)
    }

    /// # Safety
    ///
    /// As for [`write`](Self::write). Copies may still be in flight afterwards.
    unsafe fn write_by_slots(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        let mut to = to;
        for (number, piece) in bytes.chunks(SLOT.get()).enumerate() {
            let slot = &self.slots[number % 2];
            if number >= 2 {
                slot.stream.synchronize()?;
            }
            let start = slot.buffer.start().as_ptr();
            // SAFETY: a piece is no longer than a slot, the GPU has finished with this slot, and
            // nothing else uses it.
            unsafe { start.copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            // SAFETY: the caller promised room. The slot is not written to again before its stream
            // is idle.
            unsafe { slot.stream.upload(to, start, piece.len()) }?;
            to += piece.len() as CUdeviceptr;
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`read`](Self::read).
    unsafe fn read_by_slots(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        let mut from = from;
        let mut before: Option<(&Slot, &mut [u8])> = None;
        for (number, piece) in bytes.chunks_mut(SLOT.get()).enumerate() {
            let slot = &self.slots[number % 2];
            // SAFETY: the caller promised the bytes. A piece is no longer than a slot, and this
            // slot has been emptied.
            unsafe { slot.stream.download(from, slot.buffer.start().as_ptr(), piece.len()) }?;
            from += piece.len() as CUdeviceptr;
            if let Some((slot, piece)) = before.replace((slot, piece)) {
                slot.read_out(piece)?;
            }
        }
        before.map_or(Ok(()), |(slot, piece)| slot.read_out(piece))
    }
}

impl Slot {
    /// Waits until the GPU has filled the slot, and copies its first bytes to `piece`.
    fn read_out(&self, piece: &mut [u8]) -> Result<(), GpuError> {
        self.stream.synchronize()?;
        // SAFETY: a piece is no longer than a slot, the GPU has finished with this slot, and
        // nothing else uses it.
        unsafe {
            piece.as_mut_ptr().copy_from_nonoverlapping(self.buffer.start().as_ptr(), piece.len());
        }
        Ok(())
    }
}

/// Returns whether the first and the last byte are in locked memory, as far as the driver knows.
/// The bytes between may belong to several allocations, or not be locked. The driver then refuses a
/// direct copy, and the slots are used.
fn is_locked(context: &Context, bytes: &[u8]) -> bool {
    let Ok(_current) = context.enter() else {
        return false;
    };
    let host = |byte: &u8| {
        let mut kind = 0_u32;
        let address = &raw const *byte as usize as CUdeviceptr;
        // SAFETY: `kind` outlives the call, and has the size of the attribute. Any address may be
        // queried.
        let code = unsafe {
            (context.library.cuPointerGetAttribute)(
                (&raw mut kind).cast(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                address,
            )
        };
        // For an unknown address the call fails, which is the normal case.
        code == failure::SUCCESS && kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32
    };
    bytes.first().is_some_and(host) && bytes.last().is_some_and(host)
}
