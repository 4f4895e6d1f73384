//! Received frames, as the program has them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use multinet_memory::{GpuError, GpuSlice};

use super::Acknowledge;
use super::control::Connection;
use super::ended::Ended;
use super::gpu::{Upload, UploadPool};
use super::queue::Arrived;
use super::slot::Slot;
use crate::frame::FrameId;
use crate::handshake::Delivery;
use crate::wire::Data;

/// A received frame. To drop it gives its memory, and the credit for that, back to the sender.
///
/// Under [at least once](Delivery::AtLeastOnce), the sender keeps the frame until it is
/// [acknowledged](Self::acknowledge).
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     listener: &multinet_client::Listener,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// // If this fails, the frame is dropped, and its sender sends it to another receiver.
/// std::fs::write("/data/picture", frame.bytes())?;
/// frame.acknowledge();
/// # Ok(()) }
/// ```
#[must_use = "dropping it without acknowledge() returns it to its sender"]
pub struct Received {
    header: Data,
    /// Place of key, metadata and payload; empty once `drop` has given it back.
    slot: Slot,
    connection: Arc<Connection>,
    /// Copy of the payload in the listener's GPU, made on demand; `None` if the listener has no
    /// GPU.
    upload: Option<Upload>,
    is_acknowledged: bool,
    /// Number of bytes at the beginning of the metadata that are the library's own.
    hidden: usize,
}

/// The sender of a frame.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     listener: &multinet_client::Listener,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let frame = listener.recv().await?;
/// // Its name and its address.
/// println!("a frame from {:?}", frame.sender());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Sender<'r>(&'r Connection);

impl Received {
    /// Takes a frame from the queue for the program, and tells its sender so.
    pub(super) fn take(Arrived { header, slot, connection }: Arrived, gpu: Option<&Arc<UploadPool>>) -> Self {
        connection.take();
        let upload = gpu.map(|pool| Upload::new(Arc::clone(pool)));
        Self { header, slot, connection, upload, is_acknowledged: false, hidden: 0 }
    }

