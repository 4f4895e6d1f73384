//! Memory of the process that is sent without a copy.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use multinet_memory::HostMemory;
use rdma_sys::ibv_sge;

use crate::error::{Call, Error};
use crate::memory::registrations::{Registrations, drop_in_background};
use crate::memory::{Memory, ProtectionDomain, register};

/// Memory of the process to send from without a copy. A device reads it under the protection domain
/// of each connection that sends from it. Dropping the last handle of registered memory frees it on
/// a background thread, since that takes a while.
///
/// [`bytes_mut`](Self::bytes_mut) needs the only handle, and the poster of a write keeps one until
/// the write has completed. Code that writes by other means while a device reads sends a mixture.
#[derive(Debug)]
pub struct Pages(ManuallyDrop<PagesParts>);

#[derive(Debug)]
struct PagesParts {
    // Dropped before the memory is freed.
    registrations: Registrations,
    memory: Backing,
}

/// The memory itself, by its owner: this crate, or the program or a driver.
#[derive(Debug)]
enum Backing {
    Own(Memory),
    Host(HostMemory),
}

impl Pages {
    /// Allocates `length` zeroed bytes.
    ///
    /// # Errors
    ///
    /// If the machine, or the limit of the container, has no memory left.
    pub fn new(length: NonZeroUsize) -> std::io::Result<Self> {
        Ok(Self::with_backing(Backing::Own(Memory::new(length)?)))
    }

    fn with_backing(memory: Backing) -> Self {
        Self(ManuallyDrop::new(PagesParts { registrations: Registrations::default(), memory }))
    }

    /// Returns the bytes of the memory, for reading.
    pub fn bytes(&self) -> &[u8] {
        match &self.0.memory {
            // SAFETY: our own pages, which are initialized. They are only written to through
            // `bytes_mut`, which borrows `self` exclusively.
            Backing::Own(memory) => unsafe {
                NonNull::slice_from_raw_parts(memory.start(), memory.length()).as_ref()
            },
            Backing::Host(memory) => memory.bytes(),
        }
    }

    /// Returns the bytes of the memory, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0.memory {
            // SAFETY: as above, and this is the only handle. A device that still reads, contrary to
            // the documentation, reads a mixture.
            Backing::Own(memory) => unsafe {
                NonNull::slice_from_raw_parts(memory.start(), memory.length()).as_mut()
            },
            Backing::Host(memory) => memory.bytes_mut(),
        }
    }

    /// Registers the memory under a domain, if it is not registered yet. Ends registrations under
    /// retired domains.
    ///
    /// # Errors
    ///
    /// [`Error`], for example if too little memory may be locked.
    pub fn register(&self, domain: &ProtectionDomain) -> Result<(), Error> {
        let (start, length) = self.location();
        // No access flags: devices only read the memory.
        self.0.registrations.ensure(domain, || register(domain, Call::REGISTER, start, length, 0))
    }

    /// Returns a range as a scatter/gather entry. The memory has to be registered under the domain.
    pub(crate) fn sge(&self, domain: &ProtectionDomain, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let (start, length) = self.location();
        self.0.registrations.sge(domain, (start.addr().get(), length), range)
    }

    fn location(&self) -> (NonNull<u8>, usize) {
        match &self.0.memory {
            Backing::Own(memory) => (memory.start(), memory.length()),
            Backing::Host(memory) => (memory.start(), memory.length().get()),
        }
    }
}

impl From<HostMemory> for Pages {
    fn from(memory: HostMemory) -> Self {
        Self::with_backing(Backing::Host(memory))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the parts are not used after this.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        if !parts.registrations.is_empty() {
            drop_in_background(parts);
        }
    }
}
