//! Protection domains and the memory that belongs to them.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use crate::context::Context;
use crate::error::{Call, Error};
use crate::library::bits;

/// The longest part of a work request, in bytes. Reliable connections allow twice as much, of which devices use the highest bit otherwise.
const LONGEST: u32 = 1 << 30;

/// A protection domain: queue pairs reach the memory of their own only.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Allocated>);

struct Allocated {
    context: Context,
    raw: NonNull<ibv_pd>,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

/// Memory that the device, and whoever is told its key, may write to. A peer that still writes when the last handle is dropped gets an
/// access error.
#[derive(Clone, Debug)]
pub struct Region(Arc<Registered>);

struct Registered {
    raw: NonNull<ibv_mr>,
    // Given back after the registration has ended.
    memory: Memory,
    // Between threads of this process. No lock keeps a device out.
    access: RwLock<()>,
    domain: Domain,
}

// SAFETY: verbs may be called from all threads, and the memory is only copied from and to, under a lock.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Pages of our own.
struct Memory {
    start: NonNull<u8>,
    length: NonZeroUsize,
}

/// A place in a region, for others to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins, in the address space of the region's owner.
    pub address: u64,
    /// The region's key.
    pub key: u32,
}

impl Domain {
    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has none left.
    pub fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Domain, context.name()))?;
        Ok(Self(Arc::new(Allocated { context: context.clone(), raw })))
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    /// So many bytes of memory, all zero, registered for writing by ourselves and by others.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where too little memory may be locked.
    pub fn register(&self, length: NonZeroUsize) -> Result<Region, Error> {
        let name = self.context().name();
        let memory =
            Memory::new(length).map_err(|errno| Error::returned(Call::Allocate, name, errno as i32))?;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let library = self.context().library();
        // SAFETY: the pages are ours, and stay until the registration has ended.
        let raw =
            unsafe { (library.reg_mr)(self.raw(), memory.start.as_ptr().cast(), length.get(), bits(access)) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Register, name))?;
        Ok(Region(Arc::new(Registered { raw, memory, access: RwLock::default(), domain: self.clone() })))
    }
}

impl Region {
    /// Copies bytes to an offset.
    ///
    /// # Errors
    ///
    /// [`Error`], if they are not all within the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let start = self.at(offset, bytes.len())?;
        let _alone = self.0.access.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: within our pages; `bytes` is no part of them, because they are never lent out.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes from an offset.
    ///
    /// # Errors
    ///
    /// [`Error`], if there are not that many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let start = self.at(offset, bytes.len())?;
        let _unchanged = self.0.access.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above. A device that writes meanwhile leaves a mixture, of bytes that are all valid.
        unsafe { start.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// The place at an offset, for others to write to.
    ///
    /// # Errors
    ///
    /// [`Error`], if it is not within the region.
    pub fn remote(&self, offset: usize) -> Result<Remote, Error> {
        let start = self.at(offset, 0)?;
        // SAFETY: registered; the key does not change.
        let key = unsafe { self.0.raw.as_ref() }.rkey;
        Ok(Remote { address: start.addr().get() as u64, key })
    }

    /// A part, as a work request names it.
    pub(crate) fn part(&self, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let length = range.end.checked_sub(range.start).ok_or_else(|| self.outside())?;
        let start = self.at(range.start, length)?;
        // SAFETY: as above.
        let lkey = unsafe { self.0.raw.as_ref() }.lkey;
        let length =
            u32::try_from(length).ok().filter(|&length| length <= LONGEST).ok_or_else(|| self.outside())?;
        Ok(ibv_sge { addr: start.addr().get() as u64, length, lkey })
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.domain
    }

    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, Error> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.0.memory.length.get()) {
            return Err(self.outside());
        }
        // SAFETY: not beyond the end of our pages.
        Ok(unsafe { self.0.memory.start.add(offset) })
    }

    fn outside(&self) -> Error {
        Error::returned(Call::Reach, self.domain().context().name(), libc::EINVAL)
    }
}

impl Memory {
    fn new(length: NonZeroUsize) -> nix::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new pages, which are nobody else's.
        let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Self { start: start.cast(), length })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own pages, which nothing refers to any more. Nothing can be done about a failure.
        let _ = unsafe { munmap(self.start.cast(), self.length.get()) };
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: no pair sends from it any more, since pairs hold what they send from. When this returns the device has done with the
        // pages, and refuses what peers still write.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: everything of this domain holds it, so nothing is left.
        let _ = unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Allocated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.context.fmt(f)
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of {:?}", self.memory.length, self.domain)
    }
}