    /// Returns the length of the payload in bytes, wherever that lies.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut total = 0;
    /// while let Ok(frame) = listener.recv().await {
    ///     total += frame.len(); // also of frames that lie in a GPU, which bytes() does not have
    /// }
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.header.payload as usize
    }

    /// Returns whether the frame has no payload.
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

    /// Returns the payload in the GPU that the listener [was given](super::ListenerBuilder::gpu).
    /// If a device has written it there, it is where it was written. Otherwise the first call
    /// copies it, and returns when that is done; for large frames, do not call it in an async task
    /// that others wait for.
    ///
    /// The GPU must be done with the payload before the frame is dropped or acknowledged, as its
    /// place is used again then. [`bytes`](Self::bytes) says what a sender may still do to it.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// let payload = frame.gpu()?;
    /// println!("{} bytes at {:#x}", payload.len(), payload.address());
    /// // The frame is kept until the GPU is done with it.
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], if the listener has no GPU, or the GPU has no memory left, or has failed.
    pub fn gpu(&self) -> Result<&GpuSlice, GpuError> {
        match (self.slot.gpu(), &self.upload) {
            (Some(landed), _) => {
                landed.memory().flush()?;
                Ok(landed)
            }
            (None, Some(upload)) => upload.payload(self.bytes()),
            (None, None) => {
                Err(GpuError::new("the listener has no GPU: give it one by ListenerBuilder::gpu"))
            }
        }
    }

    /// Returns the payload, where the processor can read it. It is empty if a device has written
    /// the payload to a GPU, where [`gpu`](Self::gpu) has it.
    ///
    /// Under RDMA, it is read where the sender's device has written it. A sender that breaks the
    /// protocol can go on writing there until the frame is dropped. If you do not trust your
    /// senders, copy what you decide by before you look at it. Key and metadata are copies.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // A sender that is not trusted might write to the payload between two looks at it.
    /// let header: [u8; 16] = *frame.bytes().first_chunk().ok_or("a frame without its header")?;
    /// println!("{header:?}");
    /// # Ok(()) }
    /// ```
    pub fn bytes(&self) -> &[u8] {
        self.slot.payload(&self.header)
    }

    /// Returns the key that the frame was sent with; empty if there was none.
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

    /// Returns the metadata that the frame was sent with; empty if there was none.
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
        self.slot.metadata(&self.header).get(self.hidden..).unwrap_or_default()
    }

    /// Ends the connection that it came by: it answers a question that was not asked.
    pub(crate) fn refuse_answer(self) {
        self.connection.close_with(Ended::Unasked);
    }

    /// Hides the first bytes of the metadata from the program.
    pub(crate) fn hide_metadata(&mut self, bytes: usize) {
        self.hidden = bytes;
    }

    /// Returns the timestamp that the sender has given the frame, if it has.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // An error, if the clocks of the two nodes differ by more than the age.
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

    /// Returns the frame's id, which stays the same when the frame is sent again, also to another
    /// receiver.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// let sent = peers.send("a frame").await?;
    /// let frame = listener.recv().await?;
    /// assert_eq!(frame.id(), sent.id()); // joins the logs of the two ends
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> FrameId {
        FrameId { session: self.connection.hello.session.0, sequence: self.header.sequence }
    }

    /// Returns whether the frame has been sent before: to this receiver, which did not get it or
    /// rejected it, or to another, which may have it.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// #     is_done: fn(multinet_client::FrameId) -> bool,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // Only for repeats, check whether another receiver has done the work.
    /// if !(frame.is_repeat() && is_done(frame.id())) {
    ///     println!("{} bytes", frame.len());
    /// }
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    pub fn is_repeat(&self) -> bool {
        self.header.is_repeat
    }

    /// Returns the sender of the frame.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// println!("{} bytes from {}", frame.len(), frame.sender().name());
    /// # Ok(()) }
    /// ```
    pub fn sender(&self) -> Sender<'_> {
        Sender(&self.connection)
    }

    /// Tells the sender that the frame has been dealt with, so that it need not keep it any longer.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// std::fs::write("/data/picture", frame.bytes())?;
    /// // Not earlier, or the frame would be lost with this pod.
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
        match self.connection.hello.delivery {
            Delivery::AtMostOnce => self.connection.give_back(slot),
            Delivery::AtLeastOnce => {
                let is_acknowledged =
                    self.is_acknowledged || self.connection.acknowledge == Acknowledge::OnDrop;
                self.connection.decide(slot, self.header.sequence, is_acknowledged);
            }
        }
    }
}

impl<'r> Sender<'r> {
    /// Returns the name that the sender gives itself, usually that of its pod.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::collections::BTreeMap;
    ///
    /// let mut frames = BTreeMap::new();
    /// while let Ok(frame) = listener.recv().await {
    ///     *frames.entry(frame.sender().name().to_owned()).or_insert(0) += 1;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &'r str {
        &self.0.hello.from
    }

    /// Returns the address that the sender is connected from.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// peers.send("a frame").await?;
    /// // The address shows by which network the frame came.
    /// assert!(listener.recv().await?.sender().address().ip().is_loopback());
    /// # Ok(()) }
    /// ```
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.address
    }

    /// Returns the names that the sender's certificate is for: its URI, as in certificates of
    /// SPIFFE, or else its DNS names. Empty without TLS. Unlike [`name`](Self::name), the sender
    /// cannot choose them.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // All pods of the namespace may send, but only those of one service account send weights.
    /// let trainer = ["spiffe://cluster.local/ns/vision/sa/train"];
    /// if frame.key() == b"weights" && frame.sender().certificate_names() != trainer {
    ///     return Err(format!("weights from {:?}", frame.sender()).into());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn certificate_names(&self) -> &'r [String] {
        &self.0.owner
    }

    /// Returns the uid of the sender's pod, if the sender knows it.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     listener: &multinet_client::Listener,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let frame = listener.recv().await?;
    /// // A StatefulSet's new pod has the name of the old one, but another uid.
    /// let (name, uid) = (frame.sender().name(), frame.sender().uid());
    /// println!("{name} with uid {}", uid.unwrap_or("unknown"));
    /// # Ok(()) }
    /// ```
    pub fn uid(&self) -> Option<&'r str> {
        self.0.hello.from_uid.as_deref()
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
            .field("sender", &self.connection.hello.from)
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
