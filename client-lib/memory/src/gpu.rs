//! The traits of a GPU and of its memory.
#![allow(unsafe_code, reason = "implementations promise what devices rely on")]

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::GpuError;
use crate::host::HostMemory;

/// A GPU.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     gpus: Vec<std::sync::Arc<dyn multinet_memory::Gpu>>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// for gpu in gpus {
///     println!("{} at {}", gpu.name(), gpu.pci_address().unwrap_or("an unknown address"));
/// }
/// # Ok(())
/// # }
/// ```
pub trait Gpu: fmt::Debug + Send + Sync {
    /// Returns a name for people, typically a model and a PCI address. Equal names mean the same
    /// GPU.
    ///
    /// ```no_run
    /// # fn example(
    /// #     gpu: &dyn multinet_memory::Gpu,
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// if memory.gpu().name() != gpu.name() {
    ///     println!("{} is another GPU than {}", memory.gpu().name(), gpu.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn name(&self) -> &str;

    /// Returns the PCI address in the form of `/sys/bus/pci/devices`, such as `0000:1b:00.0`.
    /// Without one, no NIC counts as nearer to the GPU than another.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_memory::Gpu) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(address) = gpu.pci_address() {
    ///     let file = format!("/sys/bus/pci/devices/{address}/numa_node");
    ///     let node = std::fs::read_to_string(file)?;
    ///     println!("{} is on NUMA node {}", gpu.name(), node.trim_end());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn pci_address(&self) -> Option<&str> {
        None
    }

    /// Allocates zeroed memory of the GPU, which RDMA devices may access where the hardware permits
    /// it.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_memory::Gpu) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// let memory = gpu.allocate(NonZeroUsize::new(8 << 20).ok_or("no length")?)?;
    /// println!("kernels may write to {:#x}", memory.address());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], for example if the GPU has no memory left.
    fn allocate(&self, length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError>;

    /// Allocates zeroed memory of the machine, to and from which the GPU copies fastest.
    ///
    /// ```no_run
    /// # fn example(
    /// #     gpu: &dyn multinet_memory::Gpu,
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// let mut copy = gpu.host(NonZeroUsize::new(memory.length()).ok_or("no length")?)?;
    /// memory.read(0, copy.bytes_mut())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], for example if too little memory may be locked.
    fn host(&self, length: NonZeroUsize) -> Result<HostMemory, GpuError>;
}

/// Memory of a GPU.
///
/// # Safety
///
/// As long as the value lives, its address and length do not change, and its bytes are allocated.
/// Devices, and peers by means of them, may write to the bytes at any time, so no reference to them
/// exists in this process. The result of [`export`](Self::export) covers these bytes, and no others
/// that the process would not show to a device.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     memory: std::sync::Arc<dyn multinet_memory::GpuMemory>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// memory.write(0, b"frame")?;
/// let mut bytes = [0; 5];
/// memory.read(0, &mut bytes)?;
/// assert_eq!(&bytes, b"frame");
/// # Ok(())
/// # }
/// ```
pub unsafe trait GpuMemory: fmt::Debug + Send + Sync {
    /// Returns the GPU that the memory belongs to.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} bytes of {}", memory.length(), memory.gpu().name());
    /// # Ok(())
    /// # }
    /// ```
    fn gpu(&self) -> &dyn Gpu;

    /// Returns the address of the first byte, in the address space that the process shares with the
    /// GPU: a device pointer.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // What a kernel gets as its argument: the second half.
    /// let second_half = memory.address() + memory.length() / 2;
    /// # Ok(())
    /// # }
    /// ```
    fn address(&self) -> usize;

    /// Returns the length in bytes.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut bytes = vec![0; memory.length()];
    /// memory.read(0, &mut bytes)?;
    /// # Ok(())
    /// # }
    /// ```
    fn length(&self) -> usize;

    /// Exports the memory for other devices, as a dma-buf.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// match memory.export() {
    ///     Ok(_) => println!("RDMA devices may take it as a dma-buf"),
    ///     Err(error) => println!("frames are copied, or go by nvidia_peermem: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the GPU's driver or the kernel does not support it.
    fn export(&self) -> Result<DmaBuf, GpuError>;

