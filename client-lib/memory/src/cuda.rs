//! GPUs by CUDA: the driver's own interface, which is loaded when it is needed, and where there is none is missed only by who asks for a GPU.
//!
//! ```text
//!   Cuda ── Device ──┬─ Context ──> Library ──> libcuda          (context, library, failure)
//!     │              └─ Lane up, Lane down: copies by two slots  (copy)
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
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use array::CudaArray;
use context::Locked;
use device::Device;
use library::Library;
use memory::CudaMemory;

use crate::error::GpuError;
use crate::gpu::{Gpu, GpuMemory};
use crate::host::HostMemory;

/// A GPU, by CUDA. Clones are the same GPU.
///
/// It uses the primary context, which the CUDA runtime, PyTorch and others use as well, so that their pointers are good here and ours there.
/// Any thread may call; each has its own current context again afterwards. A child of `fork` cannot use CUDA.
///
/// Dropping the last handle of memory that was [allocated](Gpu::allocate) here, or of [the machine's](Gpu::host), frees it, and that may wait until
/// the GPU is done with all that it has been asked for (`cuMemFree`, `cuMemFreeHost`): keep it, where time matters.
///
/// # Order
///
/// [Reading](GpuMemory::read) and [writing](GpuMemory::write) come after what the program has asked the GPU to do before, as `cudaMemcpy` does:
/// in the legacy default stream, and in all streams of the primary context that are not non-blocking ones, those of `cudaStreamCreate` and
/// `cudaStreamPerThread` among them ([CUDA Driver API, "Stream synchronization
/// behavior"](https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html)). They are done when the call returns, so that whatever is
/// asked of the GPU afterwards comes after them.
///
/// There is no such order with **non-blocking streams** (`cudaStreamNonBlocking`, and so `torch.cuda.Stream`): before a read or a write, wait
/// until what they do with the memory is done, by `cudaStreamSynchronize` or an event. Nor is there any order with **other devices**: before an
/// RDMA device reads the memory, all work on it has to be done, in whatever stream, and after one has written,
/// [`flush`](GpuMemory::flush) comes before the GPU reads.
///
/// # CUDA graphs
///
/// While the program captures a graph, in whatever mode and thread, memory may be allocated, freed, read and written; none of it becomes part of
/// the graph. Only where a stream is captured that is not a non-blocking one (`torch.cuda.graph` takes a non-blocking one), reading and writing
/// fail, since they could not come after it; the capture goes on, unless it begins at that very moment: keep the two apart.
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
    /// How many GPUs this process may see.
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
    /// [`GpuError`], if there is no libcuda on this machine, or it finds no GPU, or the driver is not in order.
    pub fn count() -> Result<u32, GpuError> {
        Library::ready()?.count()
    }

    /// One of them, by its number among those that the process may see (`CUDA_VISIBLE_DEVICES`), from 0 on: that of `cudaSetDevice`. The first
    /// time, that takes a while and some hundred MB of its memory, unless the program uses CUDA already.
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
    /// [`GpuError`], as of [`count`](Self::count), or if there is no such GPU.
    pub fn device(ordinal: u32) -> Result<Arc<Self>, GpuError> {
        /// Those in use, so that each GPU has its locked memory once.
        static OPEN: Mutex<BTreeMap<u32, Weak<Device>>> = Mutex::new(BTreeMap::new());
        // Before the lock, and also where the GPU is open: a forked child, which can use none of it, is told so, and does not wait for a lock that
        // another thread of its parent held.
        let library = Library::ready()?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Its number, as [`device`](Self::device) takes it.
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

    /// Memory that the program has by other means: from `cudaMalloc`, or an array of PyTorch, CuPy or another library ([`CudaArray`]). It is
    /// memory of this GPU, of its primary context (not of one of `cuCtxCreate`), and not managed. That of pools (`cudaMallocAsync`) is taken as
    /// well, but RDMA devices cannot reach it: [`export`](GpuMemory::export) says so, and frames are copied.
    ///
    /// Where RDMA devices can reach it, the allocation that it lies in is set to `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, as GPUDirect RDMA asks for.
    ///
    /// The owner is dropped when the memory is not used any more, or if there is an error.
    ///
    /// ```no_run
    /// # fn example(tensor: multinet_memory::CudaArray, owner: impl Send + Sync + 'static) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// use multinet_memory::Cuda;
    ///
    /// let (address, length) = tensor.range()?;
    /// let length = NonZeroUsize::new(length).ok_or("an array without items")?;
    /// // SAFETY: the owner keeps the array; its allocation is the program's own, and nobody else uses it meanwhile.
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
    /// Until the owner is dropped, the bytes stay allocated and mapped. As long as the memory is lent to a call that reads it, nobody writes to
    /// it, neither the processor nor the GPU, and to one that writes it, nobody else reaches it. The allocation that they lie in is the
    /// program's own as a whole: an RDMA device of this machine is given it, though no peer reaches more than these bytes.
    pub unsafe fn memory(
        &self,
        address: u64,
        length: NonZeroUsize,
        owner: impl Any + Send + Sync,
    ) -> Result<Arc<dyn GpuMemory>, GpuError> {
        // SAFETY: as was promised.
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
        // SAFETY: all bytes are zero, they may be read and written, and they stay until the owner is dropped, which frees them. Nobody else knows
        // of them: the GPU reaches them in copies only, which borrow them and are done when they return.
        Ok(unsafe { HostMemory::new(locked.start(), length, locked) })
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
