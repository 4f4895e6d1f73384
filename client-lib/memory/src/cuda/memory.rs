//! Memory of a GPU by CUDA.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::any::Any;
use std::ffi::c_int;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUmemRangeHandleType,
};

use super::Cuda;
use super::context::{Context, Current, Stream};
use super::device::Flush;
use super::pointer::{self, Exported};
use crate::error::GpuError;
use crate::gpu::{DmaBuf, Gpu, GpuMemory};

/// The large page of the GPU. An allocation in multiples of it shares no page with others. So it
/// begins and ends on pages of the machine too, as an export requires.
const PAGE: usize = 2 << 20;

/// Memory of a GPU, allocated here or by the program.
pub(super) struct CudaMemory {
    gpu: Cuda,
    address: CUdeviceptr,
    length: usize,
    /// Whether RDMA devices can access the memory, or the reason why not.
    reachable: Result<(), GpuError>,
    // Held, since it owns the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

/// An allocation of `cuMemAlloc`, freed on drop.
struct Allocation {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: allocated once, and not used again.
            let _ = unsafe { (self.context.library.cuMemFree_v2)(self.address) };
        }
    }
}

impl CudaMemory {
    /// Allocates zeroed memory of the GPU, in whole large pages.
    pub(super) fn allocate(gpu: Cuda, length: NonZeroUsize) -> Result<Self, GpuError> {
        let context = Arc::clone(&gpu.device.context);
        let Some(allocated) = length.get().checked_next_multiple_of(PAGE) else {
            return Err(context.error(format!("{length} bytes are more than a GPU has")));
        };
        let current = context.enter()?;
        let mut address = 0;
        // SAFETY: `address` outlives the call, and the context is current.
        let code = unsafe { (context.library.cuMemAlloc_v2)(&raw mut address, allocated) };
        context
            .check("cuMemAlloc", code)
            .map_err(|error| GpuError::new(format!("{error} ({allocated} bytes were asked for)")))?;
        let owner = Allocation { context: Arc::clone(&context), address };
        let reachable = pointer::synchronous(&current, address);
        let stream = Stream::new(&context)?;
        // SAFETY: the bytes are allocated, and not freed before the stream is idle.
        let zeroed = unsafe { stream.zero(address, allocated) };
        let settled = stream.synchronize();
        zeroed.and(settled)?;
        drop(current);
        Ok(Self { gpu, address, length: length.get(), reachable, _owner: Box::new(owner) })
    }

    /// Wraps memory of the GPU that the program has allocated by other means.
    ///
    /// # Safety
    ///
    /// As for [`Cuda::memory`].
    pub(super) unsafe fn of_program(
        gpu: Cuda,
        address: CUdeviceptr,
        length: NonZeroUsize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, GpuError> {
        let context = Arc::clone(&gpu.device.context);
        let current = context.enter()?;
        let Some(end) = address.checked_add(length.get() as u64).filter(|end| usize::try_from(*end).is_ok())
        else {
            return Err(
                context.error(format!("{length} bytes at {address:#x} would end beyond the address space"))
            );
        };
        pointer::verify(&current, &(address..end), gpu.device.ordinal)?;
        let reachable = pointer::reachable(&current, address);
        if reachable.is_ok() {
            // It fails for memory that consists of several allocations. The program then has to
            // wait for its own work, as the documentation demands in any case.
            let _ = pointer::synchronous(&current, address);
        }
        drop(current);
        Ok(Self { gpu, address, length: length.get(), reachable, _owner: owner })
    }

    fn range(&self) -> Range<u64> {
        self.address..self.address + self.length as u64
    }

    /// Returns the address of a range, or an error if it is not within the memory.
    fn within(&self, offset: usize, length: usize) -> Result<CUdeviceptr, GpuError> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(self.gpu.device.context.error(format!(
                "{length} bytes at offset {offset} are not within the {} that there are",
                self.length
            )));
        }
        Ok(self.address + offset as CUdeviceptr)
    }

    fn named(&self, current: &Current<'_>) -> Result<DmaBuf, GpuError> {
        let (context, facts) = (current.context, &self.gpu.device.facts);
        facts.exports().map_err(|reason| context.error(reason))?;
        self.reachable.clone()?;
        let Some(function) = context.library.cuMemGetHandleForAddressRange else {
            return Err(context.error("this libcuda has no cuMemGetHandleForAddressRange"));
        };
        let allocation = pointer::allocation(current, self.address)?;
        let Some(exported) = Exported::new(&self.range(), &allocation, facts.page) else {
            return Err(context.error(format!(
                "the whole pages of the memory {:#x?} are not all in the address space",
                self.range()
            )));
        };
        let (mut fd, length): (c_int, _) = (-1, exported.length as usize);
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: a handle of this kind is a file descriptor. It outlives the call.
        let code = unsafe { function((&raw mut fd).cast(), exported.start, length, kind, 0) };
        context.check("cuMemGetHandleForAddressRange", code)?;
        if fd < 0 {
            return Err(context.error("cuMemGetHandleForAddressRange gave no file descriptor"));
        }
        // SAFETY: the file descriptor is new, and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(DmaBuf { fd, offset: exported.offset })
    }
}

// SAFETY: the owner is held, and keeps the bytes allocated: it is our own allocation, or the
// program promised it. An export covers an allocation of ours, or one that the program agreed to
// show.
unsafe impl GpuMemory for CudaMemory {
    fn gpu(&self) -> &dyn Gpu {
        &self.gpu
    }

    fn address(&self) -> usize {
        // The constructors check that the whole range is addressable.
        self.address as usize
    }

    fn length(&self) -> usize {
        self.length
    }

    fn export(&self) -> Result<DmaBuf, GpuError> {
        self.named(&self.gpu.device.context.enter()?)
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        let from = self.within(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked, and the owner is held.
        unsafe { self.gpu.device.read(from, bytes) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let to = self.within(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked, and the owner is held.
        unsafe { self.gpu.device.write(to, bytes) }
    }

    fn flush(&self) -> Result<(), GpuError> {
        let context = &self.gpu.device.context;
        if self.gpu.device.facts.flush().map_err(|reason| context.error(reason))? == Flush::Unneeded {
            return Ok(());
        }
        let Some(function) = context.library.cuFlushGPUDirectRDMAWrites else {
            return Err(context
                .error("this libcuda has no cuFlushGPUDirectRDMAWrites: frames have to come by staging"));
        };
        let _current = context.enter()?;
        let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: the call takes constants, and the context is current.
        context.check("cuFlushGPUDirectRDMAWrites", unsafe { function(target, scope) })
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} of {}", self.length, self.address, self.gpu.name())
    }
}
