//! Protection domains and their memory: regions to send from, and buffers that a peer writes to.
#![allow(unsafe_code, reason = "talks to verbs")]

pub(crate) mod registrations;

use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use parking_lot::RwLock;
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use crate::context::Context;
use crate::error::{Call, Error};
use crate::library::bits;
use registrations::DomainRegistrations;

/// The longest scatter/gather entry, in bytes. Reliable connections allow twice as much, but some
/// devices use the highest bit for something else.
pub(crate) const MAX_SGE_BYTES: u32 = 1 << 30;

/// The length from which memory may use huge pages, where the kernel provides them by itself
/// (transparent huge pages). Reserved huge pages (hugetlbfs) are not requested: a container without
/// a share of them is killed when it touches one.
const HUGE_PAGE: usize = 2 << 20;

/// `IBV_ACCESS_RELAXED_ORDERING`, which older headers lack. A peer's writes may reach memory in any
/// order, so that PCIe bridges can be faster. The program reads the memory only after a completion,
/// which is always ordered after its writes. Devices without relaxed ordering ignore the flag.
const RELAXED_ORDERING: u32 = 1 << 20;

/// A protection domain. Its queue pairs reach only the memory that is registered under it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<DomainInner>);

#[derive(Debug)]
struct DomainInner {
    context: Context,
    raw: NonNull<ibv_pd>,
    is_retired: AtomicBool,
    registrations: DomainRegistrations,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

/// Memory that this process writes to and sends from. Peers cannot reach it.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    registered: Registered,
    // Orders the threads of this process that write.
    access: RwLock<()>,
}

/// Memory that one peer writes to, once it has been told the key, and nothing else does. A peer
/// that still writes after the last handle was dropped gets an access error.
#[derive(Clone, Debug)]
pub struct ReceiveBuffer(Arc<Registered>);

/// Bytes that a peer has written, read in place.
///
/// They do not change as long as the peer keeps to the protocol, which forbids to write there
/// before the slot is released. A peer that breaks it can change them while they are read, as with
/// any shared memory. All values of the bytes are valid, and the peer reaches nothing else of this
/// process. So copy out whatever decides something ([`ReceiveBuffer::read`]) before looking at it.
#[derive(Clone, Debug)]
pub struct ReceivedBytes {
    buffer: ReceiveBuffer,
    range: Range<usize>,
}

#[derive(Debug)]
struct Registered {
    raw: NonNull<ibv_mr>,
    // Freed after the registration has ended.
    memory: Memory,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from any thread. The memory of a region is only copied to, under a
// lock. That of a receive buffer is only read.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Registers memory of this process. The caller keeps it until the registration has ended.
pub(crate) fn register(
    domain: &ProtectionDomain,
    call: Call,
    start: NonNull<u8>,
    length: usize,
    access: u32,
) -> Result<NonNull<ibv_mr>, Error> {
    let register = domain.context().library().reg_mr;
    relaxed(access, |access| {
        // SAFETY: the kernel checks that the range is mapped, and the caller keeps it.
        let raw = unsafe { register(domain.raw(), start.as_ptr().cast(), length, bits(access)) };
        NonNull::new(raw).ok_or_else(|| Error::last(call, domain.context().name()))
    })
}

/// Registers memory with relaxed ordering, if peers write to it. Kernels before 5.7 refuse the
/// flag, which is then left out.
pub(crate) fn relaxed<T>(access: u32, register: impl Fn(u32) -> Result<T, Error>) -> Result<T, Error> {
    if access & ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 == 0 {
        return register(access);
    }
    match register(access | RELAXED_ORDERING) {
        Err(error) if error.errno() == Some(libc::EINVAL) => register(access),
        outcome => outcome,
    }
}

/// Anonymous pages of this process, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: NonZeroUsize,
}

/// An address in the registered memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The address of a byte, in the peer's address space.
    pub address: u64,
    /// The remote key of the registered memory (`rkey`).
    pub key: u32,
}

