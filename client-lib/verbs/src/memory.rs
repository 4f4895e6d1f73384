//! Protection domains and the memory that belongs to them: what we send from, and what a peer writes to.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use crate::context::Context;
use crate::error::{Call, Error};
use crate::library::bits;
use crate::registrations::DomainRegistrations;

/// The longest part of a work request, in bytes. Reliable connections allow twice as much, of which devices use the highest bit otherwise.
pub(crate) const MAX_SGE_BYTES: u32 = 1 << 30;

/// From here on memory may have huge pages, if the kernel gives any by itself. Those that are set aside (hugetlbfs) are not asked for: a container without a
/// share of them is killed when it touches one.
const HUGE_PAGE: usize = 2 << 20;

/// `IBV_ACCESS_RELAXED_ORDERING`, which older headers lack: a peer's writes may come to memory in any order, which lets PCIe bridges be faster. Nothing
/// is looked at before the completion has come that tells of it, and that comes last. Devices that have no such order pass it over.
const RELAXED_ORDERING: u32 = 1 << 20;

/// A protection domain: queue pairs reach the memory of their own only.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<DomainInner>);

struct DomainInner {
    context: Context,
    raw: NonNull<ibv_pd>,
    is_retired: AtomicBool,
    registrations: DomainRegistrations,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

/// Memory that we write to and send from. Peers cannot reach it.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    registered: Registered,
    // Between threads of this process.
    access: RwLock<()>,
}

/// Memory that a peer writes to, once it is told the key, and nobody else. A peer that still writes when the last handle is dropped gets an
/// access error.
#[derive(Clone, Debug)]
pub struct ReceiveBuffer(Arc<Registered>);

/// Bytes that a peer has written.
///
/// They stay as they are as long as the peer keeps to what was agreed with it, which is not to write there before it is told to. One that
/// does not can change them under whoever reads, as anybody can with whom memory is shared; every byte is valid, and nothing else of this
/// process is in its reach. So what decides anything should be copied out ([`ReceiveBuffer::read`]) before it is looked at.
#[derive(Clone, Debug)]
pub struct ReceivedBytes {
    buffer: ReceiveBuffer,
    range: Range<usize>,
}

struct Registered {
    raw: NonNull<ibv_mr>,
    // Given back after the registration has ended.
    memory: Memory,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from all threads. Of the memory, a region's is only copied from and to, under a lock; a landing's is only read.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Registers memory, which has to stay until that has ended.
pub(crate) fn register(
    domain: &ProtectionDomain,
    call: Call,
    start: NonNull<u8>,
    length: usize,
    access: u32,
) -> Result<NonNull<ibv_mr>, Error> {
    let register = domain.context().library().reg_mr;
    relaxed(access, |access| {
        // SAFETY: the kernel checks that it is memory; the caller keeps it.
        let raw = unsafe { register(domain.raw(), start.as_ptr().cast(), length, bits(access)) };
        NonNull::new(raw).ok_or_else(|| Error::last(call, domain.context().name()))
    })
}

/// What peers write to is registered in relaxed order, unless the kernel is older than that (5.7) and refuses what it does not know.
pub(crate) fn relaxed<T>(access: u32, register: impl Fn(u32) -> Result<T, Error>) -> Result<T, Error> {
    if access & ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 == 0 {
        return register(access);
    }
    match register(access | RELAXED_ORDERING) {
        Err(error) if error.errno() == Some(libc::EINVAL) => register(access),
        outcome => outcome,
    }
}

/// Pages of our own.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: NonZeroUsize,
}

/// A place in a region, for others to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Where it begins, in the address space of the region's owner.
    pub address: u64,
    /// The region's key.
    pub key: u32,
}

impl ProtectionDomain {
    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has none left.
    pub fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::ProtectionDomain, context.name()))?;
        Ok(Self(Arc::new(DomainInner {
            context: context.clone(),
            raw,
            is_retired: AtomicBool::new(false),
            registrations: DomainRegistrations::default(),
        })))
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Nobody sends under it any more: what is only registered for that need not stay so, and nothing more is.
    pub fn retire(&self) {
        self.0.is_retired.store(true, Ordering::Relaxed);
    }

    /// Retires it, and ends what is only registered to send from: else the device would stay open as long as the program has the memory, and the kernel
    /// waits for that with devices of some drivers when they are removed. It takes a while: not for an async task.
    pub fn release(&self) {
        self.retire();
        self.0.registrations.end();
    }

    pub(crate) fn registrations(&self) -> &DomainRegistrations {
        &self.0.registrations
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.0.is_retired.load(Ordering::Relaxed)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    /// So many bytes of memory, all zero, to send from.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where too little memory may be locked.
    pub fn memory_region(&self, length: NonZeroUsize) -> Result<MemoryRegion, Error> {
        let registered = self.allocate(length, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)?;
        Ok(MemoryRegion(Arc::new(RegionInner { registered, access: RwLock::default() })))
    }

    /// So many bytes of memory, all zero, for a peer to write to.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where too little memory may be locked.
    pub fn receive_buffer(&self, length: NonZeroUsize) -> Result<ReceiveBuffer, Error> {
        // The one takes the other (InfiniBand Architecture, 10.6.6.2).
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        Ok(ReceiveBuffer(Arc::new(self.allocate(length, access)?)))
    }

    fn allocate(&self, length: NonZeroUsize, access: ibv_access_flags) -> Result<Registered, Error> {
        let failed = |errno| Error::returned(Call::Allocate, self.context().name(), errno as i32);
        let memory = Memory::new(length).map_err(failed)?;
        Ok(Registered {
            raw: register(self, Call::Register, memory.start, memory.length.get(), access.0)?,
            memory,
            domain: self.clone(),
        })
    }
}

