//! What can be made of the fake device, and who knows of it.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;

use nix::sys::eventfd::EventFd;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_state, ibv_sge, ibv_wc,
};

use super::{CHANGED, fault};

/// More than any test lists.
pub(super) const MOST_DEVICES: usize = 4;

/// What callers have a pointer to. It is memory of its own, so that a sanitizer sees who uses it afterwards.
pub(super) struct Raw<T>(NonNull<T>);

// SAFETY: numbers and pointers, which are used under the lock of all.
unsafe impl<T> core::marker::Send for Raw<T> {}

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
        // SAFETY: as it was leaked, and once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Something that was made, which callers name by a pointer.
pub(super) trait Made {
    type Raw;

    fn world(&self) -> u64;
    fn raw(&self) -> *mut Self::Raw;
}

/// All of one kind, by address.
pub(super) struct Table<T> {
    kind: &'static str,
    live: HashMap<usize, T>,
    /// Those that were, with their worlds.
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

    /// What a caller names, which has to be there.
    pub(super) fn get(&mut self, raw: *mut T::Raw) -> Result<&mut T, i32> {
        match self.live.get_mut(&raw.addr()) {
            Some(made) => Ok(made),
            None => {
                // One that never was has no world to be told of; a panic ends the process here.
                let world = *self.gone.get(&raw.addr()).expect("something that has been made");
                fault(world, format!("a {} is used after its end", self.kind));
                Err(libc::EBADF)
            }
        }
    }

    /// As [`get`](Self::get), by address: what others of the device hold, which may be gone.
    pub(super) fn at(&mut self, address: usize) -> Option<&mut T> {
        self.live.get_mut(&address)
    }

    /// Ends what is named by a pointer.
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

    /// Takes note of it if something is still needed by such as these.
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
    /// Lists and contexts.
    pub(super) holders: usize,
}

pub(super) struct Context {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_context>,
    /// As many as there are events, and which: what each is of, and its kind.
    pub(super) file: EventFd,
    pub(super) events: VecDeque<(usize, u32)>,
    /// Events that have been got and not acknowledged.
    pub(super) got: usize,
}

pub(super) struct ProtectionDomain {
    pub(super) world: u64,
    pub(super) raw: Raw<ibv_pd>,
    pub(super) context: usize,
}

/// Memory that is registered.
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
    /// Counts the events.
    pub(super) file: EventFd,
    /// Queues that report.
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
    /// It has overflowed.
    pub(super) has_overflowed: bool,
    /// Events that have been got and not acknowledged.
    pub(super) got: usize,
}

/// A completion.
pub(super) struct Entry {
    pub(super) found: ibv_wc,
    pub(super) pair: usize,
    /// So many places of the send queue are free once it has been polled.
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
    /// Places of the send queue that are taken, and how many of them await a later one's completion.
    pub(super) taken: usize,
    pub(super) unsignalled: usize,
}

/// A posted write that has not been executed.
#[derive(Clone)]
pub(super) struct PostedWrite {
    pub(super) id: u64,
    pub(super) payload: Payload,
    pub(super) address: u64,
    pub(super) key: u32,
    /// In network byte order.
    pub(super) immediate: Option<u32>,
    pub(super) is_signalled: bool,
}

/// The bytes of a write: copied when it was posted, or read when it is executed.
#[derive(Clone)]
pub(super) enum Payload {
    Inline(Vec<u8>),
    ScatterGather(Vec<ibv_sge>),
}

/// How a pair reaches its peer.
#[derive(Clone, Copy, Default)]
pub(super) struct Route {
    pub(super) peer: u32,
    /// Our GID's row and the peer's GID; or the peer's local identifier.
    pub(super) global: Option<(u8, [u8; 16])>,
    pub(super) lid: u16,
    /// Service level and traffic class.
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
