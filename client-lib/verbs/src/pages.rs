//! Memory that programs write to, and that devices read where it lies.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use multinet_memory::HostMemory;
use rdma_sys::ibv_sge;

use crate::error::{Call, Error};
use crate::memory::{Memory, ProtectionDomain, register};
use crate::registrations::{Registrations, drop_in_background};

/// Memory of this process. A device reads it under the protection domain of each connection that sends from it. What goes with the last handle is let go of by a
/// thread of its own, as it takes a while.
///
/// Whoever writes to it while a device reads sends a mixture: [`bytes_mut`](Self::bytes_mut) needs the only handle, and who posts a write holds one until it has
/// completed.
pub struct Pages(ManuallyDrop<Parts>);

struct Parts {
    // Ended before the memory is given back.
    registrations: Registrations,
    memory: Backing,
}

/// Whose it is.
enum Backing {
    Own(Memory),
    Host(HostMemory),
}

impl Pages {
    /// So many bytes, all zero.
    ///
    /// # Errors
    ///
    /// If the machine, or this container's limit, has no memory left.
    pub fn new(length: NonZeroUsize) -> std::io::Result<Self> {
        Ok(Self::with_backing(Backing::Own(Memory::new(length)?)))
    }

    fn with_backing(memory: Backing) -> Self {
        Self(ManuallyDrop::new(Parts { registrations: Registrations::default(), memory }))
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        match &self.0.memory {
            // SAFETY: our pages, initialized; they are written to through `bytes_mut` only, which borrows all of this.
            Backing::Own(memory) => unsafe {
                NonNull::slice_from_raw_parts(memory.start(), memory.length()).as_ref()
            },
            Backing::Host(memory) => memory.bytes(),
        }
    }

    /// The same, to be written to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0.memory {
            // SAFETY: as above, and nobody else has a handle. A device that still reads, against what is said above, reads a mixture.
            Backing::Own(memory) => unsafe {
                NonNull::slice_from_raw_parts(memory.start(), memory.length()).as_mut()
            },
            Backing::Host(memory) => memory.bytes_mut(),
        }
    }

    /// Has it registered under a domain, if it is not yet. Domains that have been retired are forgotten.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where too little memory may be locked.
    pub fn register(&self, domain: &ProtectionDomain) -> Result<(), Error> {
        let (start, length) = self.location();
        // Devices read, and nobody writes.
        self.0.registrations.ensure(domain, || register(domain, Call::Register, start, length, 0))
    }

    /// A part, as a work request names it. It has to be registered.
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
        // SAFETY: nobody looks at it any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        if !parts.registrations.is_empty() {
            drop_in_background(parts);
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.location().1)
    }
}
