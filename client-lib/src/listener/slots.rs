//! Memory for received frames: accounted for when a connection is let in, used when a frame comes, and used again.
//!
//! By TCP, slots are of this process alone, and a connection may have some more or fewer of them later: those that it gives back are somebody else's once its sender
//! has said that it keeps to the limit, and our code has let go of what is in them. By RDMA, the sender's device writes to them; they are memory that
//! was registered for that connection, and are accounted for until it has been torn down and that memory let go of: no other connection ever has the same.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use multinet_memory::GpuSlice;
use tokio::sync::Notify;

use super::budget::Budget;
use super::control::Connection;
use super::shares;
use crate::handshake::{Refusal, RefusalCode};
use crate::rdma::ReceivedFrame;
use crate::wire::Data;

/// Where a frame is that has come.
pub(super) enum Slot {
    /// Memory of our own, with key, metadata and payload; the rest is of earlier frames.
    Own(Vec<u8>),
    /// The memory that its sender has written it to.
    Landed(ReceivedFrame),
}

/// What all connections of a listener may use together.
pub(super) struct Memory {
    budget: Budget,
    /// The length of a slot in bytes.
    slot: usize,
    /// How many there are.
    total: u32,
    /// How many connections there may be.
    most: usize,
    used: Mutex<Used>,
    /// Some has been given back.
    released: Notify,
}

#[derive(Default)]
struct Used {
    promised: u32,
    next: u64,
    holders: BTreeMap<u64, Holder>,
}

/// Owner of slots.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) address: IpAddr,
    pub(super) slots: u32,
    /// `None` as long as it is in its handshake.
    pub(super) connection: Weak<Connection>,
}

/// Sender that is about to be let in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) address: IpAddr,
    /// How many slots it gets where there are enough.
    pub(super) wanted: u32,
    /// It keeps what it gets until it ends, as under RDMA.
    pub(super) is_lasting: bool,
}

/// A connection's share; it is given back when this is dropped.
pub(super) struct Slots {
    memory: Arc<Memory>,
    id: u64,
    free: Mutex<Free>,
    /// A frame is on its way into one.
    is_reading: AtomicBool,
}

/// By RDMA only the limit is of use.
struct Free {
    /// Those that are free and have been used before, the latest last: what it wrote is in the caches still.
    used_before: Vec<Vec<u8>>,
    usage: Usage,
}

/// How many slots are used, and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) in_use: u32,
    /// The most at a time, lately.
    pub(super) peak: u32,
    /// The most that may be: so many are promised.
    pub(super) most: u32,
    /// It is to come down to that.
    pub(super) limit: u32,
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
    /// One slot at least, whatever the header takes beside its frame.
    pub(super) fn new(budget: Budget, slot: usize, most: usize) -> Self {
        let total = u32::try_from(budget.bytes / slot).unwrap_or(u32::MAX).max(1);
        Self { budget, slot, total, most, used: Mutex::default(), released: Notify::new() }
    }

    pub(super) fn connections(&self) -> usize {
        self.used().holders.len()
    }

    /// How many slots there are.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Whether there are as many connections as there may be.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections() >= self.most
    }

    /// Whether a newcomer that wants so many slots gets all of them, or an even share.
    pub(super) fn has_room_for(&self, wanted: u32) -> bool {
        let used = self.used();
        let enough = wanted.min(shares::even(self.total, used.sharing() + 1));
        used.holders.len() < self.most && self.total - used.promised >= enough
    }

    /// How many bytes are promised.
    pub(super) fn promised(&self) -> usize {
        self.used().promised as usize * self.slot
    }

    pub(super) fn holders(&self) -> Vec<(u64, Holder)> {
        self.used().holders.iter().map(|(id, holder)| (*id, holder.clone())).collect()
    }

    pub(super) fn released(&self) -> &Notify {
        &self.released
    }

    /// Slots for a newcomer: as many as are wanted, or as it gets where there are not so many; at least one. `is_lasting`: it keeps them until it ends.
    pub(super) fn grant(
        self: &Arc<Self>,
        address: IpAddr,
        wanted: u32,
        is_lasting: bool,
    ) -> Result<Slots, Refusal> {
        let mut used = self.used();
        let others = used.holders.len();
        if others >= self.most {
            let message =
                format!("{others} connections, as many as may be: try later, or raise max_connections");
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        let free = self.total - used.promised;
        let slots = shares::first(self.total, free, used.sharing(), wanted, is_lasting);
        if slots == 0 {
            let message = format!(
                "{}, as many as may be: try later, raise memory, or lower frame_size",
                self.described(others)
            );
            return Err(Refusal::new(RefusalCode::Full, message));
        }
        used.promised += slots;
        let id = used.next;
        used.next += 1;
        used.holders.insert(id, Holder { address, slots, connection: Weak::new() });
        drop(used);
        let used_before = Vec::with_capacity(slots.min(1024) as usize);
        let usage = Usage { in_use: 0, peak: 0, most: slots, limit: slots };
        let free = Mutex::new(Free { used_before, usage });
        Ok(Slots { memory: Arc::clone(self), id, free, is_reading: AtomicBool::new(false) })
    }

    /// Describes how the slots are shared, for error messages.
    fn described(&self, connections: usize) -> String {
        format!("{connections} senders share {self}")
    }

    /// Promises a connection more, if there is so much.
    fn promise(&self, id: u64, more: u32) -> bool {
        let mut used = self.used();
        let Used { promised, holders, .. } = &mut *used;
        match holders.get_mut(&id) {
            Some(holder) if more <= self.total - *promised => {
                *promised += more;
                holder.slots += more;
                true
            }
            _ => false,
        }
    }

    /// A connection has given back so many.
    fn release(&self, id: u64, count: u32) {
        if count == 0 {
            return;
        }
        let mut used = self.used();
        let Used { promised, holders, .. } = &mut *used;
        if let Some(holder) = holders.get_mut(&id) {
            holder.slots -= count;
            *promised -= count;
        }
        drop(used);
        self.released.notify_waiters();
    }

    /// No code panics while it holds the lock.
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes ({})", self.total, self.slot, self.budget)
    }
}

