//! The function table, and its control functions: devices, protection domains, memory.
#![allow(unsafe_code, reason = "stands in for verbs")]

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::mman::{MsFlags, msync};
use rdma_sys::{
    ibv_access_flags, ibv_context, ibv_device, ibv_mr, ibv_pd, ibv_port_attr, ibv_port_state, ibv_wc_status,
};

use super::objects::{Context, Device, List, MOST_DEVICES, MemoryRegion, ProtectionDomain, Raw};
use super::{CURRENT, Verb, completion_queues, fault, made, queue_pairs, returned, state, wire};
use crate::library::{GidEntry, Library};

pub(super) fn table() -> Library {
    Library {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_port,
        query_gid_ex: Some(query_gid_ex),
        alloc_pd,
        dealloc_pd,
        reg_mr,
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_cq: completion_queues::create_cq,
        destroy_cq: completion_queues::destroy_cq,
        create_comp_channel: completion_queues::create_comp_channel,
        destroy_comp_channel: completion_queues::destroy_comp_channel,
        get_cq_event: completion_queues::get_cq_event,
        ack_cq_events: completion_queues::ack_cq_events,
        get_async_event: completion_queues::get_async_event,
        ack_async_event: completion_queues::ack_async_event,
        create_qp: queue_pairs::create_qp,
        modify_qp: queue_pairs::modify_qp,
        destroy_qp: queue_pairs::destroy_qp,
        wc_status_str,
        _object: libloading::os::unix::Library::this().into(),
    }
}

extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut state = state();
    let world = CURRENT.get();
    if let Err(errno) = state.call(world, Verb::List) {
        return made(Err(errno));
    }
    let mut list = [std::ptr::null_mut(); MOST_DEVICES];
    let names = state.world(world).devices.clone();
    for (entry, name) in list.iter_mut().zip(&names) {
        // SAFETY: a structure of numbers and optional functions, for which zero means none.
        let mut device: ibv_device = unsafe { std::mem::zeroed() };
        for (to, from) in device.name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        *entry = state.devices.insert(Device { world, raw: Raw::new(device), holders: 1 });
    }
    // SAFETY: the caller's number.
    unsafe { *count = c_int::try_from(names.len()).unwrap_or_default() };
    state.lists.insert(List { world, raw: Raw::new(list) }).cast()
}

extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let mut state = state();
    let Ok(list) = state.lists.remove(list.cast()) else { return };
    // SAFETY: the list is alive, and was just removed from the table.
    let devices = unsafe { *list.raw.pointer() };
    for device in devices.into_iter().filter(|device| !device.is_null()) {
        state.release_device(device);
    }
}

impl super::State {
    /// Drops the reference of a list or a context to a device, which ends with the last one.
    fn release_device(&mut self, device: *mut ibv_device) {
        let Ok(found) = self.devices.get(device) else { return };
        found.holders -= 1;
        if found.holders == 0 {
            // It was found just now.
            let _ = self.devices.remove(device);
        }
    }
}

extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    match state().devices.get(device) {
        // SAFETY: the device is alive.
        Ok(_) => unsafe { (&raw const (*device).name).cast() },
        Err(_) => c"".as_ptr(),
    }
}

extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let mut state = state();
    let open = |state: &mut super::State| {
        let world = state.devices.get(device)?.world;
        state.call(world, Verb::Open)?;
        state.devices.get(device)?.holders += 1;
        // SAFETY: a structure of numbers and optional functions, for which zero means none.
        let mut context: ibv_context = unsafe { std::mem::zeroed() };
        context.device = device;
        context.ops.poll_cq = Some(completion_queues::poll_cq);
        context.ops.req_notify_cq = Some(completion_queues::req_notify_cq);
        context.ops.post_send = Some(wire::post_send);
        context.ops.post_recv = Some(wire::post_recv);
        // Blocking at first, as the file of a device is.
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let file = EventFd::from_flags(flags).map_err(|errno| errno as i32)?;
        context.async_fd = file.as_raw_fd();
        let (raw, events) = (Raw::new(context), VecDeque::new());
        Ok(state.contexts.insert(Context { world, raw, file, events, got: 0 }))
    };
    made(open(&mut state))
}

extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let mut state = state();
    let close = |state: &mut super::State| {
        let world = state.contexts.get(context)?.world;
        state.domains.check_not_needed("context", world, |domain| domain.context == context.addr())?;
        state.queues.check_not_needed("context", world, |queue| queue.context == context.addr())?;
        state.channels.check_not_needed("context", world, |channel| channel.context == context.addr())?;
        // SAFETY: the context is alive.
        let device = unsafe { (*context).device };
        if state.contexts.remove(context)?.got > 0 {
            fault(world, "a context is closed before its events are acknowledged");
        }
        state.release_device(device);
        Ok(())
    };
    returned(close(&mut state))
}

