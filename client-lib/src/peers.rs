//! Connected peers of a service.

#[cfg(feature = "rdma")]
mod answers;
pub(crate) mod dial;
mod end_reason;
mod handle;
pub(crate) mod location;
mod lock;
pub(crate) mod manager;
mod peer;
mod rails;
mod serve;
pub(crate) mod shared;
pub(crate) mod single;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::error::{SendError, TrySendError, Unacknowledged};
use crate::frame::Frame;
use crate::outbound::PeerId;
pub use crate::outbound::Statistics;
pub(crate) use handle::PeerSetHandle;
pub use handle::Sent;
pub use peer::{Peer, PeerClosed};
pub(crate) use serve::close;
use shared::{Link, SendState};
pub use status::{Closed, PeerStatus};

/// Peers of a service. They come and go while the PeerSet stays.
///
/// Clones are handles of the same PeerSet. When the last one is dropped, and no [`Sent`] of it is
/// left, all connections end. Frames that a connection has been given by then are still written,
/// for at most ten seconds and as long as the runtime runs. Their outcome is not reported, and
/// frames that their own peer does not take go to no other one. [`flush`](Self::flush) and
/// [`close`](Self::close) wait for both.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Connector, Frame};
///
/// let peers = Connector::builder().build()?.connect("infer.vision.svc.multinet", "rdma").await?;
/// for number in 0..1000 {
///     peers.send(Frame::new(vec![0; 1 << 20]).key(format!("camera-{}", number % 16))).await?;
/// }
/// let left = peers.close(std::time::Duration::from_secs(10)).await;
/// assert_eq!(left.unfinished, 0);
/// # Ok(()) }
/// ```
pub struct PeerSet {
    pub(crate) handle: Arc<PeerSetHandle>,
    /// Number of frames given up until the last `flush` returned, so that the next reports only new
    /// ones.
    given_up: AtomicU64,
}

impl PeerSet {
    pub(crate) fn new(handle: PeerSetHandle) -> Self {
        Self { handle: Arc::new(handle), given_up: AtomicU64::new(0) }
    }

    /// Sends a frame to a peer that the library chooses ([`Choice`](crate::Choice)).
    ///
    /// Completes when a peer has room for the frame, and waits while none has. The library then
    /// owns the frame, and [`Sent`] reports what becomes of it. A send that is cancelled has either
    /// not happened or happened wholly. A program that ends right after may end before the frame is
    /// written, or repeated after its connection broke: [`flush`](Self::flush) and
    /// [`close`](Self::close) wait for that.
    ///
    /// A frame is written to the socket at once. Only a small frame behind many others may be
    /// written together with those that follow, when this task waits for something. A task that
    /// computes for long after a send should yield first (`tokio::task::yield_now`), as any task
    /// should.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// let sent = peers.send("a frame").await?;
    /// assert_eq!(listener.recv().await?.id(), sent.id());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SendError`], if the frame can never be sent.
    pub async fn send(&self, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        self.handle.send(frame.into(), None).await
    }

    /// Sends a frame if a peer has room for it now. Otherwise returns the frame.
    ///
    /// ```no_run
    /// # fn example(
    /// #     peers: &multinet_client::PeerSet, picture: Vec<u8>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // A camera does not wait: a picture that no peer has room for is left out.
    /// if let Err((picture, why)) = peers.try_send(picture) {
    ///     println!("{} bytes are not sent: {why}", picture.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TrySendError`], with the frame.
    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    pub fn try_send(&self, frame: impl Into<Frame>) -> Result<Sent, (Frame, TrySendError)> {
        self.handle.try_send(frame.into(), None)
    }

