//! Memory that frames are sent from.

#[cfg(not(feature = "rdma"))]
mod unregistered;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use multinet_memory::{Gpu, GpuError, GpuMemory, HostMemory};
#[cfg(feature = "rdma")]
pub(crate) use multinet_verbs::{GpuPages, Pages};

#[cfg(not(feature = "rdma"))]
pub(crate) use self::unregistered::{GpuPages, Pages};

/// Memory of a frame. A clone is another handle of the same memory.
///
/// It is written to the network from where it lies: under RDMA, what [`host`](Self::host), [`gpu`](Self::gpu) and [`from_registered`](Self::from_registered) have
/// made; under TCP, all but a GPU's. All else is copied once. The library lets go of it soon after the frame has been written (at most once) or acknowledged (at least once). Until then [`as_mut`](Self::as_mut) gives nothing.
///
/// # Examples
///
/// ```
/// use multinet_client::Buffer;
///
/// let mut buffer = Buffer::host(1 << 20);
/// buffer.as_mut().expect("nobody else has it yet")[..5].copy_from_slice(b"frame");
/// assert_eq!(buffer.len(), 1 << 20);
/// ```
#[derive(Clone)]
pub struct Buffer(Memory);

#[derive(Clone)]
enum Memory {
    Owned(Arc<Box<[u8]>>),
    /// So many bytes that devices read where they lie.
    Pages(Arc<Pages>, usize),
    Bytes(Bytes),
    Gpu(Arc<GpuPages>),
}

/// From here on memory is sent from where it lies, under RDMA: what is shorter is copied in less time than a device needs to look it up.
#[cfg(feature = "rdma")]
const MIN_ZERO_COPY: usize = 16 << 10;

impl Buffer {
    /// New host memory of `length` bytes, all zero. With 16 KiB or more, RDMA sends from it without a copy, if it is all of a frame's payload; use it again rather than to
    /// make another one, since it is registered, and so locked in memory, once for each connection.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let mut picture = Buffer::host(1920 * 1080 * 3); // made once, used for one picture after the other
    /// picture.as_mut().expect("no frame of it is on its way")[0] = 255;
    /// assert_eq!(picture.bytes()[..2], [255, 0]);
    /// ```
    pub fn host(length: usize) -> Self {
        #[cfg(feature = "rdma")]
        if let Some(length) = NonZeroUsize::new(length).filter(|length| length.get() >= MIN_ZERO_COPY)
            && let Ok(pages) = Pages::new(length)
        {
            return Self(Memory::Pages(Arc::new(pages), length.get()));
        }
        Self(Memory::Owned(Arc::new(vec![0; length].into_boxed_slice())))
    }

