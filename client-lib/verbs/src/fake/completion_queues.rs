//! Completion queues and completion channels.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd as _;
use std::sync::PoisonError;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_qp_state, ibv_wc};

use super::objects::{CompletionChannel, CompletionQueue, Entry, Raw};
use super::{CHANGED, PATIENCE, State, Verb, fault, made, returned, state};
use crate::library::AsyncEvent;

pub(super) extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let mut state = state();
    let create = |state: &mut State| {
        let world = state.contexts.get(context)?.world;
        state.call(world, Verb::CreateChannel)?;
        // Blocking at first, as the file of a device is.
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let file = EventFd::from_flags(flags).map_err(|errno| errno as i32)?;
        let raw = Raw::new(ibv_comp_channel { context, fd: file.as_raw_fd(), refcnt: 0 });
        let events = VecDeque::new();
        Ok(state.channels.insert(CompletionChannel { world, raw, context: context.addr(), file, events }))
    };
    made(create(&mut state))
}

pub(super) extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let mut state = state();
    let destroy = |state: &mut State| {
        let world = state.channels.get(channel)?.world;
        state.queues.check_not_needed("channel", world, |queue| queue.channel == channel.addr())?;
        state.channels.remove(channel).map(drop)
    };
    returned(destroy(&mut state))
}

/// Stands in for `ibv_get_cq_event`. Returns -1 and sets `errno`, unlike most other calls.
pub(super) extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    number: *mut *mut c_void,
) -> c_int {
    let mut state = state();
    let get = |state: &mut State| {
        let world = state.channels.get(channel)?.world;
        state.call(world, Verb::GetEvent)?;
        let found = state.channels.get(channel)?;
        let Some(event) = found.events.pop_front() else {
            let flags =
                fcntl(&found.file, FcntlArg::F_GETFL).map_or(OFlag::empty(), OFlag::from_bits_truncate);
            if !flags.contains(OFlag::O_NONBLOCK) {
                fault(world, "a channel without events is asked for one, which waits for ever");
            }
            return Err(libc::EAGAIN);
        };
        found.file.read().map_err(|errno| errno as i32)?;
        let found = state.queues.at(event).ok_or(libc::EBADF)?;
        found.got += 1;
        // SAFETY: the caller's pointers, and a queue that is alive.
        unsafe { (*queue, *number) = (found.raw.pointer(), (*found.raw.pointer()).cq_context) };
        Ok(())
    };
    get(&mut state).map_or_else(
        |errno| {
            Errno::set_raw(errno);
            -1
        },
        |()| 0,
    )
}

pub(super) extern "C" fn ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    let mut state = state();
    let Ok(found) = state.queues.get(queue) else { return };
    match found.got.checked_sub(count as usize) {
        Some(got) => found.got = got,
        None => fault(found.world, "more events are acknowledged than there were"),
    }
    CHANGED.notify_all();
}

pub(super) extern "C" fn get_async_event(context: *mut ibv_context, event: *mut AsyncEvent) -> c_int {
    let mut state = state();
    let get = |state: &mut State| {
        let found = state.contexts.get(context)?;
        let (element, kind) = found.events.pop_front().ok_or(libc::EAGAIN)?;
        found.file.read().map_err(|errno| errno as i32)?;
        found.got += 1;
        // SAFETY: the caller's pointer.
        unsafe { event.write(AsyncEvent { element: element as u64, kind }) };
        Ok(())
    };
    get(&mut state).map_or_else(
        |errno| {
            Errno::set_raw(errno);
            -1
        },
        |()| 0,
    )
}

pub(super) extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    let mut state = state();
    // SAFETY: the caller's event.
    let element = unsafe { (*event).element } as usize;
    // The object is a queue pair, a queue, or the context itself.
    let queue = state.pairs.at(element).map_or(element, |pair| pair.queue);
    let context = state.queues.at(queue).map_or(element, |queue| queue.context);
    let Some(found) = state.contexts.at(context) else { return };
    match found.got.checked_sub(1) {
        Some(got) => found.got = got,
        None => fault(found.world, "more events are acknowledged than there were"),
    }
}

