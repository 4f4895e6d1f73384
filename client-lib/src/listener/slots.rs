//! Memory for received frames: promised to a connection when it is let in, used when a frame comes,
//! and used again.
//!
//! By TCP, slots are memory of this process alone, and a connection can get more of them, or give
//! some back. Those are free for others when its sender has answered that it keeps to the limit,
//! and the program has dropped the frames in them.
//!
//! By RDMA, the sender's device writes to the slots. They were registered for that connection, and
//! stay promised until they have been deregistered and freed. No other connection ever has the
//! same.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::budget::Budget;
use super::shares;
use crate::handshake::{Refusal, RefusalCode};

/// Slots for received frames that all connections of a listener, of type `C`, share.
pub(super) struct Memory<C> {
    budget: Budget,
    /// Length of a slot in bytes, with room for key, metadata and the largest payload.
    slot: usize,
    /// Number of slots of all connections together.
    total: u32,
    /// Most connections that may have slots at a time.
    most: usize,
    used: Mutex<Used<C>>,
    /// Notified when slots or a connection's place become free.
    released: Notify,
}

struct Used<C> {
    promised: u32,
    next: u64,
    holders: BTreeMap<u64, Holder<C>>,
}

/// Connection that slots are promised to, and how many.
pub(super) struct Holder<C> {
    pub(super) address: IpAddr,
    pub(super) slots: u32,
    /// The connection, set after the handshake. Until then, it cannot be upgraded.
    pub(super) connection: Weak<C>,
}

/// Sender in its handshake, for which slots are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) address: IpAddr,
    /// Number of slots that the sender gets where there are enough.
    pub(super) wanted: u32,
    /// Whether the sender keeps the slots that it gets until its connection ends, as under RDMA.
    pub(super) is_lasting: bool,
}

/// Slots that one connection has of a [`Memory`], given back on drop.
pub(super) struct Slots<C> {
    memory: Arc<Memory<C>>,
    id: u64,
    free: Mutex<Free>,
    /// Whether a frame is being read from TCP into one of the slots.
    is_reading: AtomicBool,
}

/// State of one connection's slots. By RDMA, only the limit counts.
struct Free {
    /// Free slots that have been used before. The latest is last, and taken first: it is still in
    /// the caches.
    used_before: Vec<Vec<u8>>,
    usage: Usage,
}

/// Numbers of slots that a connection uses, and may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) in_use: u32,
    /// Most slots with frames in them at a time, lately: halved at each tick.
    pub(super) peak: u32,
    /// Slots that are promised to the connection.
    pub(super) most: u32,
    /// Slots that the connection may keep: those beyond are given back as they become free.
    pub(super) limit: u32,
}

impl<C> Clone for Holder<C> {
    fn clone(&self) -> Self {
        Self { connection: Weak::clone(&self.connection), ..*self }
    }
}

impl<C> Memory<C> {
    /// Divides the budget into slots. There is at least one: a budget for one frame may be too
    /// small for what a slot has beside it.
    pub(super) fn new(budget: Budget, slot: usize, most: usize) -> Self {
        let total = u32::try_from(budget.bytes / slot).unwrap_or(u32::MAX).max(1);
        let used = Mutex::new(Used { promised: 0, next: 0, holders: BTreeMap::new() });
        Self { budget, slot, total, most, used, released: Notify::new() }
    }

    /// Returns the number of connections that have slots, with those in their handshake.
    pub(super) fn connections(&self) -> usize {
        self.used.lock().holders.len()
    }

    /// Returns the number of slots of all connections together.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Returns whether there are as many connections as the listener allows.
    pub(super) fn is_crowded(&self) -> bool {
        self.connections() >= self.most
    }

    /// Returns whether a newcomer gets all slots that it wants, or an even share.
    pub(super) fn has_room_for(&self, wanted: u32) -> bool {
        let used = self.used.lock();
        let enough = wanted.min(shares::even(self.total, used.sharing() + 1));
        used.holders.len() < self.most && self.total - used.promised >= enough
    }

    /// Returns the number of bytes in slots that are promised to connections.
    pub(super) fn promised(&self) -> usize {
        self.used.lock().promised as usize * self.slot
    }

