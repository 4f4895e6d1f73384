//! The objects of the fake device, and the tables that track them.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;

use nix::sys::eventfd::EventFd;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_state, ibv_sge, ibv_wc,
};

use super::{CHANGED, fault};

/// Number of devices that a list has room for: more than any test lists.
pub(super) const MOST_DEVICES: usize = 4;

/// The structure that callers have a pointer to. It has an allocation of its own, so that
/// sanitizers detect its use after the end.
pub(super) struct Raw<T>(NonNull<T>);

// SAFETY: numbers and pointers, which are only used under the one lock.
unsafe impl<T> Send for Raw<T> {}

impl<T> Raw<T> {
    pub(super) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(super) fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Raw<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// An object that the fake has created, and callers name by a pointer.
pub(super) trait Made {
    type Raw;

    fn world(&self) -> u64;
    fn raw(&self) -> *mut Self::Raw;
}

/// All objects of one kind in all tests, by their addresses.
pub(super) struct Table<T> {
    kind: &'static str,
    live: HashMap<usize, T>,
    /// The numbers of the worlds of objects that are gone, by address.
    gone: HashMap<usize, u64>,
}

impl<T: Made> Table<T> {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, live: HashMap::new(), gone: HashMap::new() }
    }

    pub(super) fn insert(&mut self, made: T) -> *mut T::Raw {
        let raw = made.raw();
        self.gone.remove(&raw.addr());
        self.live.insert(raw.addr(), made);
        raw
    }

    /// Returns the object that a caller names. Records a fault if it is gone.
    pub(super) fn get(&mut self, raw: *mut T::Raw) -> Result<&mut T, i32> {
        match self.live.get_mut(&raw.addr()) {
            Some(made) => Ok(made),
            None => {
                // An object that never existed has no world to blame; this panic ends the process.
                let world = *self.gone.get(&raw.addr()).expect("something that has been made");
                fault(world, format!("a {} is used after its end", self.kind));
                Err(libc::EBADF)
            }
        }
    }

    /// Returns an object by the address that another one holds, if it is alive.
    pub(super) fn at(&mut self, address: usize) -> Option<&mut T> {
        self.live.get_mut(&address)
    }

    /// Removes the object that a caller names. Records a fault if it is gone already.
    pub(super) fn remove(&mut self, raw: *mut T::Raw) -> Result<T, i32> {
        self.get(raw)?;
        let made = self.live.remove(&raw.addr()).expect("it has been found");
        self.gone.insert(raw.addr(), made.world());
        CHANGED.notify_all();
        Ok(made)
    }

    pub(super) fn all(&self, world: u64) -> impl Iterator<Item = &T> {
        self.live.values().filter(move |made| made.world() == world)
    }

    pub(super) fn all_mut(&mut self, world: u64) -> impl Iterator<Item = &mut T> {
        self.live.values_mut().filter(move |made| made.world() == world)
    }

    pub(super) fn count(&self, world: u64) -> usize {
        self.all(world).count()
    }

    /// Records a fault if an object of this table still needs the one that is destroyed.
    pub(super) fn check_not_needed(
        &self,
        what: &str,
        world: u64,
        needs: impl Fn(&T) -> bool,
    ) -> Result<(), i32> {
        if self.all(world).any(needs) {
            fault(world, format!("a {what} is destroyed before its {}", self.kind));
            return Err(libc::EBUSY);
        }
        Ok(())
    }

    pub(super) fn describe(&self, world: u64, to: &mut String) {
        let count = self.count(world);
        if count > 0 {
            *to += &format!("{count} {} ", self.kind);
        }
    }
}

pub(super) struct List {
    pub(super) world: u64,
    pub(super) raw: Raw<[*mut ibv_device; MOST_DEVICES]>,
}

pub(super) struct Device {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_device>,
    /// The number of device lists and contexts that refer to the device.
    pub(super) holders: usize,
}

