//! Frames to send.

use std::time::SystemTime;

use bytes::Bytes;

use crate::buffer::Buffer;
use crate::wire::{MAX_KEY, MAX_METADATA};

/// Frame to send: a payload in one or more buffers, with an optional key, metadata and timestamp.
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
    /// Buffers of the payload after the first. Usually empty, which costs no allocation.
    pub(crate) rest: Vec<Buffer>,
    pub(crate) key: Bytes,
    pub(crate) metadata: Bytes,
    pub(crate) timestamp: Option<SystemTime>,
}

impl Frame {
    /// Creates a frame with one buffer of payload, which may be empty.
    ///
    /// ```
    /// use multinet_client::{Buffer, Frame};
    ///
    /// // Text, a vector, `Bytes`, or a buffer that is used again and again.
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

    /// Appends a buffer to the payload. The receiver gets all buffers as one contiguous payload.
    ///
    /// ```
    /// use multinet_client::{Buffer, Frame};
    ///
    /// let picture = Buffer::host(4096);
    /// // The header goes first. The picture is not copied behind it.
    /// let frame = Frame::new(vec![1, 0, 16, 0]).and(picture.clone());
    /// assert_eq!(frame.len(), 4100);
    /// ```
    #[must_use]
    pub fn and(mut self, buffer: impl Into<Buffer>) -> Self {
        self.rest.push(buffer.into());
        self
    }

    /// Sets the key, of at most 255 bytes. With [`Choice::ByKey`](crate::Choice::ByKey), frames of
    /// one key reach one peer, in order.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, pictures: Vec<(u32, Vec<u8>)>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
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

    /// Sets metadata of the application's own, of at most 4096 bytes.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, picture: Vec<u8>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Frame;
    ///
    /// // The receiver reads this before the payload, which may be in a GPU.
    /// peers.send(Frame::new(picture).metadata("1920x1080 rgb24")).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Sets a time, such as that of the capture. It travels in nanoseconds since 1970.
    ///
    /// ```no_run
    /// # async fn example(peers: &multinet_client::PeerSet, picture: Vec<u8>)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::SystemTime;
    ///
    /// use multinet_client::Frame;
    ///
    /// // The receiver can tell from this how old the picture is.
    /// peers.send(Frame::new(picture).timestamp(SystemTime::now())).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn timestamp(mut self, timestamp: SystemTime) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Returns the length of the payload in bytes.
    ///
    /// ```
    /// use multinet_client::Frame;
    ///
    /// // Key and metadata do not count towards the receiver's frame size.
    /// let frame = Frame::new("pay").and("load").key("camera-17");
    /// assert_eq!(frame.len(), 7);
    /// ```
    pub fn len(&self) -> usize {
        self.buffers().map(Buffer::len).sum()
    }

    /// Returns whether the payload is empty.
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

    /// Returns the part of the header that is too long: its name, its length and its limit.
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

/// Identifies a frame: its sender, and its number among that sender's frames.
///
/// # Examples
///
/// ```no_run
/// # async fn example(listener: &multinet_client::Listener)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// let id = frame.id();
/// // If the frame comes again, to any receiver, its file is replaced.
/// std::fs::write(format!("/data/{:032x}-{:010}", id.session, id.sequence), frame.bytes())?;
/// frame.acknowledge();
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId {
    /// Session of the sender: a random number for each [`PeerSet`](crate::PeerSet), the same for
    /// all its receivers. With [`Tls`](crate::Tls), only a holder of a certificate with the same
    /// names can send frames of this session.
    pub session: u128,
    /// Number of the frame, from 1. A frame that is sent again keeps its number.
    pub sequence: u64,
}
