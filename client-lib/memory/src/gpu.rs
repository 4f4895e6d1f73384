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
///
/// # Examples
///
/// ```no_run
/// # fn example(gpus: Vec<std::sync::Arc<dyn multinet_memory::Gpu>>) -> Result<(), Box<dyn std::error::Error>> {
/// // Whoever has made them.
/// for gpu in gpus {
///     println!("{} at {}", gpu.name(), gpu.pci_address().unwrap_or("a place that is not known"));
/// }
/// # Ok(())
/// # }
/// ```
pub trait Gpu: fmt::Debug + Send + Sync {
    /// What people call it, with its place: a model and a PCI address, as a rule. The same text stands for the same GPU.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_memory::Gpu, memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
    /// if memory.gpu().name() != gpu.name() {
    ///     println!("{} is another GPU than {}", memory.gpu().name(), gpu.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn name(&self) -> &str;

    /// Where it is plugged in, as the kernel writes it below `/sys/bus/pci/devices`: `0000:1b:00.0`. `None` if that is not known; then no NIC is nearer to it
    /// than another.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_memory::Gpu) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(address) = gpu.pci_address() {
    ///     let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node"))?;
    ///     println!("{} is on NUMA node {}", gpu.name(), node.trim_end());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn pci_address(&self) -> Option<&str> {
        None
    }

    /// So many bytes of its memory, all zero, that RDMA devices may reach where that is possible at all.
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
    /// [`GpuError`], most of all where it has no memory left.
    fn allocate(&self, length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError>;

    /// So many bytes of the machine's memory, all zero, which it reads and writes fastest.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_memory::Gpu, memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
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
///
/// # Examples
///
/// ```no_run
/// # fn example(memory: std::sync::Arc<dyn multinet_memory::GpuMemory>) -> Result<(), Box<dyn std::error::Error>> {
/// memory.write(0, b"frame")?;
/// let mut bytes = [0; 5];
/// memory.read(0, &mut bytes)?;
/// assert_eq!(&bytes, b"frame");
/// # Ok(())
/// # }
/// ```
pub unsafe trait GpuMemory: fmt::Debug + Send + Sync {
    /// The GPU that it is of.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} bytes of {}", memory.length(), memory.gpu().name());
    /// # Ok(())
    /// # }
    /// ```
    fn gpu(&self) -> &dyn Gpu;

    /// Where it begins, in the address space that this process shares with the GPU: a device pointer.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
    /// // What a kernel gets as its argument: the second half.
    /// let second_half = memory.address() + memory.length() / 2;
    /// # Ok(())
    /// # }
    /// ```
    fn address(&self) -> usize;

    /// Its length in bytes.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut bytes = vec![0; memory.length()];
    /// memory.read(0, &mut bytes)?;
    /// # Ok(())
    /// # }
    /// ```
    fn length(&self) -> usize;

    /// For other devices, as a dma-buf.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
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
    /// [`GpuError`], where the GPU's driver or the kernel cannot.
    fn export(&self) -> Result<DmaBuf, GpuError>;

    /// Copies bytes from an offset, when what the program has asked the GPU to do before is done, as far as that is in order: the documentation of the
    /// implementation says what is.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
    /// // The header, which the processor decides by.
    /// let mut header = [0; 64];
    /// memory.read(0, &mut header)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there are not that many, or the GPU has failed.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Copies bytes to an offset.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory, picture: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// memory.write(0, &(picture.len() as u64).to_le_bytes())?;
    /// memory.write(64, picture)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there is no room for them, or the GPU has failed.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// What other devices have written until now, the GPU sees from now on. Some do so by themselves.
    ///
    /// ```no_run
    /// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
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

/// Memory as the kernel passes it from one device to another (Linux, `Documentation/driver-api/dma-buf.rst`).
///
/// # Examples
///
/// ```no_run
/// # fn example(memory: &dyn multinet_memory::GpuMemory) -> Result<(), Box<dyn std::error::Error>> {
/// use std::os::fd::AsRawFd as _;
///
/// let exported = memory.export()?;
/// // What ibv_reg_dmabuf_mr is given.
/// println!("fd {}, offset {}, length {}", exported.fd.as_raw_fd(), exported.offset, memory.length());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DmaBuf {
    /// It names a whole allocation, whose first byte lies at the beginning of a page.
    pub fd: OwnedFd,
    /// Where in it the memory begins, in bytes.
    pub offset: u64,
}

/// A part of a GPU's memory.
///
/// # Examples
///
/// ```no_run
/// # fn example(memory: std::sync::Arc<dyn multinet_memory::GpuMemory>) -> Result<(), Box<dyn std::error::Error>> {
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
    /// That part of it. `None` if it has no such.
    ///
    /// ```no_run
    /// # fn example(memory: std::sync::Arc<dyn multinet_memory::GpuMemory>) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    ///
    /// use multinet_memory::GpuSlice;
    ///
    /// let header = GpuSlice::new(Arc::clone(&memory), 0..64).ok_or("less than a header")?;
    /// let body = GpuSlice::new(Arc::clone(&memory), 64..memory.length()).ok_or("less than a header")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(memory: Arc<dyn GpuMemory>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.length()).then_some(Self { memory, range })
    }

    /// The memory that it is part of: all of it, with what others have there.
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

    /// The same.
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

    /// Where it begins: a device pointer, which is good as long as this value is there.
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

    /// Its length in bytes.
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

    /// Whether it has no byte.
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

    /// Copies as many bytes as there are to where they are wanted.
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
    /// [`GpuError`], if there are not that many, or the GPU has failed.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.within(bytes.len())?;
        self.memory.read(self.range.start, bytes)
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