    /// The machine's memory that a program has by other means: mapped, or from another library. RDMA registers it, once for each connection, and sends from
    /// it without a copy, if it is all of a frame's payload.
    ///
    /// ```
    /// use std::{num::NonZeroUsize, ptr::NonNull};
    ///
    /// use multinet_client::{Buffer, HostMemory};
    ///
    /// let mut bytes = vec![7_u8; 4096]; // for example memory that a camera's driver has mapped
    /// let start = NonNull::new(bytes.as_mut_ptr()).ok_or("no memory")?;
    /// let length = NonZeroUsize::new(bytes.len()).ok_or("no bytes")?;
    /// // SAFETY: the vector keeps the bytes where they are, and is not touched any more.
    /// let picture = Buffer::from_registered(unsafe { HostMemory::new(start, length, bytes) });
    /// assert_eq!(picture.bytes(), [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_registered(memory: HostMemory) -> Self {
        let length = memory.length().get();
        Self(Memory::Pages(Arc::new(memory.into()), length))
    }

    /// New memory of a GPU, all zero. RDMA sends from it without a copy where the GPU and the RDMA device can (see docs/rdma.md); else, and under TCP, it is
    /// copied to the machine's memory on its way. Use it again rather than to make another one.
    ///
    /// ```no_run
    /// # fn example(gpu: &dyn multinet_client::Gpu) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// use multinet_client::Buffer;
    ///
    /// let tensor = Buffer::gpu(gpu, NonZeroUsize::new(8 << 20).ok_or("no length")?)?;
    /// let memory = tensor.gpu_memory().ok_or("no memory of a GPU")?;
    /// println!("kernels may write to {:#x}", memory.address());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], most of all where the GPU has no memory left.
    pub fn gpu(gpu: &dyn Gpu, length: NonZeroUsize) -> Result<Self, GpuError> {
        Ok(gpu.allocate(length)?.into())
    }

    /// As [`gpu`](Self::gpu), of the GPU that CUDA counts as this one, from 0.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// use multinet_client::Buffer;
    ///
    /// let tensor = Buffer::cuda(0, NonZeroUsize::new(8 << 20).ok_or("no length")?)?;
    /// // A clone is sent, so that the memory is there for the next frame.
    /// peers.send(tensor.clone()).await?.acknowledged().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if there is no such GPU, or it has no memory left.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: u32, length: NonZeroUsize) -> Result<Self, GpuError> {
        Self::gpu(&*multinet_memory::Cuda::device(ordinal)?, length)
    }

    /// So many of the first bytes of pages.
    pub(crate) fn from_pages(pages: Arc<Pages>, length: usize) -> Self {
        let length = length.min(pages.bytes().len());
        Self(Memory::Pages(pages, length))
    }

    /// What RDMA can send from where it lies, and its length.
    pub(crate) fn pages(&self) -> Option<(&Arc<Pages>, usize)> {
        match &self.0 {
            Memory::Pages(pages, length) => Some((pages, *length)),
            Memory::Owned(_) | Memory::Bytes(_) | Memory::Gpu(_) => None,
        }
    }

    pub(crate) fn gpu_pages(&self) -> Option<&Arc<GpuPages>> {
        match &self.0 {
            Memory::Gpu(pages) => Some(pages),
            Memory::Owned(_) | Memory::Bytes(_) | Memory::Pages(..) => None,
        }
    }

    /// The memory of a GPU that it is, if it is one's.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// fn place(buffer: &Buffer) -> &str {
    ///     buffer.gpu_memory().map_or("this machine", |memory| memory.gpu().name())
    /// }
    /// assert_eq!(place(&Buffer::host(4096)), "this machine");
    /// ```
    pub fn gpu_memory(&self) -> Option<&Arc<dyn GpuMemory>> {
        self.gpu_pages().map(|pages| pages.memory())
    }

    /// Its length in bytes.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let parts = [Buffer::from("header"), Buffer::host(4096)];
    /// // What has to fit into a slot of the receiver, if they are sent as one frame.
    /// assert_eq!(parts.iter().map(Buffer::len).sum::<usize>(), 4102);
    /// ```
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Gpu(pages) => pages.memory().length(),
            _ => self.bytes().len(),
        }
    }

    /// Whether it has no byte.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let chunks = ["first", "", "last"].map(Buffer::from);
    /// assert_eq!(chunks.iter().filter(|chunk| !chunk.is_empty()).count(), 2);
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in it. Of a GPU's memory, which the processor cannot read, nothing: [`gpu_memory`](Self::gpu_memory) has it.
    ///
    /// ```
    /// use multinet_client::{Buffer, Frame};
    ///
    /// let payload = Buffer::from("a frame");
    /// let sum = crc32fast::hash(payload.bytes());
    /// let frame = Frame::new(payload).metadata(sum.to_be_bytes().to_vec());
    /// assert_eq!(sum, crc32fast::hash(b"a frame"));
    /// ```
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Owned(memory) => memory,
            Memory::Pages(pages, length) => &pages.bytes()[..*length],
            Memory::Bytes(bytes) => bytes,
            Memory::Gpu(_) => &[],
        }
    }

    /// The same, to be written to. `None` while there are other handles of it, which the library has as long as
    /// a frame is on its way, and for memory that came as [`Bytes`] or is a GPU's.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let mut buffer = Buffer::host(4096);
    /// let frame = buffer.clone(); // as the library has one while it is sent
    /// assert!(buffer.as_mut().is_none());
    /// drop(frame);
    /// buffer.as_mut().expect("nobody else has it now").fill(1);
    /// ```
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Memory::Owned(memory) => Arc::get_mut(memory).map(|memory| &mut **memory),
            Memory::Pages(pages, length) => {
                Arc::get_mut(pages).map(|pages| &mut pages.bytes_mut()[..*length])
            }
            Memory::Bytes(_) | Memory::Gpu(_) => None,
        }
    }
}

impl From<Arc<dyn GpuMemory>> for Buffer {
    /// Without a copy. Do it once, and clone the buffer: each has registrations of its own. Whoever has the GPU write to it while a frame of it is on
    /// its way sends a mixture.
    fn from(memory: Arc<dyn GpuMemory>) -> Self {
        Self(Memory::Gpu(Arc::new(GpuPages::new(memory))))
    }
}

impl From<Vec<u8>> for Buffer {
    /// Without a copy, unless the vector has spare capacity.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Owned(Arc::new(bytes.into_boxed_slice())))
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self(Memory::Bytes(bytes))
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Memory::Bytes(Bytes::from_static(bytes)))
    }
}

impl From<&'static str> for Buffer {
    fn from(text: &'static str) -> Self {
        text.as_bytes().into()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_to_by_one_handle_only() {
        let mut buffer = Buffer::host(4);
        let other = buffer.clone();
        assert!(buffer.as_mut().is_none());
        drop(other);
        assert_eq!(buffer.as_mut().map(|bytes| bytes.len()), Some(4));
    }
}