extern "C" fn query_port(context: *mut ibv_context, port: u8, to: *mut ibv_port_attr) -> c_int {
    let mut state = state();
    let query = |state: &mut super::State| {
        let world = state.contexts.get(context)?.world;
        state.call(world, Verb::Query)?;
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let world = state.world(world);
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        to.state = match world.is_active {
            true => ibv_port_state::IBV_PORT_ACTIVE,
            false => ibv_port_state::IBV_PORT_DOWN,
        };
        to.active_mtu = world.mtu;
        to.lid = world.lid;
        Ok(())
    };
    returned(query(&mut state))
}

extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    gid_index: u32,
    to: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    let mut state = state();
    let query = |state: &mut super::State| {
        let world = state.contexts.get(context)?.world;
        let world = state.world(world);
        let gid = *world.gids.get(gid_index as usize).ok_or(libc::ENODATA)?;
        if port != 1 || flags != 0 || size != size_of::<GidEntry>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        let bits = gid.to_bits().to_be_bytes();
        to.gid = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|index| bits[at + index])));
        (to.index, to.port, to.kind, to.interface) = (gid_index, port, 2, world.interface);
        Ok(())
    };
    returned(query(&mut state))
}

extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut state = state();
    let alloc = |state: &mut super::State| {
        let world = state.contexts.get(context)?.world;
        state.call(world, Verb::AllocPd)?;
        let raw = Raw::new(ibv_pd { context, handle: 0 });
        Ok(state.domains.insert(ProtectionDomain { world, raw, context: context.addr() }))
    };
    made(alloc(&mut state))
}

extern "C" fn dealloc_pd(domain: *mut ibv_pd) -> c_int {
    let mut state = state();
    let dealloc = |state: &mut super::State| {
        let world = state.domains.get(domain)?.world;
        state.regions.check_not_needed("domain", world, |region| region.domain == domain.addr())?;
        state.pairs.check_not_needed("domain", world, |pair| pair.domain == domain.addr())?;
        state.domains.remove(domain).map(drop)
    };
    returned(dealloc(&mut state))
}

extern "C" fn reg_mr(domain: *mut ibv_pd, start: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    register(Verb::RegMr, domain, start, length, access)
}

/// Registers the address itself: a test maps the memory of its dma-buf there.
extern "C" fn reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    address: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if fd < 0 {
        return made(Err(libc::EBADF));
    }
    // The kernel requires both to have the same offset within their pages.
    if offset % 4096 != address % 4096 {
        return made(Err(libc::EINVAL));
    }
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    register(Verb::RegDmaBuf, domain, start, length, access)
}

fn register(
    verb: Verb,
    domain: *mut ibv_pd,
    start: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut state = state();
    let register = |state: &mut super::State| {
        let found = state.domains.get(domain)?;
        let (world, context) = (found.world, found.context);
        state.call(world, verb)?;
        let context = state.contexts.at(context).ok_or(libc::EBADF)?.raw.pointer();
        let access = access.cast_unsigned();
        let has = |flag: ibv_access_flags| access & flag.0 != 0;
        if has(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE) && !has(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE) {
            return Err(libc::EINVAL);
        }
        if length == 0 || !is_mapped(start, length) {
            return Err(libc::EFAULT);
        }
        // Different numbers, so that a mix-up of the two keys shows.
        let (lkey, rkey) = (state.number(), state.number());
        let raw = Raw::new(ibv_mr { context, pd: domain, addr: start, length, handle: 0, lkey, rkey });
        let (domain, start) = (domain.addr(), start.expose_provenance());
        Ok(state.regions.insert(MemoryRegion { world, raw, domain, start, length, access }))
    };
    made(register(&mut state))
}

extern "C" fn dereg_mr(region: *mut ibv_mr) -> c_int {
    let mut state = state();
    let deregister = |state: &mut super::State| {
        let region = state.regions.remove(region)?;
        if !is_mapped(std::ptr::with_exposed_provenance_mut(region.start), region.length) {
            fault(region.world, "memory is given back before its registration has ended");
        }
        Ok(())
    };
    returned(deregister(&mut state))
}

/// Returns whether all pages of a range are mapped in this process.
fn is_mapped(start: *mut c_void, length: usize) -> bool {
    // SAFETY: for anonymous memory, `msync` only looks up the pages.
    NonNull::new(start).is_some_and(|start| unsafe { msync(start, length, MsFlags::MS_ASYNC) }.is_ok())
}

extern "C" fn wc_status_str(status: ibv_wc_status::Type) -> *const c_char {
    let text = match status {
        ibv_wc_status::IBV_WC_SUCCESS => c"success",
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => c"local protection error",
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => c"remote access error",
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        _ => return std::ptr::null(),
    };
    text.as_ptr()
}
