//! Memory for received frames: accounted for when a connection is let in, used when a frame comes, and used again.

use std::sync::{Arc, Mutex, PoisonError};

use multinet_memory::GpuSlice;

use crate::handshake::{Refusal, RefusalCode};
use crate::rdma::Landed;
use crate::wire::Data;

/// Where a frame is that has come.
pub(super) enum Slot {
    /// Memory of our own, with key, metadata and payload; the rest is of earlier frames.
    Own(Vec<u8>),
    /// The memory that its sender has written it to.
    Landed(Landed),
}

/// What all connections of a listener may use together.
pub(super) struct Memory {
    slot: usize,
    limit: usize,
    connections: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    connections: usize,
}

/// A connection's share; it is given back when this is dropped.
pub(super) struct Slots {
    memory: Arc<Memory>,
    count: u32,
    /// Those that are free and have been used before, the latest last: what it wrote is in the caches still.
    free: Mutex<Free>,
}

struct Free {
    used_before: Vec<Vec<u8>>,
    /// How many have never been used.
    fresh: u32,
}

impl Slot {
    pub(super) fn key(&self, data: &Data) -> &[u8] {
        match self {
            Self::Own(slot) => &slot[..usize::from(data.key)],
            Self::Landed(landed) => landed.key(data),
        }
    }

    pub(super) fn metadata(&self, data: &Data) -> &[u8] {
        match self {
            Self::Own(slot) => &slot[usize::from(data.key)..data.prefix()],
            Self::Landed(landed) => landed.metadata(data),
        }
    }

    /// The payload, if it has come to a GPU.
    pub(super) fn gpu(&self) -> Option<&GpuSlice> {
        match self {
            Self::Own(_) => None,
            Self::Landed(landed) => landed.gpu(),
        }
    }

    /// The payload, unless it has come to a GPU.
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

impl Memory {
    pub(super) fn new(limit: usize, slot: usize, connections: usize) -> Self {
        Self { slot, limit, connections, used: Mutex::default() }
    }

    pub(super) fn connections(&self) -> usize {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).connections
    }

    /// As many slots as are wanted and left, at least one.
    pub(super) fn grant(self: &Arc<Self>, wanted: u32) -> Result<Slots, Refusal> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.connections >= self.connections {
            let message = format!(
                "{} connections, as many as may be: try later, or raise max_connections",
                used.connections
            );
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        let left = (self.limit - used.bytes) / self.slot;
        // The very first is let in, whatever the header takes beside its frames.
        let least = u32::from(used.connections == 0);
        let count = u32::try_from(left).unwrap_or(u32::MAX).min(wanted).max(least);
        if count == 0 {
            let message = format!(
                "{} bytes of frames are promised, as many as may be: try later, or raise memory",
                used.bytes
            );
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        used.bytes = (used.bytes + count as usize * self.slot).min(self.limit);
        used.connections += 1;
        let free = Free { used_before: Vec::with_capacity(count.min(1024) as usize), fresh: count };
        Ok(Slots { memory: Arc::clone(self), count, free: Mutex::new(free) })
    }
}

impl Slots {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Only so many are used; the rest is for others.
    pub(super) fn shrink(&mut self, count: u32) {
        let given_back = self.count.saturating_sub(count);
        self.count -= given_back;
        let mut used = self.memory.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.bytes = used.bytes.saturating_sub(given_back as usize * self.memory.slot);
    }

    /// Room for so many bytes; `None` if no slot is free, so that the sender has not kept to its credit.
    pub(super) fn take(&self, length: usize) -> Option<Vec<u8>> {
        let mut slot = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.used_before.pop() {
                Some(slot) => slot,
                None => {
                    free.fresh = free.fresh.checked_sub(1)?;
                    Vec::new()
                }
            }
        };
        // It only ever grows: what a frame leaves in it is overwritten by the next, not zeroed.
        if slot.len() < length {
            // New memory of the kernel's is zero already; to make the old longer would be to write all of it first.
            slot = vec![0; length];
        }
        Some(slot)
    }

    pub(super) fn give_back(&self, slot: Vec<u8>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used_before.push(slot);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut used = self.memory.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.bytes = used.bytes.saturating_sub(self.count as usize * self.memory.slot);
        used.connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_what_there_is() {
        let memory = Arc::new(Memory::new(100, 10, 4));
        let first = memory.grant(8).unwrap();
        let second = memory.grant(8).unwrap();
        assert_eq!((first.count(), second.count()), (8, 2));
        assert_eq!(memory.grant(8).err().map(|refusal| refusal.code), Some(RefusalCode::Full));
        drop(first);
        let mut third = memory.grant(3).unwrap();
        assert_eq!(third.count(), 3);
        third.shrink(1);
        assert_eq!((third.count(), memory.grant(8).unwrap().count()), (1, 7));
        drop(third);
        assert_eq!(memory.connections(), 1);
    }

    #[test]
    fn a_slot_is_used_again() {
        let memory = Arc::new(Memory::new(100, 10, 1));
        let slots = memory.grant(2).unwrap();
        let slot = slots.take(10).unwrap();
        let place = slot.as_ptr();
        let other = slots.take(4).unwrap();
        assert!(slots.take(1).is_none());
        slots.give_back(other);
        slots.give_back(slot);
        assert_eq!(slots.take(7).map(|slot| slot.as_ptr()), Some(place));
    }
}