    /// Copies bytes from an offset. The copy is ordered after the earlier work of the GPU as far as
    /// the documentation of the implementation says.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // The header, which the processor decides by.
    /// let mut header = [0; 64];
    /// memory.read(0, &mut header)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the range is not within the memory, or the GPU has failed.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Copies bytes to an offset.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// #     picture: &[u8],
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// memory.write(0, &(picture.len() as u64).to_le_bytes())?;
    /// memory.write(64, picture)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the range is not within the memory, or the GPU has failed.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// Makes what other devices have written so far visible to the GPU. Some GPUs need no call for
    /// that.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &dyn multinet_memory::GpuMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // An RDMA device has reported that its write is done. Then, before a kernel is started:
    /// memory.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the GPU has failed.
    fn flush(&self) -> Result<(), GpuError>;
}

/// Memory in the form in which the kernel passes it between devices (Linux,
/// `Documentation/driver-api/dma-buf.rst`).
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     memory: &dyn multinet_memory::GpuMemory,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsRawFd as _;
///
/// let exported = memory.export()?;
/// // What ibv_reg_dmabuf_mr is given.
/// let (fd, offset) = (exported.fd.as_raw_fd(), exported.offset);
/// println!("fd {fd}, offset {offset}, length {}", memory.length());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DmaBuf {
    /// The file descriptor of a whole allocation, which begins on a page boundary.
    pub fd: OwnedFd,
    /// The offset of the exported memory in the allocation behind `fd`, in bytes.
    pub offset: u64,
}

/// A range of a GPU's memory.
///
/// # Examples
///
/// ```no_run
/// # fn example(
/// #     memory: std::sync::Arc<dyn multinet_memory::GpuMemory>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_memory::GpuSlice;
///
/// let header = GpuSlice::new(memory, 0..64).ok_or("less than a header")?;
/// let mut bytes = [0; 64];
/// header.read(&mut bytes)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuSlice {
    memory: Arc<dyn GpuMemory>,
    range: Range<usize>,
}

impl GpuSlice {
    /// Returns a range of the memory, or `None` if the memory is shorter.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: std::sync::Arc<dyn multinet_memory::GpuMemory>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    ///
    /// use multinet_memory::GpuSlice;
    ///
    /// let body = 64..memory.length();
    /// let header = GpuSlice::new(Arc::clone(&memory), 0..64).ok_or("less than a header")?;
    /// let body = GpuSlice::new(memory, body).ok_or("less than a header")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(memory: Arc<dyn GpuMemory>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.length()).then_some(Self { memory, range })
    }

    /// Returns the whole memory that the range belongs to. Its other bytes may belong to other
    /// frames.
    ///
    /// ```no_run
    /// # fn example(slice: &multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} bytes in {}", slice.len(), slice.memory().gpu().name());
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.memory
    }

    /// Returns the whole memory.
    ///
    /// ```no_run
    /// # fn example(slice: multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// // The part is done with; the memory is used for the next one.
    /// let memory = slice.into_memory();
    /// memory.write(0, b"next")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_memory(self) -> Arc<dyn GpuMemory> {
        self.memory
    }

    /// Returns the address of the first byte, a device pointer. It is valid as long as this value
    /// lives.
    ///
    /// ```no_run
    /// # fn example(slice: &multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// // What a kernel gets as its arguments.
    /// let (address, length) = (slice.address(), slice.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn address(&self) -> usize {
        self.memory.address() + self.range.start
    }

    /// Returns the length in bytes.
    ///
    /// ```no_run
    /// # fn example(slice: &multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut bytes = vec![0; slice.len()];
    /// slice.read(&mut bytes)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether the length is zero.
    ///
    /// ```no_run
    /// # fn example(slice: &multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// if !slice.is_empty() {
    ///     println!("a kernel has something to do at {:#x}", slice.address());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Copies the first bytes of the range, as many as `bytes` has room for.
    ///
    /// ```no_run
    /// # fn example(slice: &multinet_memory::GpuSlice) -> Result<(), Box<dyn std::error::Error>> {
    /// // As many of the first bytes as there is room for.
    /// let mut header = [0; 16];
    /// slice.read(&mut header)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the range is shorter, or the GPU has failed.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        let (wanted, length) = (bytes.len(), self.len());
        if wanted > length {
            let reason = format!("{wanted} bytes are more than the {length} of this range of GPU memory");
            return Err(GpuError::new(reason));
        }
        self.memory.read(self.range.start, bytes)
    }
}