    pub(super) fn holders(&self) -> Vec<(u64, Holder<C>)> {
        self.used.lock().holders.iter().map(|(id, holder)| (*id, holder.clone())).collect()
    }

    pub(super) fn released(&self) -> &Notify {
        &self.released
    }

    /// Grants a newcomer the slots that it wants, or fewer where there are not so many; at least
    /// one.
    pub(super) fn grant(
        self: &Arc<Self>,
        Newcomer { address, wanted, is_lasting }: Newcomer,
    ) -> Result<Slots<C>, Refusal> {
        let mut used = self.used.lock();
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

    /// Describes how many senders share how many slots, for error messages.
    fn described(&self, connections: usize) -> String {
        format!("{connections} senders share {self}")
    }

    /// Promises a connection more slots. Returns `false`, and changes nothing, if fewer are free.
    fn promise(&self, id: u64, more: u32) -> bool {
        let mut used = self.used.lock();
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

    /// Takes slots back from a connection, for others to get.
    fn release(&self, id: u64, count: u32) {
        if count == 0 {
            return;
        }
        let mut used = self.used.lock();
        let Used { promised, holders, .. } = &mut *used;
        if let Some(holder) = holders.get_mut(&id) {
            holder.slots -= count;
            *promised -= count;
        }
        drop(used);
        self.released.notify_waiters();
    }
}

impl<C> fmt::Display for Memory<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes ({})", self.total, self.slot, self.budget)
    }
}

impl<C> Used<C> {
    /// Returns how many connections share the slots. One that has ended and given back all of its
    /// slots does not.
    fn sharing(&self) -> usize {
        self.holders.values().filter(|holder| holder.slots > 0).count()
    }
}

impl<C> Slots<C> {
    /// Returns how many slots the sender may use: the limit that it keeps to.
    pub(super) fn count(&self) -> u32 {
        self.free.lock().usage.limit
    }

    /// Returns the memory that the slots are a part of.
    pub(super) fn memory(&self) -> &Arc<Memory<C>> {
        &self.memory
    }

    /// Sets the connection that holds the slots, once its handshake is over.
    pub(super) fn belong_to(&self, connection: Weak<C>) {
        if let Some(holder) = self.memory.used.lock().holders.get_mut(&self.id) {
            holder.connection = connection;
        }
    }

    pub(super) fn usage(&self) -> Usage {
        self.free.lock().usage
    }

    /// Halves the recorded peak of slots in use, as it becomes older.
    pub(super) fn forget_peak(&self) {
        let usage = &mut self.free.lock().usage;
        usage.peak = usage.in_use.max(usage.peak / 2);
    }

    /// Returns whether the program has dropped all frames. One that is being read does not count.
    pub(super) fn is_idle(&self) -> bool {
        let reading = u32::from(self.is_reading.load(Ordering::Relaxed));
        self.free.lock().usage.in_use <= reading
    }

    /// Describes how many senders share how many slots, for error messages.
    pub(super) fn described(&self) -> String {
        self.memory.described(self.memory.connections())
    }

    /// Takes a slot, with room for `length` bytes. Returns `None` if none is free, so that the
    /// sender has sent more than it has credit for.
    pub(super) fn take(&self, length: usize) -> Option<Vec<u8>> {
        let mut slot = {
            let Free { used_before, usage } = &mut *self.free.lock();
            if usage.in_use >= usage.most {
                return None;
            }
            usage.in_use += 1;
            usage.peak = usage.peak.max(usage.in_use);
            used_before.pop().unwrap_or_default()
        };
        self.is_reading.store(true, Ordering::Relaxed);
        // A slot only ever grows: what a frame leaves in it is overwritten by the next, not zeroed.
        if slot.len() < length {
            // New memory from the kernel is zero already. To extend the old one would be to write
            // all of it first. The two never exist at a time.
            drop(slot);
            slot = vec![0; length];
        }
        Some(slot)
    }

    /// Records that all of a frame has been read into its slot.
    pub(super) fn has_read(&self) {
        self.is_reading.store(false, Ordering::Relaxed);
    }

    /// Gives back the slot of a frame that is not read to its end, because its connection ends.
    pub(super) fn stop_reading(&self) {
        if self.is_reading.swap(false, Ordering::Relaxed) {
            self.give_back(Vec::new());
        }
    }

