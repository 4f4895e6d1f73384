//! Connected peers of a service.

#[cfg(feature = "rdma")]
mod answers;
pub(crate) mod dial;
pub(crate) mod manager;
mod serve;
pub(crate) mod shared;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::choose::hash;
use crate::endpoint::Endpoint;
use crate::error::{SendError, TrySendError};
use crate::frame::{Frame, FrameId};
use crate::handshake::TransportKind;
use crate::outbound::{PeerId, Refused};
pub(crate) use serve::close;
use shared::{Link, Shared, State};

/// Payloads up to this, in bytes, may wait a moment for others if many are under way: a system call costs more than they do.
const SMALL: usize = 16 << 10;

/// The peers of a service, which come and go while it stays. A clone is another handle; when the last one is dropped, all
/// connections are closed.
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
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PeerSet {
    pub(crate) handle: Arc<Handle>,
}

/// Ends everything when the last PeerSet and Peer are dropped.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: u128,
    pub(crate) choice: crate::Choice,
}

/// One peer of a [`PeerSet`]. A clone is another handle.
#[derive(Clone)]
pub struct Peer {
    handle: Arc<Handle>,
    id: PeerId,
    endpoint: Arc<Endpoint>,
}

/// A frame that a peer has been chosen for.
#[derive(Clone)]
pub struct Sent {
    handle: Arc<Handle>,
    sequence: u64,
}

/// What a PeerSet has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that a peer was chosen for.
    pub frames: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Frames that receivers have acknowledged (at least once).
    pub acknowledged: u64,
    /// Frames that were sent again.
    pub repeats: u64,
    /// Frames that a receiver's code dropped without acknowledging them.
    pub rejected: u64,
    /// Frames that had been written to a connection that broke before the receiver said that its code took them (at most once).
    pub lost: u64,
    /// Frames for one peer only that has gone, or in a GPU that they cannot be read from.
    pub undeliverable: u64,
    /// Connections that have ended, in whatever way.
    pub disconnects: u64,
    /// Peers that are connected now.
    pub connected: usize,
    /// Frames that have been sent and whose slots the receivers have not freed.
    pub outstanding: u64,
    /// Frames that the receivers have room for.
    pub credits: u64,
    /// Frames that wait to be written, or to be acknowledged.
    pub held: usize,
}

/// Why a [`Peer`] has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerClosed {
    /// DNS no longer names it: its pod is not ready any more, or gone.
    Removed,
    /// DNS names another pod in its place.
    Replaced,
    /// The [`PeerSet`] has been closed.
    PeerSet,
}

/// What a PeerSet was closed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Frames that had not been written (at most once) or acknowledged (at least once) in time, and that are lost now.
    pub unfinished: usize,
}

/// A peer, and how it is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// What DNS says of it.
    pub endpoint: Arc<Endpoint>,
    /// Whether it is connected.
    pub is_connected: bool,
    /// How frames travel to it, if it is connected.
    pub transport: Option<TransportKind>,
    /// Why that is not RDMA.
    pub instead_of_rdma: Option<String>,
    /// Frames under way to it.
    pub outstanding: u64,
    /// Why it could not be connected, most recently.
    pub last_error: Option<String>,
}

impl PeerSet {
    /// Sends a frame to a peer of the library's choice ([`Choice`](crate::Choice)).
    ///
    /// Completes when a peer has room for the frame; waits while none has, or none is there. The frame then belongs to the library:
    /// see [`Sent`] for what has become of it. A cancelled send has either not happened or happened wholly.
    ///
    /// A frame is written to the socket at once, but for a small one behind many others: that may be written when this task waits for
    /// something, together with those that follow. So a task that computes for long after it has sent should yield first
    /// (`tokio::task::yield_now`), as any task should.
    ///
    /// # Errors
    ///
    /// [`SendError`], if it can never be sent.
    pub async fn send(&self, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        self.handle.send(frame.into(), None).await
    }

    /// Sends a frame, unless it would have to wait. A frame that was not sent is given back.
    ///
    /// # Errors
    ///
    /// [`TrySendError`], with the frame.
    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    pub fn try_send(&self, frame: impl Into<Frame>) -> Result<Sent, (Frame, TrySendError)> {
        self.handle.try_send(frame.into(), None)
    }

