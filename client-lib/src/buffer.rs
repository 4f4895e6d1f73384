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
/// RDMA sends a buffer from [`host`](Self::host), [`gpu`](Self::gpu) or
/// [`from_registered`](Self::from_registered) without a copy, and copies any other once. TCP copies
/// only a GPU's memory.
///
/// The library drops its handle soon after the frame has been written (at most once) or
/// acknowledged (at least once). Until then, [`as_mut`](Self::as_mut) returns `None`.
///
/// # Examples
///
/// ```
/// use multinet_client::Buffer;
///
/// let mut buffer = Buffer::host(1 << 20);
/// buffer.as_mut().expect("this is the only handle")[..5].copy_from_slice(b"frame");
/// assert_eq!(buffer.len(), 1 << 20);
/// ```
#[derive(Clone)]
pub struct Buffer(Storage);

#[derive(Clone)]
enum Storage {
    Owned(Arc<Box<[u8]>>),
    /// The first bytes of memory that devices can read, so that RDMA needs no copy.
    Pages(Arc<Pages>, usize),
    Bytes(Bytes),
    Gpu(Arc<GpuPages>),
}

/// Length from which RDMA sends memory without a copy. Anything shorter is copied in less time than
/// a device needs to look up its registration.
#[cfg(feature = "rdma")]
const MIN_ZERO_COPY: usize = 16 << 10;

impl Buffer {
    /// Allocates host memory of `length` bytes, all zero.
    ///
    /// From 16 KiB up, RDMA sends from it without a copy, if it is the whole payload of a frame.
    /// Prefer to reuse a buffer over allocating another: memory is registered, and so locked, once
    /// for each connection.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let mut picture = Buffer::host(1920 * 1080 * 3); // made once, reused for each picture
    /// picture.as_mut().expect("no frame of it is on its way")[0] = 255;
    /// assert_eq!(picture.bytes()[..2], [255, 0]);
    /// ```
    pub fn host(length: usize) -> Self {
        #[cfg(feature = "rdma")]
        if let Some(length) = NonZeroUsize::new(length).filter(|length| length.get() >= MIN_ZERO_COPY)
            && let Ok(pages) = Pages::new(length)
        {
            return Self(Storage::Pages(Arc::new(pages), length.get()));
        }
        Self(Storage::Owned(Arc::new(vec![0; length].into_boxed_slice())))
    }

