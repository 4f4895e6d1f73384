//! A stand-in for a GPU: memory behind a file descriptor (memfd), which the kernel exports as a
//! dma-buf (udmabuf), and whose address processors and devices may use or not.
#![allow(unsafe_code, reason = "maps memory, and promises what a GPU's memory promises")]

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use multinet_client::{DmaBuf, Gpu, GpuError, GpuMemory, HostMemory};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// The mapping at the memory's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The memory itself, as if a kernel module resolved the GPU's addresses.
    Memory,
    /// Pages that neither the processor nor a device may access.
    Nothing,
}

/// The stand-in for a GPU.
#[derive(Clone, Debug)]
pub(crate) struct StandIn(Arc<State>);

#[derive(Debug)]
struct State {
    name: String,
    pci_address: Option<&'static str>,
    at: At,
    /// The longest allocation that succeeds.
    room: usize,
    flushes: AtomicU64,
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct Memory {
    gpu: StandIn,
    file: File,
    start: NonNull<u8>,
    length: NonZeroUsize,
    mapped: NonZeroUsize,
}

// SAFETY: the value is only an address; the bytes are accessed through the file.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const PAGE: usize = 4096;

mod call {
    #![allow(missing_docs, reason = "the macro makes it public")]
    nix::ioctl_write_ptr!(udmabuf_create, b'u', 0x42, super::Create);
}

/// `struct udmabuf_create` of `<linux/udmabuf.h>`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

impl StandIn {
    /// Returns a GPU with this name.
    pub(crate) fn new(name: &str, at: At) -> Self {
        Self::with(name, None, at, usize::MAX)
    }

    /// Returns a GPU whose allocations are limited.
    pub(crate) fn small(name: &str, at: At, room: usize) -> Self {
        Self::with(name, None, at, room)
    }

    /// Returns a GPU with a PCI address.
    pub(crate) fn plugged_in(name: &str, pci_address: &'static str, at: At) -> Self {
        Self::with(name, Some(pci_address), at, usize::MAX)
    }

    fn with(name: &str, pci_address: Option<&'static str>, at: At, room: usize) -> Self {
        let (flushes, is_broken) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(State { name: name.to_owned(), pci_address, at, room, flushes, is_broken }))
    }

    /// Returns the GPU for the library.
    pub(crate) fn gpu(&self) -> Arc<dyn Gpu> {
        Arc::new(self.clone())
    }

    /// Makes reads fail, or succeed again.
    pub(crate) fn set_broken(&self, is_broken: bool) {
        self.0.is_broken.store(is_broken, Ordering::Relaxed);
    }

    /// Returns the number of flushes so far.
    pub(crate) fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }

    fn new_memory(&self, length: NonZeroUsize) -> io::Result<Memory> {
        let mapped = length.saturating_add(length.get().wrapping_neg() % PAGE);
        let fd = memfd_create("stand-in", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_len(mapped.get() as u64)?;
        // udmabuf requires this seal.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        let start = match self.0.at {
            At::Memory => {
                let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
                // SAFETY: a new mapping, through which only devices write.
                unsafe { mmap(None, mapped, protection, MapFlags::MAP_SHARED, &file, 0) }
            }
            // SAFETY: new pages, which may not be accessed.
            At::Nothing => unsafe {
                mmap_anonymous(None, mapped, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)
            },
        };
        Ok(Memory { gpu: self.clone(), file, start: start?.cast(), length, mapped })
    }
}

impl Gpu for StandIn {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn pci_address(&self) -> Option<&str> {
        self.0.pci_address
    }

    fn allocate(&self, length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError> {
        if length.get() > self.0.room {
            return Err(GpuError::new(format!("it has {} bytes, not {length}", self.0.room)));
        }
        let memory = self.new_memory(length).map_err(|error| GpuError::new(error.to_string()))?;
        Ok(Arc::new(memory))
    }

    fn host(&self, length: NonZeroUsize) -> Result<HostMemory, GpuError> {
        let mut bytes = vec![0_u8; length.get()].into_boxed_slice();
        let start = NonNull::new(bytes.as_mut_ptr()).ok_or_else(|| GpuError::new("no memory"))?;
        // SAFETY: the owner keeps the bytes in place, and does not access them any more.
        Ok(unsafe { HostMemory::new(start, length, bytes) })
    }
}

// SAFETY: the pages stay mapped as long as the value lives, and the export covers nothing else.
unsafe impl GpuMemory for Memory {
    fn gpu(&self) -> &dyn Gpu {
        &self.gpu
    }

    fn address(&self) -> usize {
        self.start.addr().get()
    }

    fn length(&self) -> usize {
        self.length.get()
    }

    fn export(&self) -> Result<DmaBuf, GpuError> {
        let failed = |error: io::Error| GpuError::new(format!("/dev/udmabuf: {error}"));
        let device = OpenOptions::new().read(true).write(true).open("/dev/udmabuf").map_err(failed)?;
        let memfd = u32::try_from(self.file.as_raw_fd()).map_err(|error| GpuError::new(error.to_string()))?;
        let create = Create { memfd, flags: 1, offset: 0, size: self.mapped.get() as u64 };
        // SAFETY: the structure is that of the call, which only reads it.
        let fd: RawFd = unsafe { call::udmabuf_create(device.as_raw_fd(), &raw const create) }
            .map_err(|errno| failed(errno.into()))?;
        // SAFETY: a new file descriptor without another owner.
        Ok(DmaBuf { fd: unsafe { OwnedFd::from_raw_fd(fd) }, offset: 0 })
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        if self.gpu.0.is_broken.load(Ordering::Relaxed) {
            return Err(GpuError::new("it is broken"));
        }
        self.file.read_exact_at(bytes, offset as u64).map_err(|error| GpuError::new(error.to_string()))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.file.write_all_at(bytes, offset as u64).map_err(|error| GpuError::new(error.to_string()))
    }

    fn flush(&self) -> Result<(), GpuError> {
        self.gpu.0.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        let _ = unsafe { munmap(self.start.cast(), self.mapped.get()) };
    }
}
