//! What a GPU has to be able to do.
#![allow(unsafe_code, reason = "who implements it promises what devices rely on")]

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::GpuError;
use crate::host::HostMemory;

/// A GPU.
pub trait Gpu: fmt::Debug + Send + Sync {
    /// What people call it, with its place: a model and a PCI address, as a rule. The same text stands for the same GPU.
    fn name(&self) -> &str;

    /// So many bytes of its memory, all zero, that RDMA devices may reach where that is possible at all.
    ///
    /// # Errors
    ///
    /// [`GpuError`], most of all where it has no memory left.
    fn allocate(&self, length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError>;

    /// So many bytes of the machine's memory, all zero, which it reads and writes fastest.
    ///
    /// # Errors
    ///
    /// [`GpuError`], most of all where too little memory may be locked.
    fn host(&self, length: NonZeroUsize) -> Result<HostMemory, GpuError>;
}

/// Memory of a GPU.
///
/// # Safety
///
/// As long as the value lives, its address and length stay as they are, and its bytes are allocated, whether or not anybody uses them. Devices, and
/// peers through them, may write to them at any time, so nobody in this process has a reference to them. What [`export`](Self::export) gives names them and
/// no others that this process would not show to a device.
pub unsafe trait GpuMemory: fmt::Debug + Send + Sync {
    /// The GPU that it is of.
    fn gpu(&self) -> &dyn Gpu;

    /// Where it begins, in the address space that this process shares with the GPU: a device pointer.
    fn address(&self) -> usize;

    /// Its length in bytes.
    fn length(&self) -> usize;

    /// For other devices, as a dma-buf.
    ///
    /// # Errors
    ///
    /// [`GpuError`], where the GPU's driver or the kernel cannot.
    fn export(&self) -> Result<DmaBuf, GpuError>;

    /// Copies bytes from an offset, when what the program has asked the GPU to do before is done, as far as that is in order: the documentation of the
    /// implementation says what is.
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there are not that many, or the GPU has failed.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Copies bytes to an offset.
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there is no room for them, or the GPU has failed.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// What other devices have written until now, the GPU sees from now on. Some do so by themselves.
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the GPU has failed.
    fn flush(&self) -> Result<(), GpuError>;
}

/// Memory as the kernel passes it from one device to another (Linux, `Documentation/driver-api/dma-buf.rst`).
#[derive(Debug)]
pub struct DmaBuf {
    /// It names a whole allocation, whose first byte lies at the beginning of a page.
    pub fd: OwnedFd,
    /// Where in it the memory begins, in bytes.
    pub offset: u64,
}

/// A part of a GPU's memory.
#[derive(Debug)]
pub struct GpuSlice {
    memory: Arc<dyn GpuMemory>,
    range: Range<usize>,
}

impl GpuSlice {
    /// That part of it. `None` if it has no such.
    pub fn new(memory: Arc<dyn GpuMemory>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.length()).then_some(Self { memory, range })
    }

    /// The memory that it is part of: all of it, with what others have there.
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.memory
    }

    /// The same.
    pub fn into_memory(self) -> Arc<dyn GpuMemory> {
        self.memory
    }

    /// Where it begins: a device pointer, which is good as long as this value is there.
    pub fn address(&self) -> usize {
        self.memory.address() + self.range.start
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Copies as many bytes as there are to where they are wanted.
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there are not that many, or the GPU has failed.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.within(bytes.len())?;
        self.memory.read(self.range.start, bytes)
    }

    /// Copies bytes to its beginning.
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there is no room for them, or the GPU has failed.
    pub fn write(&self, bytes: &[u8]) -> Result<(), GpuError> {
        self.within(bytes.len())?;
        self.memory.write(self.range.start, bytes)
    }

    fn within(&self, length: usize) -> Result<(), GpuError> {
        if length > self.len() {
            return Err(GpuError::new(format!(
                "{length} bytes are more than the {} that there are",
                self.len()
            )));
        }
        Ok(())
    }
}