    /// Sends several buffers as one frame. TCP writes them from where they lie; RDMA copies them together.
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
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`SendError::Gone`] if DNS no longer names the peer.
    pub async fn send_to(&self, peer: &Peer, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        self.handle.send(frame.into(), Some(peer.id)).await
    }

    /// Sends a frame to every peer that is connected now, and waits until each has room for it. Gives how many there were;
    /// a peer that goes meanwhile is not counted.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn broadcast(&self, frame: impl Into<Frame>) -> Result<usize, SendError> {
        let frame = frame.into();
        let peers: Vec<PeerId> =
            self.handle.shared.state().outbound.connected().map(|(peer, _)| peer).collect();
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

    /// The peer with this host label, such as `detect-infer-0`, if DNS names it.
    pub fn peer(&self, host: &str) -> Option<Peer> {
        self.peers().into_iter().find(|peer| peer.endpoint.host == host)
    }

    /// All peers that DNS names, connected or not, by name.
    pub fn peers(&self) -> Vec<Peer> {
        let state = self.handle.shared.state();
        let mut peers: Vec<Peer> = state
            .endpoints
            .iter()
            .map(|(&id, endpoint)| Peer {
                handle: Arc::clone(&self.handle),
                id,
                endpoint: Arc::clone(endpoint),
            })
            .collect();
        drop(state);
        peers.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        peers
    }

    /// How each peer is doing, by name.
    pub fn status(&self) -> Vec<PeerStatus> {
        let state = self.handle.shared.state();
        let connected: std::collections::HashMap<_, _> = state.outbound.connected().collect();
        let mut all: Vec<PeerStatus> = state
            .endpoints
            .iter()
            .map(|(id, endpoint)| PeerStatus {
                endpoint: Arc::clone(endpoint),
                is_connected: connected.contains_key(id),
                transport: connected.get(id).map(|_| state.transport(*id)),
                instead_of_rdma: connected.get(id).and_then(|_| state.instead_of_rdma(*id)),
                outstanding: connected.get(id).copied().unwrap_or_default(),
                last_error: state.failures.get(id).cloned(),
            })
            .collect();
        drop(state);
        all.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        all
    }

    /// What has happened so far.
    pub fn statistics(&self) -> Statistics {
        let state = self.handle.shared.state();
        let counts = state.outbound.counts();
        let (connected, outstanding) =
            state.outbound.connected().fold((0, 0), |(peers, sum), (_, frames)| (peers + 1, sum + frames));
        Statistics {
            frames: counts.submitted,
            bytes: counts.bytes,
            acknowledged: counts.acknowledged,
            repeats: counts.repeats,
            rejected: counts.rejected,
            lost: counts.lost,
            undeliverable: counts.undeliverable,
            disconnects: counts.reconnects,
            connected,
            outstanding,
            credits: state.outbound.credits(),
            held: state.outbound.held(),
        }
    }

    pub(crate) fn choice(&self) -> crate::Choice {
        self.handle.choice
    }

    /// Waits until every frame so far has been handed to the kernel (at most once) or acknowledged (at least once).
    pub async fn flush(&self) {
        self.handle.shared.until(|state| (state.is_closed || state.outbound.is_idle()).then_some(())).await;
    }

    /// Waits until at most so many frames are [outstanding](Statistics::outstanding). With 0: until the receivers' code has let go of every
    /// frame so far, or the connections that had them are gone.
    pub async fn outstanding_at_most(&self, frames: u64) {
        let is_enough = |state: &mut State| {
            let outstanding: u64 = state.outbound.connected().map(|(_, frames)| frames).sum();
            (state.is_closed || outstanding <= frames).then_some(())
        };
        self.handle.shared.until(is_enough).await;
    }

    /// Waits until at least so many peers are connected, or the PeerSet is closed.
    pub async fn connected(&self, count: usize) {
        let is_enough = |state: &mut State| {
            (state.is_closed || state.outbound.connected().count() >= count).then_some(())
        };
        self.handle.shared.until(is_enough).await;
    }

    /// Takes no more frames, finishes those that there are within `patience`, and closes all connections.
    pub async fn close(self, patience: Duration) -> Closed {
        self.handle.shared.state().is_closing = true;
        // Whoever waits for room hears it.
        self.handle.shared.progress.notify_waiters();
        // Those that have been written are on their way; what the receivers have not taken yet is given time, too.
        let finished = self.handle.shared.until(|state| {
            let outstanding = state.outbound.connected().any(|(_, frames)| frames > 0);
            (state.outbound.is_idle() && !outstanding).then_some(())
        });
        let _ = timeout(patience, finished).await;
        let unfinished = self.handle.shared.state().close();
        self.handle.shared.shutdown.cancel();
        self.handle.shared.progress.notify_waiters();
        self.handle.shared.until(|state| state.links.is_empty().then_some(())).await;
        Closed { unfinished }
    }
}

