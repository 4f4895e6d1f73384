//! A frame that has come.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use multinet_memory::{GpuError, GpuSlice};

use super::Acknowledge;
use super::control::Connection;
use super::gpu::{GpuSlots, Uploaded};
use super::queue::Arrived;
use super::slots::Slot;
use crate::frame::FrameId;
use crate::handshake::Delivery;
use crate::wire::Data;

/// A frame that has come. Dropping it gives its memory, and the credit for it, back to the sender.
///
/// Under [at least once](Delivery::AtLeastOnce), the sender keeps the frame until it is [acknowledged](Self::acknowledge).
///
/// # Examples
///
/// ```no_run
/// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// // If this fails, the frame is dropped, and goes to another receiver.
/// std::fs::write("/data/picture", frame.bytes())?;
/// frame.acknowledge();
/// # Ok(()) }
/// ```
#[must_use = "dropping it without acknowledge() returns it to its sender"]
pub struct Received {
    header: Data,
    /// Empty once it has been given back.
    slot: Slot,
    connection: Arc<Connection>,
    /// If a GPU is set.
    uploaded: Option<Uploaded>,
    is_acknowledged: bool,
}

/// Who sent a frame.
///
/// # Examples
///
/// ```no_run
/// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// // Its name and its address.
/// println!("a frame from {:?}", frame.sender());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Sender<'r>(&'r Connection);

impl Received {
    /// Our code has it now.
    pub(super) fn take(Arrived { header, slot, connection }: Arrived, gpu: Option<&Arc<GpuSlots>>) -> Self {
        connection.taken();
        let uploaded = gpu.map(|slots| Uploaded::new(Arc::clone(slots)));
        Self { header, slot, connection, uploaded, is_acknowledged: false }
    }

