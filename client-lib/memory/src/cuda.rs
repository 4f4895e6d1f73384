//! GPUs by CUDA's driver API. The library is loaded when it is needed, so only programs that ask
//! for a GPU fail without it.
//!
//! ```text
//!   Cuda ── Device ──┬─ Context ──> Library ──> libcuda          (context, library, failure)
//!     │              └─ Copier up, Copier down: by two slots     (copy)
//!     └─ CudaMemory: cuMemAlloc's, or the program's              (memory, pointer, array)
//! ```
#![allow(unsafe_code, reason = "talks to CUDA")]

mod array;
mod context;
mod copy;
mod device;
mod failure;
mod library;
mod memory;
mod pointer;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

pub use array::CudaArray;
use context::Locked;
use device::Device;
use library::Library;
use memory::CudaMemory;
use parking_lot::Mutex;

use crate::error::GpuError;
use crate::gpu::{Gpu, GpuMemory};
use crate::host::HostMemory;

/// A GPU, by CUDA. Clones are the same GPU.
///
/// It uses the primary context, as the CUDA runtime, PyTorch and others do, so their pointers are
/// valid here and the other way round. Any thread may call, and keeps its own current context. A
/// child of `fork` cannot use CUDA.
///
/// Dropping the last handle of memory that was [allocated](Gpu::allocate) here, or of the
/// [machine's memory](Gpu::host), frees it. That may wait until the GPU has finished all its work
/// (`cuMemFree`, `cuMemFreeHost`), so keep the memory where time matters.
///
/// # Order
///
/// [Reads](GpuMemory::read) and [writes](GpuMemory::write) are ordered after the earlier work of
/// the program, as `cudaMemcpy` is: after work in the legacy default stream, and in all blocking
/// streams of the primary context, among them those of `cudaStreamCreate` and `cudaStreamPerThread`
/// ([CUDA Driver API, "Stream synchronization
/// behavior"](https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html)). They are
/// complete when the call returns, so later work comes after them.
///
/// **Non-blocking streams** (`cudaStreamNonBlocking`, and so `torch.cuda.Stream`) have no such
/// order: before a read or a write, wait for their work by `cudaStreamSynchronize` or an event.
/// **Other devices** have no such order either. Before an RDMA device reads the memory, all work on
/// it has to be complete, in whatever stream. After one has written, call
/// [`flush`](GpuMemory::flush) before the GPU reads.
///
/// # CUDA graphs
///
/// While the program captures a graph, memory may be allocated, freed, read and written; nothing of
/// that becomes part of the graph. The exception is the capture of a blocking stream
/// (`torch.cuda.graph` uses a non-blocking one): reads and writes then fail, since they could not
/// come after it. The capture goes on, unless it begins at that very moment; keep the two apart.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::num::NonZeroUsize;
///
/// use multinet_memory::{Cuda, Gpu as _};
///
/// let gpu = Cuda::device(0)?;
/// let memory = gpu.allocate(NonZeroUsize::new(8 << 20).ok_or("no length")?)?;
/// println!("{:#x} in {}", memory.address(), gpu.name());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cuda {
    device: Arc<Device>,
}

impl Cuda {
    /// Returns the number of GPUs that this process may see.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_memory::{Cuda, Gpu as _};
    ///
    /// for ordinal in 0..Cuda::count()? {
    ///     println!("{ordinal}: {}", Cuda::device(ordinal)?.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if this machine has no libcuda, libcuda finds no GPU, or the driver does not
    /// work.
    pub fn count() -> Result<u32, GpuError> {
        Library::ready()?.count()
    }