impl Peer {
    /// What DNS says of it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a frame to this peer and no other.
    ///
    /// # Errors
    ///
    /// As [`PeerSet::send_to`].
    pub async fn send(&self, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        self.handle.send(frame.into(), Some(self.id)).await
    }

    /// Completes when the peer has gone for good, and says why. A connection that breaks is no end: it is made again.
    pub async fn closed(&self) -> PeerClosed {
        let target = &self.endpoint.target;
        let has_gone = |state: &mut State| match state {
            state if state.is_closed => Some(PeerClosed::PeerSet),
            state if state.outbound.knows(self.id) => None,
            // The entry of this one itself may still be there.
            state if state.endpoints.iter().any(|(id, other)| *id != self.id && other.target == *target) => {
                Some(PeerClosed::Replaced)
            }
            _ => Some(PeerClosed::Removed),
        };
        self.handle.shared.until(has_gone).await
    }
}

impl Sent {
    /// Which frame it is; the receiver sees the same.
    pub fn id(&self) -> FrameId {
        FrameId { session: self.handle.session, sequence: self.sequence }
    }

    /// Completes when the library has let go of the frame and its memory: at least once, when a receiver's code has acknowledged it
    /// (or it has been given up, which [`Statistics::undeliverable`] counts); at most once, when it has been handed to the kernel, or under
    /// RDMA when it has arrived in the receiver's memory.
    pub async fn acknowledged(&self) {
        let sequence = self.sequence;
        let is_gone = |state: &mut State| (state.is_closed || !state.outbound.has(sequence)).then_some(());
        self.handle.shared.until(is_gone).await;
    }
}

impl Handle {
    async fn send(self: &Arc<Self>, frame: Frame, to: Option<PeerId>) -> Result<Sent, SendError> {
        // Room comes from another thread, too: who never waits for it must not keep this one from everything else.
        tokio::task::consume_budget().await;
        // As a rule there is room.
        let mut frame = match self.attempt(frame, to) {
            Ok(outcome) => return outcome,
            Err(back) => back,
        };
        loop {
            let mut progress = std::pin::pin!(self.shared.progress.notified());
            progress.as_mut().enable();
            match self.attempt(frame, to) {
                Ok(outcome) => return outcome,
                Err(back) => frame = back,
            }
            progress.await;
        }
    }

    /// Gives the frame back if it may be sent later.
    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    fn attempt(self: &Arc<Self>, frame: Frame, to: Option<PeerId>) -> Result<Result<Sent, SendError>, Frame> {
        match self.try_send(frame, to) {
            Ok(sent) => Ok(Ok(sent)),
            Err((_, TrySendError::Never(error))) => Ok(Err(error)),
            Err((back, TrySendError::NoPeer | TrySendError::Full)) => Err(back),
        }
    }

    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    fn try_send(self: &Arc<Self>, frame: Frame, to: Option<PeerId>) -> Result<Sent, (Frame, TrySendError)> {
        if let Some((what, length, most)) = frame.too_long() {
            return Err((frame, SendError::HeaderTooLong { what, length, most }.into()));
        }
        let (length, key) = (frame.len(), hash(&frame.key));
        let (sequence, link, may_linger) = {
            let mut state = self.shared.state();
            if let Err(error) = state.open() {
                return Err((frame, error.into()));
            }
            let submitted = state.outbound.submit(frame, (length, key), to);
            let (sequence, link) =
                submitted.map_err(|(frame, refused)| (frame, refused.into_error(length)))?;
            let may_linger = length <= SMALL && state.outbound.is_streaming(link);
            (sequence, state.links.get(&link).cloned(), may_linger)
        };
        match link {
            Some(link) if may_linger => link.kick_or_linger(),
            Some(link) => link.kick(),
            None => {}
        }
        Ok(Sent { handle: Arc::clone(self), sequence })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state().close();
        self.shared.shutdown.cancel();
    }
}

impl Refused {
    fn into_error(self, length: usize) -> TrySendError {
        match self {
            Self::NoPeer => TrySendError::NoPeer,
            Self::Full => TrySendError::Full,
            Self::TooLarge { most } => SendError::TooLarge { length, most }.into(),
            Self::Gone => SendError::Gone.into(),
        }
    }
}

impl std::fmt::Debug for PeerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerSet").field("statistics", &self.statistics()).finish()
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.endpoint).finish()
    }
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sent").field(&self.sequence).finish()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.id).finish()
    }
}