impl Used {
    /// Returns how many connections share the slots. One that has ended, and given back all of its
    /// slots, does not.
    fn sharing(&self) -> usize {
        self.holders.values().filter(|holder| holder.slots > 0).count()
    }
}

impl Slots {
    /// How many its sender is to have.
    pub(super) fn count(&self) -> u32 {
        self.free().usage.limit
    }

    /// The memory that they are of.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Sets the connection that owns the slots.
    pub(super) fn belong_to(&self, connection: Weak<Connection>) {
        if let Some(holder) = self.memory.used().holders.get_mut(&self.id) {
            holder.connection = connection;
        }
    }

    /// How many are used, and may be.
    pub(super) fn usage(&self) -> Usage {
        self.free().usage
    }

    /// Some time has passed.
    pub(super) fn forget_peak(&self) {
        let usage = &mut self.free().usage;
        usage.peak = usage.in_use.max(usage.peak / 2);
    }

    /// Whether nothing has come that our code has not let go of: what is on its way does not count.
    pub(super) fn is_idle(&self) -> bool {
        let reading = u32::from(self.is_reading.load(Ordering::Relaxed));
        self.free().usage.in_use <= reading
    }

    /// Describes how the slots are shared, for error messages.
    pub(super) fn described(&self) -> String {
        self.memory.described(self.memory.connections())
    }

    /// Room for so many bytes; `None` if no slot is free, so that the sender has not kept to its credit.
    pub(super) fn take(&self, length: usize) -> Option<Vec<u8>> {
        let mut slot = {
            let Free { used_before, usage } = &mut *self.free();
            if usage.in_use >= usage.most {
                return None;
            }
            usage.in_use += 1;
            usage.peak = usage.peak.max(usage.in_use);
            used_before.pop().unwrap_or_default()
        };
        self.is_reading.store(true, Ordering::Relaxed);
        // It only ever grows: what a frame leaves in it is overwritten by the next, not zeroed.
        if slot.len() < length {
            // New memory of the kernel's is zero already; to make the old longer would be to write all of it first. There are never both.
            drop(slot);
            slot = vec![0; length];
        }
        Some(slot)
    }

    /// All of a frame is in its slot.
    pub(super) fn has_read(&self) {
        self.is_reading.store(false, Ordering::Relaxed);
    }

    /// Takes a slot back. Whether it was the last one that there may be.
    pub(super) fn give_back(&self, slot: Vec<u8>) -> bool {
        let Free { used_before, usage } = &mut *self.free();
        usage.in_use = usage.in_use.saturating_sub(1);
        if usage.most <= usage.limit {
            used_before.push(slot);
            return false;
        }
        usage.most -= 1;
        self.memory.release(self.id, 1);
        usage.most == 0
    }

    /// Has so many, of which it did not have all before. Whether there are.
    pub(super) fn raise(&self, to: u32) -> bool {
        let usage = &mut self.free().usage;
        let is_promised = self.memory.promise(self.id, to.saturating_sub(usage.most));
        if is_promised {
            (usage.most, usage.limit) = (usage.most.max(to), to);
        }
        is_promised
    }