    /// Takes back the slot of a dropped frame. Returns whether the connection has none left.
    pub(super) fn give_back(&self, slot: Vec<u8>) -> bool {
        let Free { used_before, usage } = &mut *self.free.lock();
        usage.in_use = usage.in_use.saturating_sub(1);
        if usage.most <= usage.limit {
            used_before.push(slot);
            return false;
        }
        usage.most -= 1;
        self.memory.release(self.id, 1);
        usage.most == 0
    }

    /// Raises the limit, if the slots that are missing are free. Returns whether they were.
    pub(super) fn raise(&self, to: u32) -> bool {
        let usage = &mut self.free.lock().usage;
        let is_promised = self.memory.promise(self.id, to.saturating_sub(usage.most));
        if is_promised {
            (usage.most, usage.limit) = (usage.most.max(to), to);
        }
        is_promised
    }

    /// Lowers the limit, to which the sender keeps from now on. Slots beyond it are given back at
    /// once, or when the program drops the frames in them. Returns whether the connection has
    /// none left.
    pub(super) fn lower(&self, to: u32) -> bool {
        let mut free = self.free.lock();
        let Free { used_before, usage } = &mut *free;
        usage.limit = usage.limit.min(to);
        let most = usage.most.min(usage.in_use.max(to));
        let count = usage.most - most;
        usage.most = most;
        let unused = used_before.split_off(used_before.len().min((most - usage.in_use.min(most)) as usize));
        drop(free);
        // Before another connection gets as much.
        drop(unused);
        self.memory.release(self.id, count);
        most == 0
    }
}

impl<C> Drop for Slots<C> {
    fn drop(&mut self) {
        let mut used = self.memory.used.lock();
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

    fn memory(total: usize, most: usize) -> Arc<Memory<()>> {
        Arc::new(Memory::new(Budget::given(total * 10), 10, most))
    }

    fn newcomer(wanted: u32) -> Newcomer {
        Newcomer { address: HERE, wanted, is_lasting: false }
    }

    #[test]
    fn connections_share_the_slots_until_none_is_left() {
        let memory = memory(10, 4);
        let grant = |wanted| memory.grant(newcomer(wanted));
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
        let ended = memory.grant(newcomer(4)).unwrap();
        let _other = memory.grant(newcomer(4)).unwrap();
        assert!(!memory.has_room_for(16));
        ended.lower(0);
        assert!(memory.has_room_for(16));
        assert_eq!(memory.grant(newcomer(16)).unwrap().count(), 4);
    }

    #[test]
    fn a_free_slot_is_used_again_by_the_next_frame() {
        let slots = memory(10, 1).grant(newcomer(2)).unwrap();
        let slot = slots.take(10).unwrap();
        let place = slot.as_ptr();
        let other = slots.take(4).unwrap();
        assert!(slots.take(1).is_none());
        slots.give_back(other);
        slots.give_back(slot);
        assert_eq!(slots.take(7).map(|slot| slot.as_ptr()), Some(place));
    }

    #[test]
    fn slots_beyond_a_lower_limit_are_given_back_when_they_are_free() {
        let memory = memory(10, 2);
        let slots = memory.grant(newcomer(8)).unwrap();
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
    fn a_frame_that_is_half_read_at_the_end_gives_back_its_slot() {
        let memory = memory(10, 1);
        let slots = memory.grant(newcomer(2)).unwrap();
        let held = slots.take(1).unwrap();
        slots.has_read();
        drop(slots.take(1));
        slots.stop_reading();
        slots.stop_reading();
        assert!(!slots.lower(0));
        assert_eq!(memory.promised(), 10, "for the frame that is held");
        slots.give_back(held);
        assert_eq!(memory.promised(), 0);
    }

    #[test]
    fn a_frame_that_is_being_read_leaves_a_connection_idle() {
        let slots = memory(10, 1).grant(newcomer(2)).unwrap();
        let slot = slots.take(1).unwrap();
        assert!(slots.is_idle());
        slots.has_read();
        assert!(!slots.is_idle());
        slots.give_back(slot);
        assert!(slots.is_idle());
    }
}
