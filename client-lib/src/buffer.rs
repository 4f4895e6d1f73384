//! Memory that frames are sent from.

use std::fmt;
#[cfg(feature = "rdma")]
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;

/// Memory of a frame. A clone is another handle of the same memory.
///
/// It is written to the network from where it lies, under RDMA only what [`host`](Self::host) has made; all else is copied once then. The library lets go of it
/// soon after the frame has been written (at most once) or acknowledged (at least once). Until then [`as_mut`](Self::as_mut) gives nothing.
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
    Own(Arc<Box<[u8]>>),
    /// That devices read where it lies.
    #[cfg(feature = "rdma")]
    Pages(Arc<multinet_verbs::Pages>),
    Bytes(Bytes),
}

/// From here on memory is sent from where it lies, under RDMA: what is shorter is copied in less time than a device needs to look it up.
#[cfg(feature = "rdma")]
const WORTH_LENDING: usize = 16 << 10;

impl Buffer {
    /// New host memory of `length` bytes, all zero. With 16 KiB or more, RDMA sends from it without a copy, if it is all of a frame's payload; use it again rather than to
    /// make another one, since it is registered, and so locked in memory, once for each connection.
    pub fn host(length: usize) -> Self {
        #[cfg(feature = "rdma")]
        if let Some(length) = NonZeroUsize::new(length).filter(|length| length.get() >= WORTH_LENDING)
            && let Ok(pages) = multinet_verbs::Pages::new(length)
        {
            return Self(Memory::Pages(Arc::new(pages)));
        }
        Self(Memory::Own(Arc::new(vec![0; length].into_boxed_slice())))
    }

    /// What RDMA can send from where it lies.
    #[cfg(feature = "rdma")]
    pub(crate) fn pages(&self) -> Option<&Arc<multinet_verbs::Pages>> {
        match &self.0 {
            Memory::Pages(pages) => Some(pages),
            Memory::Own(_) | Memory::Bytes(_) => None,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(memory) => memory,
            #[cfg(feature = "rdma")]
            Memory::Pages(pages) => pages.bytes(),
            Memory::Bytes(bytes) => bytes,
        }
    }

    /// The same, to be written to. `None` while there are other handles of it, which the library has as long as
    /// a frame is on its way, and for memory that came as [`Bytes`].
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Memory::Own(memory) => Arc::get_mut(memory).map(|memory| &mut **memory),
            #[cfg(feature = "rdma")]
            Memory::Pages(pages) => Arc::get_mut(pages).map(multinet_verbs::Pages::bytes_mut),
            Memory::Bytes(_) => None,
        }
    }
}

impl From<Vec<u8>> for Buffer {
    /// Without a copy, unless the vector has spare capacity.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Own(Arc::new(bytes.into_boxed_slice())))
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