impl ProtectionDomain {
    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has no protection domain left.
    pub fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::PROTECTION_DOMAIN, context.name()))?;
        Ok(Self(Arc::new(DomainInner {
            context: context.clone(),
            raw,
            is_retired: AtomicBool::new(false),
            registrations: DomainRegistrations::default(),
        })))
    }

    /// Returns the open device that the protection domain belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Notes that no queue pair sends under this domain any more. Registrations for sending alone
    /// then need not be kept, and no new ones are made.
    pub fn retire(&self) {
        self.0.is_retired.store(true, Ordering::Relaxed);
    }

    /// Retires the domain, and ends the registrations for sending alone. Otherwise the device would
    /// stay open as long as the program keeps the memory, and with some drivers the removal of a
    /// device waits for that. It blocks: not for an async task.
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

    /// Allocates and registers zeroed memory to send from.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if too little memory may be locked.
    pub fn memory_region(&self, length: NonZeroUsize) -> Result<MemoryRegion, Error> {
        let registered = self.allocate(length, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)?;
        Ok(MemoryRegion(Arc::new(RegionInner { registered, access: RwLock::default() })))
    }

    /// Allocates and registers zeroed memory for a peer to write to.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if too little memory may be locked.
    pub fn receive_buffer(&self, length: NonZeroUsize) -> Result<ReceiveBuffer, Error> {
        // Remote write requires local write (InfiniBand Architecture, 10.6.6.2).
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        Ok(ReceiveBuffer(Arc::new(self.allocate(length, access)?)))
    }

    fn allocate(&self, length: NonZeroUsize, access: ibv_access_flags) -> Result<Registered, Error> {
        let failed = |errno| Error::returned(Call::ALLOCATE, self.context().name(), errno as i32);
        let memory = Memory::new(length).map_err(failed)?;
        Ok(Registered {
            raw: register(self, Call::REGISTER, memory.start, memory.length.get(), access.0)?,
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
    /// [`Error`], if they do not fit within the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let start = self.0.registered.at(offset, bytes.len())?;
        let _alone = self.0.access.write();
        // SAFETY: the range is within our pages. `bytes` does not overlap them, since they are
        // never borrowed.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Returns a range of the region as a scatter/gather entry of a work request.
    pub(crate) fn sge(&self, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let registered = &self.0.registered;
        let length = range.end.checked_sub(range.start).ok_or_else(|| registered.outside())?;
        let start = registered.at(range.start, length)?;
        // SAFETY: the memory is registered, and its key never changes.
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
    /// [`Error`], if the range is not within the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let start = self.0.at(offset, bytes.len())?;
        // SAFETY: the range is within our pages. `bytes` does not overlap them, since they are
        // borrowed for reading only. A device that writes meanwhile leaves a mixture of bytes, all
        // of which are valid.
        unsafe { start.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Returns the bytes that a peer has written to a range, to be read in place.
    ///
    /// # Errors
    ///
    /// [`Error`], if the range is not within the memory.
    pub fn received(&self, range: Range<usize>) -> Result<ReceivedBytes, Error> {
        let length = range.end.checked_sub(range.start).ok_or_else(|| self.0.outside())?;
        self.0.at(range.start, length)?;
        Ok(ReceivedBytes { buffer: self.clone(), range })
    }

    /// Returns the address of an offset for a peer to write to.
    ///
    /// # Errors
    ///
    /// [`Error`], if the offset is not within the memory.
    pub fn remote(&self, offset: usize) -> Result<RemoteAddress, Error> {
        let start = self.0.at(offset, 0)?;
        // SAFETY: the memory is registered, and its key never changes.
        let key = unsafe { self.0.raw.as_ref() }.rkey;
        Ok(RemoteAddress { address: start.addr().get() as u64, key })
    }
}

impl Deref for ReceivedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = &self.buffer.0.memory;
        // SAFETY: the range was checked to be within the pages. They are initialized, live as long
        // as `self`, and nothing in this process writes to them. A peer's device can, if the peer
        // breaks the protocol. All values of the bytes are valid, and the documentation says that
        // they may change.
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
        // SAFETY: the offset is not beyond the end of our pages.
        Ok(unsafe { self.memory.start.add(offset) })
    }

    fn outside(&self) -> Error {
        Error::returned(Call::REACH, self.domain.context().name(), libc::EINVAL)
    }
}

// SAFETY: the value is only an address. Its owner decides what is done with the bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(length: NonZeroUsize) -> nix::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: creates new pages, which nothing else refers to.
        let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }?;
        if length.get() >= HUGE_PAGE {
            // Huge pages mean fewer address translations. Without them, only speed is lost.
            // SAFETY: our own new pages; only their kind changes.
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
        // SAFETY: our own pages, which nothing refers to any more. A failure cannot be handled.
        let _ = unsafe { munmap(self.start.cast(), self.length.get()) };
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: after the call the device refuses the peer's writes and fails our requests, so it
        // does not use the pages any more.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: every object of this domain holds it, so none is left.
        let _ = unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
    }
}