    /// Its sender uses no more than so many from now on: those that it gives back are free when they are. Whether none is left.
    pub(super) fn lower(&self, to: u32) -> bool {
        let mut free = self.free();
        let Free { used_before, usage } = &mut *free;
        usage.limit = usage.limit.min(to);
        let most = usage.most.min(usage.in_use.max(to));
        let count = usage.most - most;
        usage.most = most;
        let unused = used_before.split_off(used_before.len().min((most - usage.in_use.min(most)) as usize));
        drop(free);
        // Before somebody else has as much.
        drop(unused);
        self.memory.release(self.id, count);
        most == 0
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut used = self.memory.used();
        if let Some(holder) = used.holders.remove(&self.id) {
            used.promised -= holder.slots;
        }
        drop(used);
        self.memory.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn memory(total: usize, most: usize) -> Arc<Memory> {
        Arc::new(Memory::new(Budget::given(total * 10), 10, most))
    }

    #[test]
    fn connections_share_what_there_is() {
        let memory = memory(10, 4);
        let grant = |wanted| memory.grant(HERE, wanted, false);
        let first = grant(8).unwrap();
        let second = grant(8).unwrap();
        assert_eq!((first.count(), second.count()), (8, 2));
        let refusal = grant(8).err().unwrap();
        assert_eq!(refusal.code, RefusalCode::Full);
        for said in ["2 senders share 10 slots of 10 bytes", "100 bytes", "raise memory"] {
            assert!(refusal.message.contains(said), "{}", refusal.message);
        }
        drop(first);
        let third = grant(3).unwrap();
        assert_eq!((third.count(), memory.promised()), (3, 50));
        third.lower(1);
        assert_eq!((third.count(), grant(7).unwrap().count()), (1, 7));
        drop(third);
        assert_eq!((memory.connections(), memory.promised()), (1, 20));
    }

    #[test]
    fn a_connection_that_has_given_back_all_slots_has_no_share() {
        let memory = memory(8, 3);
        let ended = memory.grant(HERE, 4, false).unwrap();
        let _other = memory.grant(HERE, 4, false).unwrap();
        assert!(!memory.has_room_for(16));
        ended.lower(0);
        assert!(memory.has_room_for(16));
        assert_eq!(memory.grant(HERE, 16, false).unwrap().count(), 4);
    }

    #[test]
    fn a_slot_is_used_again() {
        let slots = memory(10, 1).grant(HERE, 2, false).unwrap();
        let slot = slots.take(10).unwrap();
        let place = slot.as_ptr();
        let other = slots.take(4).unwrap();
        assert!(slots.take(1).is_none());
        slots.give_back(other);
        slots.give_back(slot);
        assert_eq!(slots.take(7).map(|slot| slot.as_ptr()), Some(place));
    }

    #[test]
    fn what_is_used_is_given_back_when_it_is_free() {
        let memory = memory(10, 2);
        let slots = memory.grant(HERE, 8, false).unwrap();
        let taken: Vec<_> = (0..5).map(|_| slots.take(1).unwrap()).collect();
        assert!(!slots.lower(3));
        assert_eq!((memory.promised(), slots.count(), slots.usage().peak), (50, 3, 5));
        assert!(slots.take(1).is_none());
        let mut promised = Vec::new();
        for slot in taken {
            assert!(!slots.give_back(slot));
            promised.push(memory.promised());
        }
        assert_eq!(promised, [40, 30, 30, 30, 30]);
        // As many as were there before can be had again, and no more than there are.
        assert!(!slots.raise(11) && slots.raise(10));
        let taken: Vec<_> = std::iter::from_fn(|| slots.take(1)).collect();
        assert_eq!((taken.len(), memory.promised()), (10, 100));
        // Down to nothing: the last one says so.
        assert!(!slots.lower(0));
        let last: Vec<bool> = taken.into_iter().map(|slot| slots.give_back(slot)).collect();
        assert_eq!(last.iter().position(|is_last| *is_last), Some(9));
        assert_eq!((memory.promised(), memory.connections()), (0, 1));
    }

    #[test]
    fn what_is_on_its_way_is_not_unacknowledged() {
        let slots = memory(10, 1).grant(HERE, 2, false).unwrap();
        let slot = slots.take(1).unwrap();
        assert!(slots.is_idle());
        slots.has_read();
        assert!(!slots.is_idle());
        slots.give_back(slot);
        assert!(slots.is_idle());
    }
}