pub(super) struct Context {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_context>,
    /// A semaphore that counts the events, so that it is readable while there is one.
    pub(super) file: EventFd,
    pub(super) events: VecDeque<(usize, u32)>,
    /// Number of asynchronous events that were taken and not acknowledged.
    pub(super) got: usize,
}

pub(super) struct ProtectionDomain {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_pd>,
    pub(super) context: usize,
}

pub(super) struct MemoryRegion {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_mr>,
    pub(super) domain: usize,
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) access: u32,
}

pub(super) struct CompletionChannel {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_comp_channel>,
    pub(super) context: usize,
    /// A semaphore that counts the events, so that it is readable while there is one.
    pub(super) file: EventFd,
    /// The completion queues that have reported, by address, the oldest report first.
    pub(super) events: VecDeque<usize>,
}

pub(super) struct CompletionQueue {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_cq>,
    pub(super) context: usize,
    pub(super) channel: usize,
    pub(super) depth: usize,
    pub(super) entries: VecDeque<Entry>,
    pub(super) is_armed: bool,
    pub(super) has_overflowed: bool,
    /// Number of reports of the queue that were taken and not acknowledged.
    pub(super) got: usize,
}

/// A completion in a queue that has not been polled.
pub(super) struct Entry {
    pub(super) found: ibv_wc,
    pub(super) pair: usize,
    /// The entries of the send queue that are free once it has been polled.
    pub(super) frees: usize,
}

pub(super) struct QueuePair {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_qp>,
    pub(super) number: u32,
    pub(super) domain: usize,
    pub(super) queue: usize,
    pub(super) state: ibv_qp_state::Type,
    pub(super) most_sends: usize,
    pub(super) most_receives: usize,
    pub(super) most_parts: usize,
    pub(super) inline: u32,
    pub(super) access: u32,
    pub(super) route: Route,
    pub(super) sends: VecDeque<PostedWrite>,
    pub(super) receives: VecDeque<u64>,
    /// The used entries of the send queue, and how many of them await the completion of a later
    /// one.
    pub(super) taken: usize,
    pub(super) unsignalled: usize,
}

/// A posted write that is in its send queue, not executed yet.
#[derive(Clone)]
pub(super) struct PostedWrite {
    pub(super) id: u64,
    pub(super) payload: Payload,
    pub(super) address: u64,
    pub(super) key: u32,
    /// The immediate in network byte order; `None` for a write without one.
    pub(super) immediate: Option<u32>,
    pub(super) is_signalled: bool,
}

/// The bytes of a write: copied when it was posted, or read when it is executed.
#[derive(Clone)]
pub(super) enum Payload {
    Inline(Vec<u8>),
    ScatterGather(Vec<ibv_sge>),
}

/// How a queue pair reaches its peer, as set by `ibv_modify_qp`.
#[derive(Clone, Copy, Default)]
pub(super) struct Route {
    pub(super) peer: u32,
    /// The index of our GID and the peer's GID; `None` if the local identifiers are used.
    pub(super) global: Option<(u8, [u8; 16])>,
    pub(super) lid: u16,
    /// The service level and the traffic class of its packets.
    pub(super) class: (u8, u8),
    pub(super) send_sequence: u32,
    pub(super) receive_sequence: u32,
}

macro_rules! made {
    ($($kind:ident: $raw:ty),* $(,)?) => {$(
        impl Made for $kind {
            type Raw = $raw;

            fn world(&self) -> u64 {
                self.world
            }

            fn raw(&self) -> *mut $raw {
                self.raw.pointer()
            }
        }
    )*};
}

made! {
    List: [*mut ibv_device; MOST_DEVICES],
    Device: ibv_device,
    Context: ibv_context,
    ProtectionDomain: ibv_pd,
    MemoryRegion: ibv_mr,
    CompletionChannel: ibv_comp_channel,
    CompletionQueue: ibv_cq,
    QueuePair: ibv_qp,
}
