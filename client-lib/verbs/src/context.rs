//! RDMA devices, the queries to an open device, and its asynchronous events.
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

/// `IBV_EVENT_QP_FATAL`: a queue pair has failed, perhaps without a completion. The events for
/// refused requests of a peer (`IBV_EVENT_QP_REQ_ERR`, `IBV_EVENT_QP_ACCESS_ERR`) are ignored: a
/// peer can cause them, and a request of ours fails with them.
const PAIR_FATAL: c_uint = 1;

/// `IBV_EVENT_DEVICE_FATAL`: the device was removed, or its driver has given it up.
const FATAL: c_uint = 8;

/// An RDMA device of this machine, not open yet.
#[derive(Clone)]
pub struct Device {
    raw: NonNull<ibv_device>,
    list: Arc<List>,
    name: String,
}

/// The result of `ibv_get_device_list`, whose devices live until it is freed.
struct List {
    library: &'static Library,
    raw: NonNull<*mut ibv_device>,
}

// SAFETY: behind these pointers, only a reference count of the library changes, under a lock of its
// own.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}
// SAFETY: as above; the list lives as long as the device.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An open RDMA device. A clone is another handle of the same context.
#[derive(Clone, Debug)]
pub struct Context(Arc<ContextInner>);

#[derive(Debug)]
struct ContextInner {
    library: &'static Library,
    raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: verbs may be called from any thread (InfiniBand Architecture, 10.1.2;
// `ibv_open_device(3)`).
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

/// The attributes of a port that connections depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether the port carries packets (InfiniBand Architecture, 7.2.7).
    pub is_active: bool,
    /// The current path MTU of the port, in bytes of payload.
    pub mtu: u32,
    /// The local identifier of the port; 0 under RoCE.
    pub lid: u16,
}

/// A GID of a local port that packets are sent from, with its place in the port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceGid {
    /// The number of the port, from 1.
    pub port: u8,
    /// The index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID at that index, 16 bytes.
    pub gid: Ipv6Addr,
}

impl Library {
    /// Lists the RDMA devices that this process may see, in the kernel's order.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if the kernel has no RDMA.
    pub fn devices(&'static self) -> Result<Vec<Device>, Error> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        let raw = NonNull::new(list).ok_or_else(|| Error::last(Call::LIST, ""))?;
        let list = Arc::new(List { library: self, raw });
        let device = |index| {
            // SAFETY: the list has `count` entries.
            let raw = NonNull::new(unsafe { raw.add(index).read() })?;
            // SAFETY: an entry of the list, which is not freed yet and contains the name.
            let name = unsafe { CStr::from_ptr((self.get_device_name)(raw.as_ptr())) };
            Some(Device { raw, list: Arc::clone(&list), name: name.to_string_lossy().into_owned() })
        };
        Ok((0..usize::try_from(count).unwrap_or(0)).filter_map(device).collect())
    }
}

impl Device {
    /// Returns the name of the RDMA device, such as `mlx5_2`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the device.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if the process lacks the permission, or if the device belongs to
    /// another network namespace.
    pub fn open(&self) -> Result<Context, Error> {
        let library = self.list.library;
        // SAFETY: the list is alive, and so is the device in it.
        let raw = unsafe { (library.open_device)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::OPEN, &self.name))?;
        let opened = ContextInner { library, raw, name: self.name.clone() };
        // Non-blocking, since another thread may take the event between `poll` and
        // `ibv_get_async_event`.
        fcntl(opened.events(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| Error::returned(Call::OPEN, &self.name, errno as i32))?;
        Ok(Context(Arc::new(opened)))
    }
}

impl Context {
    /// Returns the name of the open RDMA device, such as `mlx5_2`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the attributes of a port, counted from 1.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has no such port or is gone.
    pub fn query_port(&self, number: u8) -> Result<PortAttributes, Error> {
        // SAFETY: a structure of numbers.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: both live during the call, which fills a prefix of the structure.
        let errno = unsafe { (self.library().query_port)(self.raw(), number, &raw mut attributes) };
        if errno != 0 {
            return Err(Error::returned(Call::QUERY, self.name(), errno));
        }
        Ok(PortAttributes {
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu: bytes_of(attributes.active_mtu),
            lid: attributes.lid,
        })
    }

    /// Returns the index of the interface that a GID belongs to, in that interface's network
    /// namespace. It is `None` if there is none, or if libibverbs (before rdma-core 32) or the
    /// kernel does not say.
    pub fn interface_index(&self, port: u8, gid_index: u8) -> Option<u32> {
        let mut entry = GidEntry::default();
        let size = size_of::<GidEntry>();
        let query = self.library().query_gid_ex?;
        // SAFETY: both live during the call, which fills as many bytes of the structure as it is
        // told.
        let errno = unsafe { query(self.raw(), port.into(), gid_index.into(), &raw mut entry, 0, size) };
        (errno == 0 && entry.interface != 0).then_some(entry.interface)
    }

    /// Returns a file that is readable while the device has an asynchronous event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.0.events()
    }

    /// Takes the next asynchronous event, if there is one. Returns the number of the completion
    /// queue that has failed, or whose queue pair has.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone. Its completion queues do not report any more then.
    pub(crate) fn next_event(&self) -> Result<Option<u64>, Error> {
        let mut event = AsyncEvent::default();
        // SAFETY: both live during the call.
        if unsafe { (self.library().get_async_event)(self.raw(), &raw mut event) } != 0 {
            return match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                errno => Err(Error::returned(Call::EVENT, self.name(), errno as i32)),
            };
        }
        let kind = event.kind;
        let element = event.element as usize;
        let number = match kind {
            // SAFETY: the event's queue is alive: its destruction waits until the event is
            // acknowledged, below.
            QUEUE_ERROR => Some(unsafe { (*with_exposed_provenance::<ibv_cq>(element)).cq_context }),
            // SAFETY: as above, for the event's queue pair.
            PAIR_FATAL => Some(unsafe { (*with_exposed_provenance::<ibv_qp>(element)).qp_context }),
            _ => None,
        };
        // SAFETY: acknowledges the one event, whose object is alive until then.
        unsafe { (self.library().ack_async_event)(&raw mut event) };
        match kind {
            FATAL => Err(Error::returned(Call::EVENT, self.name(), libc::ENODEV)),
            // Events of a port need no handling: writes fail with the reason.
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

impl ContextInner {
    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and with it its file.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) }
    }
}

/// Converts a path MTU of verbs to bytes, 256 to 4096 (InfiniBand Architecture, 9.4.3).
fn bytes_of(mtu: ibv_mtu::Type) -> u32 {
    128 << mtu.clamp(ibv_mtu::IBV_MTU_256, ibv_mtu::IBV_MTU_4096)
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: freed once, as it was returned. Open devices hold references of their own.
        unsafe { (self.library.free_device_list)(self.raw.as_ptr()) };
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: every object of this context holds it, so none is left. A failure cannot be
        // handled.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}
