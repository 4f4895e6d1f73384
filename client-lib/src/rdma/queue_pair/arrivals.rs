//! What the other side has written to our memory, and what it says of its own.

use std::sync::Arc;

use multinet_memory::GpuSlice;

use super::{QueuePair, lock};
use crate::rdma::accounts::{OwnSlots, Violation};
use crate::rdma::{Landed, Payload};
use crate::stream::SHORT;
use crate::wire::{Data, HEADER};

impl<E> QueuePair<E> {
    /// The other side has read another half of its ring.
    pub(crate) fn heard(&self) -> Result<(), Violation> {
        let mut accounts = lock(&self.accounts);
        accounts.places.heard()?;
        self.unblock(&mut accounts);
        Ok(())
    }

    /// The other side has done with slots.
    pub(crate) fn freed(&self, mut slots: impl Iterator<Item = u16>) -> Result<(), Violation> {
        let mut accounts = lock(&self.accounts);
        slots.try_for_each(|slot| accounts.places.freed(slot))?;
        self.unblock(&mut accounts);
        Ok(())
    }

    /// The next entry of our ring, which has come to this place.
    pub(crate) fn entry(&self, place: u32) -> Result<[u8; HEADER + SHORT], Violation> {
        let mut accounts = lock(&self.accounts);
        let is_half = accounts.reading.arrived(place)?;
        let mut entry = [0; HEADER + SHORT];
        // Within the ring, as the place has been found to be the next one.
        let _ = self.landing.read(self.layout.header(place as u16), &mut entry);
        // Said only when it has been read: the other side will write there again.
        if is_half {
            accounts.owed += 1;
            self.wake.notify_one();
        }
        Ok(entry)
    }

    /// How many slots we have.
    pub(crate) fn slots(&self) -> u16 {
        self.layout.count
    }

    /// The accounts of our slots.
    pub(crate) fn own_slots(&self) -> OwnSlots {
        OwnSlots::new(self.layout.count)
    }

    /// The header of what has come to one of our slots.
    pub(crate) fn header(&self, slot: u16) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        // Within the memory, as the slot has been found among those that there are.
        let _ = self.landing.read(self.layout.header(slot), &mut header);
        header
    }

    /// What has come to one of our slots. `None` if it does not fit.
    pub(crate) fn landed(&self, slot: u16, data: &Data) -> Option<Landed> {
        let split = self.gpu.as_ref().map(|(_, stride)| *stride);
        let [before, payload] = self.layout.message(slot, split, (data.prefix(), data.payload as usize))?;
        let mut prefix = vec![0; before.len()];
        self.landing.read(before.start, &mut prefix).ok()?;
        let payload = match &self.gpu {
            Some((landing, _)) => {
                Payload::Gpu(GpuSlice::new(Arc::clone(landing.memory()), payload)?, landing.clone())
            }
            None => Payload::Host(self.landing.landed(payload).ok()?),
        };
        Some(Landed { slot, prefix, payload })
    }
}
