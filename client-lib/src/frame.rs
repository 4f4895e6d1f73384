//! What is sent: a payload, and a little beside it.

use std::time::SystemTime;

use bytes::Bytes;

use crate::buffer::Buffer;
use crate::wire::{MAX_KEY, MAX_METADATA};

/// A frame to be sent: a payload in one or several buffers, and a header beside it.
///
/// # Examples
///
/// ```
/// use multinet_client::Frame;
///
/// let frame = Frame::new(vec![0; 4096]).key("camera-17").metadata("pts=1024");
/// assert_eq!(frame.len(), 4096);
/// ```
#[derive(Clone, Debug)]
pub struct Frame {
    pub(crate) payload: Buffer,
    /// What follows the first buffer. Usually nothing, which costs no allocation.
    pub(crate) rest: Vec<Buffer>,
    pub(crate) key: Bytes,
    pub(crate) metadata: Bytes,
    pub(crate) timestamp: Option<SystemTime>,
}

impl Frame {
    /// A frame with one buffer of payload, which may be empty.
    ///
    /// ```
    /// use multinet_client::{Buffer, Frame};
    ///
    /// // Of text, a vector, `Bytes`, or a buffer that is used again and again.
    /// let frames = [Frame::new("text"), Frame::new(vec![0; 4]), Frame::new(Buffer::host(4))];
    /// assert!(frames.iter().all(|frame| frame.len() == 4));
    /// ```
    pub fn new(payload: impl Into<Buffer>) -> Self {
        Self {
            payload: payload.into(),
            rest: Vec::new(),
            key: Bytes::new(),
            metadata: Bytes::new(),
            timestamp: None,
        }
    }

    /// With one more buffer behind the payload. The receiver gets one payload, without a seam.
    ///
    /// ```
    /// use multinet_client::{Buffer, Frame};
    ///
    /// let picture = Buffer::host(4096);
    /// // The header goes first, and the picture need not be copied behind it.
    /// let frame = Frame::new(vec![1, 0, 16, 0]).and(picture.clone());
    /// assert_eq!(frame.len(), 4100);
    /// ```
    #[must_use]
    pub fn and(mut self, buffer: impl Into<Buffer>) -> Self {
        self.rest.push(buffer.into());
        self
    }

    /// With a key, of at most 255 bytes: under [`Choice::ByKey`](crate::Choice::ByKey), frames of one key reach one peer, in order.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, pictures: Vec<(u32, Vec<u8>)>) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Frame;
    ///
    /// for (camera, picture) in pictures {
    ///     peers.send(Frame::new(picture).key(format!("camera-{camera}"))).await?;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = key.into();
        self
    }

    /// With metadata of the caller's own, at most 4096 bytes.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, picture: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Frame;
    ///
    /// // What the receiver needs before it reads the payload, which may lie in a GPU.
    /// peers.send(Frame::new(picture).metadata("1920x1080 rgb24")).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// With a time, such as that of the capture. It travels in nanoseconds since 1970.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, picture: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::SystemTime;
    ///
    /// use multinet_client::Frame;
    ///
    /// // From which the receiver can tell how old the picture is.
    /// peers.send(Frame::new(picture).timestamp(SystemTime::now())).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn timestamp(mut self, timestamp: SystemTime) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Length of the payload in bytes.
    ///
    /// ```
    /// use multinet_client::Frame;
    ///
    /// // Key and metadata do not count: they have room beside the receiver's frame size.
    /// let frame = Frame::new("pay").and("load").key("camera-17");
    /// assert_eq!(frame.len(), 7);
    /// ```
    pub fn len(&self) -> usize {
        self.buffers().map(Buffer::len).sum()
    }

    /// Whether there is no payload.
    ///
    /// ```
    /// use multinet_client::Frame;
    ///
    /// let end = Frame::new("").metadata("end of the stream");
    /// assert!(end.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.buffers().all(Buffer::is_empty)
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(&self.payload).chain(&self.rest)
    }

    /// Which part of the header is longer than it may be: its name, its length, what it may have.
    pub(crate) fn oversized_part(&self) -> Option<(&'static str, usize, usize)> {
        [("key", self.key.len(), MAX_KEY), ("metadata", self.metadata.len(), MAX_METADATA)]
            .into_iter()
            .find(|&(_, length, most)| length > most)
    }
}

impl<P: Into<Buffer>> From<P> for Frame {
    fn from(payload: P) -> Self {
        Self::new(payload)
    }
}

/// Which frame: who sent it, and its number among that sender's frames.
///
/// # Examples
///
/// ```no_run
/// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// let id = frame.id();
/// // If it comes again, to whichever receiver, its file is replaced.
/// std::fs::write(format!("/data/{:032x}-{:010}", id.session, id.sequence), frame.bytes())?;
/// frame.acknowledge();
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId {
    /// The sender's session: a random number for each [`PeerSet`](crate::PeerSet), which is the same for all its receivers. With
    /// [`Tls`](crate::Tls), nobody's frames pass for the sender's but those of who has the same names in its certificate.
    pub session: u128,
    /// Counts from 1. A frame that is sent again keeps its number.
    pub sequence: u64,
}