    /// Returns a GPU by its number among those that the process may see (`CUDA_VISIBLE_DEVICES`),
    /// from 0, as `cudaSetDevice` counts them. Unless the program uses CUDA already, the first call
    /// takes a while and some hundred MB of the GPU's memory.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_memory::Cuda;
    ///
    /// // At the start of the program: its first frame should not wait for it.
    /// let gpu = Cuda::device(0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], as for [`count`](Self::count), or if there is no such GPU.
    pub fn device(ordinal: u32) -> Result<Arc<Self>, GpuError> {
        /// The open GPUs by their numbers, so that each has its page-locked memory only once.
        static OPEN: Mutex<BTreeMap<u32, Weak<Device>>> = Mutex::new(BTreeMap::new());
        // Before the lock, and even if the GPU is open: a forked child cannot use CUDA. It gets
        // that error here, and does not wait for a lock that a thread of its parent held.
        let library = Library::ready()?;
        let mut open = OPEN.lock();
        let device = match open.get(&ordinal).and_then(Weak::upgrade) {
            Some(device) => device,
            None => {
                let device = Arc::new(Device::open(library, ordinal)?);
                open.insert(ordinal, Arc::downgrade(&device));
                device
            }
        };
        Ok(Arc::new(Self { device }))
    }

    /// Returns the number by which [`device`](Self::device) returns this GPU.
    ///
    /// ```no_run
    /// # fn example(gpu: &multinet_memory::Cuda) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_memory::Gpu as _;
    ///
    /// // For cudaSetDevice, or torch.device("cuda", ordinal).
    /// println!("{} is {}", gpu.ordinal(), gpu.name());
    /// # Ok(())
    /// # }
    /// ```
    pub fn ordinal(&self) -> u32 {
        self.device.ordinal
    }

    /// Wraps memory that the program has by other means: from `cudaMalloc`, or as an array of
    /// PyTorch, CuPy or another library ([`CudaArray`]). It has to belong to this GPU's primary
    /// context (not to one of `cuCtxCreate`), and must not be managed memory. Memory of pools
    /// (`cudaMallocAsync`) is accepted, but RDMA devices cannot access it:
    /// [`export`](GpuMemory::export) fails, and frames are copied.
    ///
    /// If RDMA devices can access the memory, its allocation is set to
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, as GPUDirect RDMA requires.
    ///
    /// The owner is dropped with the memory, or on an error.
    ///
    /// ```no_run
    /// # fn example(
    /// #     tensor: multinet_memory::CudaArray,
    /// #     owner: impl Send + Sync + 'static,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// use multinet_memory::Cuda;
    ///
    /// let (address, length) = tensor.range()?;
    /// let length = NonZeroUsize::new(length).ok_or("an array without items")?;
    /// // SAFETY: the owner keeps the array; its allocation is the program's own, and nothing else
    /// // uses it meanwhile.
    /// let memory = unsafe { Cuda::device(0)?.memory(address, length, owner) }?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the address is not in such memory, or fewer bytes are allocated there.
    ///
    /// # Safety
    ///
    /// Until the owner is dropped, the bytes stay allocated and mapped. During a call that reads
    /// the memory, neither the processor nor the GPU writes to it. During a call that writes it,
    /// nothing else accesses it. The whole allocation belongs to the program: RDMA devices of this
    /// machine can access all of it, though peers reach only these bytes.
    pub unsafe fn memory(
        &self,
        address: u64,
        length: NonZeroUsize,
        owner: impl Any + Send + Sync,
    ) -> Result<Arc<dyn GpuMemory>, GpuError> {
        // SAFETY: the caller's promise.
        let memory = unsafe { CudaMemory::of_program(self.clone(), address, length, Box::new(owner)) }?;
        Ok(Arc::new(memory))
    }
}

impl Gpu for Cuda {
    fn name(&self) -> &str {
        &self.device.context.name
    }

    fn pci_address(&self) -> Option<&str> {
        Some(&self.device.pci_address)
    }

    fn allocate(&self, length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError> {
        Ok(Arc::new(CudaMemory::allocate(self.clone(), length)?))
    }

    fn host(&self, length: NonZeroUsize) -> Result<HostMemory, GpuError> {
        let locked = Locked::new(&self.device.context, length)?;
        // SAFETY: all bytes are zeroed, may be read and written, and stay until the owner is
        // dropped, which frees them. Only copies of the GPU access them, which borrow them and are
        // complete when they return.
        Ok(unsafe { HostMemory::new(locked.start(), length, locked) })
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