    /// Sends several buffers as one frame. TCP writes them from where they are, RDMA copies them
    /// together.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// use multinet_client::Buffer;
    ///
    /// let picture = Buffer::host(4096);
    /// peers.send_vectored([Buffer::from("head"), picture]).await?;
    /// assert_eq!(listener.recv().await?.len(), 4100);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn send_vectored(
        &self,
        buffers: impl IntoIterator<Item = crate::Buffer>,
    ) -> Result<Sent, SendError> {
        let mut buffers = buffers.into_iter();
        let first = buffers.next().unwrap_or_else(|| crate::Buffer::host(0));
        self.send(buffers.fold(Frame::new(first), Frame::and)).await
    }

    /// Sends a frame to one peer and no other.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet, parts: Vec<Vec<u8>>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // Each peer gets its own part of the weights.
    /// for (peer, part) in peers.peers().iter().zip(parts) {
    ///     peers.send_to(peer, part).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`SendError::Gone`] if DNS no longer names the peer, or if it
    /// is a peer of another PeerSet.
    pub async fn send_to(&self, peer: &Peer, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        if !peer.is_of(&self.handle) {
            return Err(SendError::Gone);
        }
        self.handle.send(frame.into(), Some(peer.id)).await
    }

    /// Sends a frame to every peer that is connected now, and waits until each has room for it.
    /// Returns the number of peers. A peer that goes meanwhile is not counted.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// peers.connected(1).await;
    /// let count = peers.broadcast("new weights").await?;
    /// assert_eq!(count, 1);
    /// assert_eq!(listener.recv().await?.bytes(), b"new weights");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send). After an error, or if this is cancelled, some peers may have the
    /// frame nevertheless: use [`send_to`](Self::send_to) to tell which.
    pub async fn broadcast(&self, frame: impl Into<Frame>) -> Result<usize, SendError> {
        let frame = frame.into();
        let peers: Vec<PeerId> = {
            let state = self.handle.shared.state();
            state.check_open()?;
            state.outbound.connected().map(|(peer, _)| peer).collect()
        };
        let sends = peers.into_iter().map(|peer| self.handle.send(frame.clone(), Some(peer)));
        let mut count = 0;
        for outcome in futures::future::join_all(sends).await {
            match outcome {
                Ok(_) => count += 1,
                Err(SendError::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Returns the peer with this host label, such as `detect-infer-0`, if DNS names it.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet, shard: u32, update: Vec<u8>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // The pods of a StatefulSet, each with a part of the data.
    /// let owner = peers.peer(&format!("store-{shard}")).ok_or("no pod has this part now")?;
    /// owner.send(update).await?;
    /// # Ok(()) }
    /// ```
    pub fn peer(&self, host: &str) -> Option<Peer> {
        self.peers().into_iter().find(|peer| peer.endpoint.host == host)
    }

    /// Returns all peers that DNS names, connected or not, sorted by name.
    ///
    /// ```no_run
    /// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// for peer in peers.peers() {
    ///     println!("{} on {:?}", peer.endpoint(), peer.endpoint().node);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn peers(&self) -> Vec<Peer> {
        let state = self.handle.shared.state();
        let mut peers: Vec<Peer> = state
            .endpoints
            .iter()
            .filter(|(id, _)| state.outbound.is_active(**id))
            .map(|(&id, endpoint)| Peer::new(&self.handle, id, Arc::clone(endpoint)))
            .collect();
        drop(state);
        peers.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        peers
    }

    /// Returns the state of each peer that DNS names, sorted by name.
    ///
    /// ```no_run
    /// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// for status in peers.status().iter().filter(|status| !status.is_connected) {
    ///     match &status.last_error {
    ///         None => println!("{}: still connecting", status.endpoint),
    ///         Some(error) => println!("{}: {error}", status.endpoint),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn status(&self) -> Vec<PeerStatus> {
        let state = self.handle.shared.state();
        let connected: std::collections::HashMap<_, _> = state.outbound.connected().collect();
        let mut all: Vec<PeerStatus> = state
            .endpoints
            .iter()
            .filter(|(id, _)| state.outbound.is_active(**id))
            .map(|(id, endpoint)| PeerStatus {
                endpoint: Arc::clone(endpoint),
                is_connected: connected.contains_key(id),
                transport: connected.get(id).map(|_| state.transport(*id)),
                instead_of_rdma: connected.get(id).and_then(|_| state.instead_of_rdma(*id)),
                outstanding: connected.get(id).copied().unwrap_or_default(),
                last_error: state.failures.get(id).cloned(),
                last_disconnect: state.breaks.get(id).cloned(),
            })
            .collect();
        drop(state);
        all.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        all
    }

    /// Returns counts of frames, peers and connections.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// peers.send("a frame").await?;
    /// let now = peers.statistics();
    /// assert_eq!((now.frames, now.bytes, now.lost), (1, 7, 0));
    /// # Ok(()) }
    /// ```
    pub fn statistics(&self) -> Statistics {
        self.handle.shared.state().outbound.statistics()
    }

    pub(crate) fn choice(&self) -> crate::Choice {
        self.handle.choice
    }

    /// Waits until every frame so far has been handed to the kernel (at most once) or acknowledged
    /// (at least once). Does not wait for frames that are sent meanwhile.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet, batch: Vec<Vec<u8>>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// for frame in batch {
    ///     peers.send(frame).await?;
    /// }
    /// peers.flush().await?;
    /// // At least once: every frame has been acknowledged, and the batch need not be kept.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unacknowledged`], if a frame of any handle has been given up since the last flush of this
    /// handle, or if the PeerSet is closed first. Each clone reports such frames once.
    /// [`Sent::acknowledged`] tells which frame it was.
    pub async fn flush(&self) -> Result<(), Unacknowledged> {
        let next = self.handle.shared.state().outbound.next_sequence();
        let outcome = |state: &mut SendState| match &state.outbound {
            outbound if outbound.is_idle_before(next) => Some(Ok(outbound.given_up())),
            _ => state.has_ended().then_some(Err(Unacknowledged::Closed)),
        };
        let given_up = self.handle.shared.until(outcome).await?;
        let before = self.given_up.fetch_max(given_up, Ordering::Relaxed);
        if given_up > before { Err(Unacknowledged::GivenUp) } else { Ok(()) }
    }

    /// Waits until at most this number of frames is [outstanding](Statistics::outstanding). With 0,
    /// waits until the receivers' code has released every frame so far, or their connections are
    /// gone.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// peers.send("a frame").await?;
    /// drop(listener.recv().await?);
    /// peers.outstanding_at_most(0).await; // the receiver's code is done with it
    /// assert_eq!(peers.statistics().outstanding, 0);
    /// # Ok(()) }
    /// ```
    pub async fn outstanding_at_most(&self, frames: u64) {
        let is_enough = |state: &mut SendState| {
            let outstanding: u64 = state.outbound.connected().map(|(_, frames)| frames).sum();
            (state.has_ended() || outstanding <= frames).then_some(())
        };
        self.handle.shared.until(is_enough).await;
    }

    /// Waits until at least this number of peers is connected, or the PeerSet is closed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// // A frame for all peers waits until all are connected.
    /// peers.connected(1).await;
    /// assert_eq!(peers.broadcast("begin").await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn connected(&self, count: usize) {
        let is_enough = |state: &mut SendState| {
            (state.has_ended() || state.outbound.connected().count() >= count).then_some(())
        };
        self.handle.shared.until(is_enough).await;
    }

    /// Takes no more frames, finishes the others within `patience`, and closes all connections.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, peers) = loopback().await?;
    /// use std::time::Duration;
    ///
    /// peers.send("the last frame").await?;
    /// listener.recv().await?.acknowledge();
    /// let left = peers.close(Duration::from_secs(10)).await;
    /// assert_eq!(left.unfinished, 0);
    /// # Ok(()) }
    /// ```
    pub async fn close(self, patience: Duration) -> Closed {
        self.handle.shared.state().start_closing();
        // Senders that wait for room return an error.
        self.handle.shared.progress.notify_waiters();
        // Frames that are written may still be on their way, and the receivers' code may not have
        // taken them.
        let finished = self.handle.shared.until(|state| {
            let outstanding = state.outbound.connected().any(|(_, frames)| frames > 0);
            // Another handle may close the PeerSet with less patience.
            (state.has_ended() || state.outbound.is_idle() && !outstanding).then_some(())
        });
        let _ = timeout(patience, finished).await;
        let unfinished = self.handle.shared.state().close();
        self.handle.shared.shutdown.cancel();
        self.handle.shared.progress.notify_waiters();
        self.handle.shared.until(|state| state.links.is_empty().then_some(())).await;
        Closed { unfinished }
    }

    /// Completes when the PeerSet has been [closed](Self::close) by any of its handles, with the
    /// same result. Nothing else ends it while a handle exists.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let watched = peers.clone();
    /// tokio::spawn(async move {
    ///     let left = watched.closed().await;
    ///     println!("closed, with {} frames unfinished", left.unfinished);
    /// });
    /// # Ok(()) }
    /// ```
    pub async fn closed(&self) -> Closed {
        let shared = &self.handle.shared;
        shared.shutdown.cancelled().await;
        let unfinished = shared.state().close();
        Closed { unfinished }
    }
}

impl Clone for PeerSet {
    fn clone(&self) -> Self {
        let given_up = AtomicU64::new(self.given_up.load(Ordering::Relaxed));
        Self { handle: Arc::clone(&self.handle), given_up }
    }
}

impl std::fmt::Debug for PeerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerSet").field("statistics", &self.statistics()).finish()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.id).finish()
    }
}