impl MemoryRegion {
    /// Copies bytes to an offset.
    ///
    /// # Errors
    ///
    /// [`Error`], if they are not all within the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let start = self.0.registered.at(offset, bytes.len())?;
        let _alone = self.0.access.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: within our pages; `bytes` is no part of them, because they are never lent out.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// A part, as a work request names it.
    pub(crate) fn sge(&self, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let registered = &self.0.registered;
        let length = range.end.checked_sub(range.start).ok_or_else(|| registered.outside())?;
        let start = registered.at(range.start, length)?;
        // SAFETY: registered; the key does not change.
        let lkey = unsafe { registered.raw.as_ref() }.lkey;
        let length = u32::try_from(length).ok().filter(|&length| length <= MAX_SGE_BYTES);
        let length = length.ok_or_else(|| registered.outside())?;
        Ok(ibv_sge { addr: start.addr().get() as u64, length, lkey })
    }
}

impl ReceiveBuffer {
    /// Copies bytes from an offset.
    ///
    /// # Errors
    ///
    /// [`Error`], if there are not that many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let start = self.0.at(offset, bytes.len())?;
        // SAFETY: within our pages, of which `bytes` is no part, because they are lent out for reading only. A device that writes meanwhile
        // leaves a mixture, of bytes that are all valid.
        unsafe { start.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// What a peer has written to a range, where it lies.
    ///
    /// # Errors
    ///
    /// [`Error`], if the range is not within the memory.
    pub fn received(&self, range: Range<usize>) -> Result<ReceivedBytes, Error> {
        let length = range.end.checked_sub(range.start).ok_or_else(|| self.0.outside())?;
        self.0.at(range.start, length)?;
        Ok(ReceivedBytes { buffer: self.clone(), range })
    }

    /// The place at an offset, for a peer to write to.
    ///
    /// # Errors
    ///
    /// [`Error`], if it is not within the memory.
    pub fn remote(&self, offset: usize) -> Result<RemoteAddress, Error> {
        let start = self.0.at(offset, 0)?;
        // SAFETY: registered; the key does not change.
        let key = unsafe { self.0.raw.as_ref() }.rkey;
        Ok(RemoteAddress { address: start.addr().get() as u64, key })
    }
}

impl Deref for ReceivedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = &self.buffer.0.memory;
        // SAFETY: the range has been found to be within the pages, which are initialized, stay as long as this does, and are written to by
        // nobody in this process. A peer's device can write to them, if the peer breaks its word; all values of the bytes are valid, and the
        // documentation says that they may change.
        unsafe {
            NonNull::slice_from_raw_parts(memory.start.add(self.range.start), self.range.len()).as_ref()
        }
    }
}

impl Registered {
    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, Error> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.memory.length.get()) {
            return Err(self.outside());
        }
        // SAFETY: not beyond the end of our pages.
        Ok(unsafe { self.memory.start.add(offset) })
    }

    fn outside(&self) -> Error {
        Error::returned(Call::Reach, self.domain.context().name(), libc::EINVAL)
    }
}

// SAFETY: no more than an address; what may be done with the bytes is decided by who has it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(length: NonZeroUsize) -> nix::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new pages, which are nobody else's.
        let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }?;
        if length.get() >= HUGE_PAGE {
            // Fewer entries for the processor and the device to look up. Only speed is lost without.
            // SAFETY: our own new pages, of which only the kind changes.
            let _ = unsafe { madvise(start, length.get(), MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(Self { start: start.cast(), length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length.get()
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
        // SAFETY: when this returns the device has done with the pages: it refuses what peers still write, and fails what we still send.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: everything of this domain holds it, so nothing is left.
        let _ = unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for DomainInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.context.fmt(f)
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of {:?}", self.memory.length, self.domain)
    }
}
