//! The messages that the other side has written to our memory, and the credits that they carry.

use std::sync::Arc;

use multinet_memory::GpuSlice;

use super::QueuePair;
use crate::rdma::ledger::{LocalSlots, Violation};
use crate::rdma::{Payload, ReceivedFrame};
use crate::stream::SHORT;
use crate::wire::{Data, HEADER};

impl<E> QueuePair<E> {
    /// Notes that the sender has read another half of its ring, which we may write to again.
    pub(crate) fn add_ring_credit(&self) -> Result<(), Violation> {
        let mut ledger = self.ledger.lock();
        ledger.remote_slots.add_ring_credit()?;
        self.unblock(&mut ledger);
        Ok(())
    }

    /// Notes that the receiver has released these slots, which we may write to again.
    pub(crate) fn release_slots(&self, mut slots: impl Iterator<Item = u16>) -> Result<(), Violation> {
        let mut ledger = self.ledger.lock();
        slots.try_for_each(|slot| ledger.remote_slots.release(slot))?;
        self.unblock(&mut ledger);
        Ok(())
    }

    /// Reads an entry of our ring, which has to be the next one.
    pub(crate) fn read_ring_entry(&self, entry: u32) -> Result<[u8; HEADER + SHORT], Violation> {
        let memory = &self.local.memory;
        let mut ledger = self.ledger.lock();
        let is_half = ledger.ring_reader.advance(entry)?;
        let mut bytes = [0; HEADER + SHORT];
        // The entry lies within the ring, since it is the next one.
        let _ = memory.buffer.read(memory.layout.header(entry as u16), &mut bytes);
        // Acknowledged only after the copy: the other side then overwrites the entries.
        if is_half {
            ledger.owed_ring_credits += 1;
            self.wake.notify_one();
        }
        Ok(bytes)
    }

    /// Returns the number of our own slots, which the peer writes to.
    pub(crate) fn slot_count(&self) -> u16 {
        self.local.memory.layout.count
    }

    /// Returns the state of our own slots at the beginning of the connection: all are free.
    pub(crate) fn local_slots(&self) -> LocalSlots {
        LocalSlots::new(self.slot_count())
    }

    /// Copies the header of the frame out of one of our slots.
    pub(crate) fn read_header(&self, slot: u16) -> [u8; HEADER] {
        let memory = &self.local.memory;
        let mut header = [0; HEADER];
        // The slot lies within the memory, since the caller has found it among our slots.
        let _ = memory.buffer.read(memory.layout.header(slot), &mut header);
        header
    }

    /// Returns the frame in one of our slots, or `None` if its lengths exceed the slot.
    pub(crate) fn received_frame(&self, slot: u16, data: &Data) -> Option<ReceivedFrame> {
        let memory = &self.local.memory;
        let split = memory.gpu.as_ref().map(|gpu| gpu.stride);
        let [before, payload] = memory.layout.message(slot, split, (data.prefix(), data.payload as usize))?;
        let mut prefix = vec![0; before.len()];
        memory.buffer.read(before.start, &mut prefix).ok()?;
        let payload = match &memory.gpu {
            Some(gpu) => {
                let slice = GpuSlice::new(Arc::clone(gpu.buffer.memory()), payload)?;
                Payload::Gpu(slice, gpu.buffer.clone())
            }
            None => Payload::Host(memory.buffer.received(payload).ok()?),
        };
        Some(ReceivedFrame { slot, prefix, payload })
    }
}