    /// Length of the payload in bytes, wherever it lies.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut total = 0;
    /// while let Ok(frame) = listener.recv().await {
    ///     total += frame.len(); // also of frames that lie in a GPU, which bytes() does not have
    /// }
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.header.payload as usize
    }

    /// Whether there is no payload.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// // The two ends have agreed that a frame without payload is the last one.
    /// peers.send("").await?;
    /// assert!(listener.recv().await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.header.payload == 0
    }

    /// The payload in the GPU that the listener [was given](super::ListenerBuilder::gpu), until the frame is dropped. If a device has written it there, it is where it
    /// was written; else this copies it, the first time, and returns when that is done: for large frames not a thing for an async task that others wait for.
    ///
    /// All that the GPU is to do with it has to be done before the frame is dropped or acknowledged: then its place is used again. What a sender may still do to it is
    /// said at [`bytes`](Self::bytes).
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// let payload = frame.gpu()?;
    /// println!("{} bytes at {:#x}", payload.len(), payload.address());
    /// // The frame is kept until the GPU is done with them.
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if no GPU was given, it has no memory left, or it has failed.
    pub fn gpu(&self) -> Result<&GpuSlice, GpuError> {
        match (self.slot.gpu(), &self.uploaded) {
            (Some(landed), _) => {
                landed.memory().flush()?;
                Ok(landed)
            }
            (None, Some(uploaded)) => uploaded.payload(self.bytes()),
            (None, None) => {
                Err(GpuError::new("the listener has no GPU: give it one by ListenerBuilder::gpu"))
            }
        }
    }

    /// The payload, where the processor can read it: nothing of one that a device has written to a GPU, where [`gpu`](Self::gpu) has it.
    ///
    /// Under RDMA it is read where the sender's device has written it. A sender that breaks the protocol can go on writing there until the frame is dropped, so
    /// whoever does not trust its senders copies first what it decides by. Key and metadata are copies.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // A sender that is not trusted might write to the payload between two looks at it.
    /// let header: [u8; 16] = *frame.bytes().first_chunk().ok_or("a frame without its header")?;
    /// println!("{header:?}");
    /// # Ok(()) }
    /// ```
    pub fn bytes(&self) -> &[u8] {
        self.slot.payload(&self.header)
    }

    /// The key that it was sent with; empty if there was none.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// use multinet_client::Frame;
    ///
    /// peers.send(Frame::new("a picture").key("camera-17")).await?;
    /// assert_eq!(listener.recv().await?.key(), b"camera-17");
    /// # Ok(()) }
    /// ```
    pub fn key(&self) -> &[u8] {
        self.slot.key(&self.header)
    }

    /// The metadata that it was sent with; empty if there was none.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// use multinet_client::Frame;
    ///
    /// peers.send(Frame::new(vec![0; 12]).metadata("2x2 rgb24")).await?;
    /// let frame = listener.recv().await?;
    /// assert_eq!(std::str::from_utf8(frame.metadata())?, "2x2 rgb24");
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self) -> &[u8] {
        self.slot.metadata(&self.header)
    }

    /// The time that it was sent with.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // Of two nodes whose clocks do not quite agree, this may be an error.
    /// if let Some(Ok(age)) = frame.timestamp().map(|taken| taken.elapsed()) {
    ///     println!("{} ms old", age.as_millis());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn timestamp(&self) -> Option<SystemTime> {
        let nanoseconds = Duration::from_nanos(self.header.timestamp.unsigned_abs());
        match self.header.timestamp {
            0 => None,
            1.. => UNIX_EPOCH.checked_add(nanoseconds),
            _ => UNIX_EPOCH.checked_sub(nanoseconds),
        }
    }

    /// Which frame it is. It has the same id whenever, and to whomever, it is sent.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// let sent = peers.send("a frame").await?;
    /// let frame = listener.recv().await?;
    /// assert_eq!(frame.id(), sent.id()); // by which the two ends' logs can be laid side by side
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> FrameId {
        FrameId { session: self.connection.session(), sequence: self.header.sequence }
    }

    /// Whether it has been sent before, to this receiver, which did not get or want it, or to another, which may have.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener, is_done: fn(multinet_client::FrameId) -> bool) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // Only of repeats it has to be looked up whether another receiver has done the work.
    /// if !(frame.is_repeat() && is_done(frame.id())) {
    ///     println!("{} bytes", frame.len());
    /// }
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    pub fn is_repeat(&self) -> bool {
        self.header.is_repeat
    }

    /// Who sent it.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// println!("{} bytes from {}", frame.len(), frame.sender().name());
    /// # Ok(()) }
    /// ```
    pub fn sender(&self) -> Sender<'_> {
        Sender(&self.connection)
    }

    /// Tells the sender that it need not keep the frame any longer: whatever had to be done with it has been done.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// std::fs::write("/data/picture", frame.bytes())?;
    /// // Not before, or the frame would be lost with this pod.
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    pub fn acknowledge(mut self) {
        self.is_acknowledged = true;
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        match self.connection.delivery() {
            Delivery::AtMostOnce => self.connection.give_back(slot),
            Delivery::AtLeastOnce => {
                let is_acknowledged =
                    self.is_acknowledged || self.connection.acknowledge_mode() == Acknowledge::OnDrop;
                self.connection.settle(slot, self.header.sequence, is_acknowledged);
            }
        }
    }
}

impl<'r> Sender<'r> {
    /// What it calls itself: its pod's name, as a rule.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::collections::BTreeMap;
    ///
    /// let mut frames = BTreeMap::new();
    /// while let Ok(frame) = listener.recv().await {
    ///     *frames.entry(frame.sender().name().to_owned()).or_insert(0) += 1;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &'r str {
        self.0.name()
    }

    /// Its address.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// peers.send("a frame").await?;
    /// // It tells which network the frame came by.
    /// assert!(listener.recv().await?.sender().address().ip().is_loopback());
    /// # Ok(()) }
    /// ```
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.address()
    }

    /// Whom its certificate is for, whatever it calls itself: its URI, as those of SPIFFE have one, or else its DNS names. None without TLS.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // All pods of the namespace may send, but only one of their kinds has weights for us.
    /// if frame.key() == b"weights" && frame.sender().certificate_names() != ["spiffe://cluster.local/ns/vision/sa/train"] {
    ///     return Err(format!("weights from {:?}", frame.sender()).into());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn certificate_names(&self) -> &'r [String] {
        &self.0.owner
    }

    /// Uid of its pod, if it told.
    ///
    /// ```no_run
    /// # async fn example(listener: &multinet_client::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // The name of a StatefulSet's pod stays, its uid does not.
    /// println!("{} with uid {}", frame.sender().name(), frame.sender().uid().unwrap_or("unknown"));
    /// # Ok(()) }
    /// ```
    pub fn uid(&self) -> Option<&'r str> {
        self.0.uid()
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("sender", &self.connection.name())
            .field("sequence", &self.header.sequence)
            .field("length", &self.len())
            .finish()
    }
}

impl fmt::Debug for Sender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.address())
    }
}