    /// Wraps host memory that the program has by other means: mapped, or from another library. RDMA
    /// registers it once for each connection, and sends from it without a copy, if it is the whole
    /// payload of a frame.
    ///
    /// ```
    /// use std::{num::NonZeroUsize, ptr::NonNull};
    ///
    /// use multinet_client::{Buffer, HostMemory};
    ///
    /// let mut bytes = vec![7_u8; 4096]; // for example, memory that a camera's driver has mapped
    /// let start = NonNull::new(bytes.as_mut_ptr()).ok_or("no memory")?;
    /// let length = NonZeroUsize::new(bytes.len()).ok_or("no bytes")?;
    /// // SAFETY: the vector keeps the bytes where they are, and is not touched any more.
    /// let picture = Buffer::from_registered(unsafe { HostMemory::new(start, length, bytes) });
    /// assert_eq!(picture.bytes(), [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_registered(memory: HostMemory) -> Self {
        let length = memory.length().get();
        Self(Storage::Pages(Arc::new(memory.into()), length))
    }

    /// Allocates memory of a GPU, all zero.
    ///
    /// RDMA sends from it without a copy where the GPU and the RDMA device can (see docs/rdma.md).
    /// Otherwise, and by TCP, it is copied through host memory. Prefer to reuse a buffer over
    /// allocating another.
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
    /// [`GpuError`], most often because the GPU has no memory left.
    pub fn gpu(gpu: &dyn Gpu, length: NonZeroUsize) -> Result<Self, GpuError> {
        Ok(gpu.allocate(length)?.into())
    }

    /// Allocates memory of the GPU with this ordinal in CUDA, from 0, as [`gpu`](Self::gpu) does.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use std::num::NonZeroUsize;
    ///
    /// use multinet_client::Buffer;
    ///
    /// let tensor = Buffer::cuda(0, NonZeroUsize::new(8 << 20).ok_or("no length")?)?;
    /// // Send a clone, to keep the memory for the next frame.
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

    /// Wraps the first `length` bytes of pages, without a copy. A larger `length` is capped.
    pub(crate) fn from_pages(pages: Arc<Pages>, length: usize) -> Self {
        let length = length.min(pages.bytes().len());
        Self(Storage::Pages(pages, length))
    }

    /// Returns the pages that RDMA can send without a copy, and the length.
    pub(crate) fn pages(&self) -> Option<(&Arc<Pages>, usize)> {
        match &self.0 {
            Storage::Pages(pages, length) => Some((pages, *length)),
            Storage::Owned(_) | Storage::Bytes(_) | Storage::Gpu(_) => None,
        }
    }

    pub(crate) fn gpu_pages(&self) -> Option<&Arc<GpuPages>> {
        match &self.0 {
            Storage::Gpu(pages) => Some(pages),
            Storage::Owned(_) | Storage::Bytes(_) | Storage::Pages(..) => None,
        }
    }

    /// Returns the GPU memory behind this buffer, if it is in a GPU.
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

    /// Returns the length in bytes.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let parts = [Buffer::from("header"), Buffer::host(4096)];
    /// // As one frame, this has to fit into a slot of the receiver.
    /// assert_eq!(parts.iter().map(Buffer::len).sum::<usize>(), 4102);
    /// ```
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Gpu(pages) => pages.memory().length(),
            _ => self.bytes().len(),
        }
    }

    /// Returns whether the length is 0.
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

    /// Returns the content. It is empty for a GPU's memory, which the processor cannot read. See
    /// [`gpu_memory`](Self::gpu_memory).
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
            Storage::Owned(memory) => memory,
            Storage::Pages(pages, length) => &pages.bytes()[..*length],
            Storage::Bytes(bytes) => bytes,
            Storage::Gpu(_) => &[],
        }
    }

    /// Returns the content for writing. `None` while there are other handles, such as the library's
    /// while a frame is on its way, and for memory that came as [`Bytes`] or belongs to a GPU.
    ///
    /// ```
    /// use multinet_client::Buffer;
    ///
    /// let mut buffer = Buffer::host(4096);
    /// let frame = buffer.clone(); // like the library's while it is sent
    /// assert!(buffer.as_mut().is_none());
    /// drop(frame);
    /// buffer.as_mut().expect("this is the only handle").fill(1);
    /// ```
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Storage::Owned(memory) => Arc::get_mut(memory).map(|memory| &mut **memory),
            Storage::Pages(pages, length) => {
                Arc::get_mut(pages).map(|pages| &mut pages.bytes_mut()[..*length])
            }
            Storage::Bytes(_) | Storage::Gpu(_) => None,
        }
    }
}

impl From<Arc<dyn GpuMemory>> for Buffer {
    /// Wraps the memory without a copy. Convert it once and clone the buffer, because each
    /// conversion has registrations of its own.
    ///
    /// If the GPU writes to it while a frame is on its way, the receiver gets a mixture of old and
    /// new bytes.
    fn from(memory: Arc<dyn GpuMemory>) -> Self {
        Self(Storage::Gpu(Arc::new(GpuPages::new(memory))))
    }
}

impl From<Vec<u8>> for Buffer {
    /// Takes the vector without a copy, unless it has spare capacity.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Storage::Owned(Arc::new(bytes.into_boxed_slice())))
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self(Storage::Bytes(bytes))
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Storage::Bytes(Bytes::from_static(bytes)))
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
    fn a_buffer_with_two_handles_is_not_writable() {
        let mut buffer = Buffer::host(4);
        let other = buffer.clone();
        assert!(buffer.as_mut().is_none());
        drop(other);
        assert_eq!(buffer.as_mut().map(|bytes| bytes.len()), Some(4));
    }
}
