//! Devices, and what is asked of them.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::{CStr, c_uint};
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, with_exposed_provenance};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_sys::{ibv_context, ibv_cq, ibv_device, ibv_mtu, ibv_port_attr, ibv_port_state, ibv_qp};

use crate::error::{Call, Error};
use crate::library::{AsyncEvent, GidEntry, Library};

/// `IBV_EVENT_CQ_ERR`: a completion queue has overflowed, or the device cannot write to it.
const QUEUE_ERROR: c_uint = 0;

/// `IBV_EVENT_QP_FATAL`: a queue pair has failed in a way that may leave no completion behind. Those by which a peer's requests are refused
/// (`IBV_EVENT_QP_REQ_ERR`, `IBV_EVENT_QP_ACCESS_ERR`) are others: a peer can have them happen, and they come with an error of a request.
const PAIR_FATAL: c_uint = 1;

/// `IBV_EVENT_DEVICE_FATAL`: it has been removed, or its driver has given it up.
const FATAL: c_uint = 8;

/// An RDMA device.
#[derive(Clone)]
pub struct Device {
    raw: NonNull<ibv_device>,
    list: Arc<List>,
    name: String,
}

/// What `ibv_get_device_list` gave: its devices are there until it is freed, or opened.
struct List {
    library: &'static Library,
    raw: NonNull<*mut ibv_device>,
}

// SAFETY: nothing but a reference count of the library's changes behind these pointers, under its own lock.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}
// SAFETY: as above; the list is there as long as the device is.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A device that is open.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

struct Inner {
    library: &'static Library,
    raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: verbs may be called from all threads (InfiniBand Architecture, 10.1.2; `ibv_open_device(3)`).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What a port says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether it carries packets (InfiniBand Architecture, 7.2.7).
    pub is_active: bool,
    /// The largest packet that it carries now, in bytes of payload.
    pub mtu: u32,
    /// Its local identifier; 0 under RoCE.
    pub lid: u16,
}

/// A GID of a local port, which packets are sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceGid {
    /// The number of the port, from 1.
    pub port: u8,
    /// The index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID at that index.
    pub gid: Ipv6Addr,
}

impl Device {
    pub(crate) fn all(library: &'static Library, list: *mut *mut ibv_device, count: usize) -> Vec<Self> {
        let Some(raw) = NonNull::new(list) else {
            return Vec::new();
        };
        let list = Arc::new(List { library, raw });
        let device = |index| {
            // SAFETY: the list has `count` entries.
            let raw = NonNull::new(unsafe { raw.add(index).read() })?;
            // SAFETY: an entry of the list, which is not freed yet; its name is in the entry.
            let name = unsafe { CStr::from_ptr((library.get_device_name)(raw.as_ptr())) };
            Some(Self { raw, list: Arc::clone(&list), name: name.to_string_lossy().into_owned() })
        };
        (0..count).filter_map(device).collect()
    }

    /// Its name, such as `mlx5_2`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where the process has no right to, or the device is another network namespace's.
    pub fn open(&self) -> Result<Context, Error> {
        let library = self.list.library;
        // SAFETY: the list, and so the device in it, is still there.
        let raw = unsafe { (library.open_device)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Open, &self.name))?;
        let opened = Inner { library, raw, name: self.name.clone() };
        // One of several may have taken an event between our look and our call.
        fcntl(opened.events(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| Error::returned(Call::Open, &self.name, errno as i32))?;
        Ok(Context(Arc::new(opened)))
    }
}

impl Context {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What a port, from 1, says of itself.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has no such port or is gone.
    pub fn query_port(&self, number: u8) -> Result<PortAttributes, Error> {
        // SAFETY: a structure of numbers.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: both are there during the call, which fills a beginning of the structure.
        let errno = unsafe { (self.library().query_port)(self.raw(), number, &raw mut attributes) };
        if errno != 0 {
            return Err(Error::returned(Call::Query, self.name(), errno));
        }
        Ok(PortAttributes {
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu: bytes_of(attributes.active_mtu),
            lid: attributes.lid,
        })
    }

    /// The index of the interface that a row of a port's GID table belongs to, in that interface's network namespace. `None` if there is none, or libibverbs
    /// (before rdma-core 32) or the kernel does not tell.
    pub fn interface_index(&self, port: u8, gid_index: u8) -> Option<u32> {
        let mut entry = GidEntry::default();
        let size = size_of::<GidEntry>();
        let query = self.library().query_gid_ex?;
        // SAFETY: both are there during the call, which fills as much of the structure as it is told that there is.
        let errno = unsafe { query(self.raw(), port.into(), gid_index.into(), &raw mut entry, 0, size) };
        (errno == 0 && entry.interface != 0).then_some(entry.interface)
    }

    /// Readable when the device has an event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.0.events()
    }

    /// Takes note of the device's next event, if there is one: the number of the queue that can be used no more, or whose pair cannot.
    ///
    /// # Errors
    ///
    /// [`Error`], if it is that the device is gone: its queues say nothing any more then.
    pub(crate) fn next_event(&self) -> Result<Option<u64>, Error> {
        let mut event = AsyncEvent::default();
        // SAFETY: both are there during the call.
        if unsafe { (self.library().get_async_event)(self.raw(), &raw mut event) } != 0 {
            return match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                errno => Err(Error::returned(Call::Event, self.name(), errno as i32)),
            };
        }
        let kind = event.kind;
        let element = event.element as usize;
        let number = match kind {
            // SAFETY: it is of a queue, which is there, or its last holder waits for what is next.
            QUEUE_ERROR => Some(unsafe { (*with_exposed_provenance::<ibv_cq>(element)).cq_context }),
            // SAFETY: it is of a pair, of which the same holds.
            PAIR_FATAL => Some(unsafe { (*with_exposed_provenance::<ibv_qp>(element)).qp_context }),
            _ => None,
        };
        // SAFETY: once for the one event. What it is of is there, or its last holder waits for this.
        unsafe { (self.library().ack_async_event)(&raw mut event) };
        match kind {
            FATAL => Err(Error::returned(Call::Event, self.name(), libc::ENODEV)),
            // Of a port: writes fail, and say why.
            _ => Ok(number.map(|number| number.addr() as u64)),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.0.library
    }
}

impl Inner {
    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and with it its file.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) }
    }
}

/// A path MTU in bytes: 256 to 4096 (InfiniBand Architecture, 9.4.3).
fn bytes_of(mtu: ibv_mtu::Type) -> u32 {
    128 << mtu.clamp(ibv_mtu::IBV_MTU_256, ibv_mtu::IBV_MTU_4096)
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: as it was given, once. What is open has been counted by itself.
        unsafe { (self.library.free_device_list)(self.raw.as_ptr()) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: everything of this context holds it, so nothing is left. Nothing can be done about a failure.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