pub(super) extern "C" fn create_cq(
    context: *mut ibv_context,
    depth: c_int,
    number: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let mut state = state();
    let create = |state: &mut State| {
        let world = state.contexts.get(context)?.world;
        state.call(world, Verb::CreateCq)?;
        if !channel.is_null() && state.channels.get(channel)?.context != context.addr() {
            fault(world, "a queue reports to a channel of another context");
        }
        let depth = usize::try_from(depth).ok().filter(|&depth| depth > 0).ok_or(libc::EINVAL)?;
        // SAFETY: a structure of numbers and pointers.
        let mut raw: ibv_cq = unsafe { std::mem::zeroed() };
        (raw.context, raw.channel, raw.cq_context) = (context, channel, number);
        Ok(state.queues.insert(CompletionQueue {
            world,
            raw: Raw::new(raw),
            context: context.addr(),
            channel: channel.addr(),
            depth,
            entries: VecDeque::new(),
            is_armed: false,
            has_overflowed: false,
            got: 0,
        }))
    };
    made(create(&mut state))
}

pub(super) extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // Waits until all events of the queue are acknowledged, as libibverbs does.
    let is_got = |state: &mut State| state.queues.at(queue.addr()).is_some_and(|queue| queue.got > 0);
    let waited = CHANGED.wait_timeout_while(state(), PATIENCE, is_got);
    let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
    let destroy = |state: &mut State| {
        let world = state.queues.get(queue)?.world;
        if timeout.timed_out() {
            fault(world, "a queue's events are not acknowledged");
        }
        state.pairs.check_not_needed("queue", world, |pair| pair.queue == queue.addr())?;
        let queue = state.queues.remove(queue)?;
        // The pending reports of the queue disappear.
        if let Some(channel) = state.channels.at(queue.channel) {
            let before = channel.events.len();
            channel.events.retain(|&event| event != queue.raw.pointer().addr());
            for _ in channel.events.len()..before {
                channel.file.read().map_err(|errno| errno as i32)?;
            }
        }
        Ok(())
    };
    returned(destroy(&mut state))
}

pub(super) extern "C" fn req_notify_cq(queue: *mut ibv_cq, _solicited: c_int) -> c_int {
    let mut state = state();
    let arm = |state: &mut State| {
        let world = state.queues.get(queue)?.world;
        state.call(world, Verb::Arm)?;
        state.queues.get(queue)?.is_armed = true;
        Ok(())
    };
    returned(arm(&mut state))
}

pub(super) extern "C" fn poll_cq(queue: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    let mut state = state();
    let poll = |state: &mut State| {
        let world = state.queues.get(queue)?.world;
        state.call(world, Verb::Poll)?;
        let overfills_polls = state.world(world).overfills_polls;
        let found = state.queues.get(queue)?;
        if found.has_overflowed {
            return Err(libc::EIO);
        }
        if overfills_polls {
            return Ok(room + 1);
        }
        let room = usize::try_from(room).unwrap_or_default().min(found.entries.len());
        let entries: Vec<Entry> = found.entries.drain(..room).collect();
        for (index, entry) in entries.into_iter().enumerate() {
            if let Some(pair) = state.pairs.at(entry.pair) {
                pair.taken -= entry.frees;
            }
            // SAFETY: the caller has room for that many.
            unsafe { to.add(index).write(entry.found) };
        }
        Ok(c_int::try_from(room).unwrap_or_default())
    };
    // The call does not tell the reason.
    poll(&mut state).unwrap_or(-1)
}

impl State {
    /// Adds a completion to a queue, and reports it to the channel if the queue is armed.
    pub(super) fn complete(&mut self, queue: usize, entry: Entry) {
        let Some(found) = self.queues.at(queue) else { return };
        if found.entries.len() == found.depth {
            found.has_overflowed = true;
            let users: Vec<_> = self.pairs.all(found.world).filter(|pair| pair.queue == queue).collect();
            let users: Vec<_> = users.iter().map(|pair| pair.raw.pointer().addr()).collect();
            for user in users {
                self.pairs.at(user).into_iter().for_each(|pair| pair.state = ibv_qp_state::IBV_QPS_ERR);
            }
            return;
        }
        found.entries.push_back(entry);
        if !std::mem::take(&mut found.is_armed) {
            return;
        }
        if let Some(channel) = self.channels.at(found.channel) {
            channel.events.push_back(queue);
            // It fails only after 2^64 writes.
            let _ = channel.file.write(1);
        }
    }
}
