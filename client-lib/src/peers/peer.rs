//! One peer of a service.

use std::sync::{Arc, Weak};

#[cfg(doc)]
use super::PeerSet;
use super::Sent;
use super::handle::PeerSetHandle;
use super::shared::{PeerSetState, SendState};
use crate::endpoint::Endpoint;
use crate::error::SendError;
use crate::frame::Frame;
use crate::outbound::PeerId;

/// Peer of a [`PeerSet`]. It does not keep the PeerSet open. Clones are handles of the same peer.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// // All parts go to the same peer.
/// let peer = peers.peers().into_iter().next().ok_or("no peer yet")?;
/// for part in ["begin", "go on", "end"] {
///     peer.send(part).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Peer {
    handle: Weak<PeerSetHandle>,
    shared: Arc<PeerSetState>,
    pub(super) id: PeerId,
    pub(super) endpoint: Arc<Endpoint>,
}

/// Reason why a [`Peer`] is gone.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peer: multinet_client::Peer) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::PeerClosed;
///
/// match peer.closed().await {
///     PeerClosed::Replaced => println!("its successor has none of its state: send that again"),
///     PeerClosed::Removed => println!("its part of the work is another one's now"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerClosed {
    /// DNS no longer names it: its pod is not ready any more, or is gone.
    Removed,
    /// DNS names another one in its place. That is another pod of the same name, which
    /// [`Endpoint::uid`] tells apart, or the same pod on another port.
    Replaced,
    /// The [`PeerSet`] to which the peer belonged has been closed or dropped.
    PeerSet,
}

impl Peer {
    pub(super) fn new(handle: &Arc<PeerSetHandle>, id: PeerId, endpoint: Arc<Endpoint>) -> Self {
        Self { handle: Arc::downgrade(handle), shared: Arc::clone(&handle.shared), id, endpoint }
    }

    pub(super) fn is_of(&self, handle: &PeerSetHandle) -> bool {
        Arc::ptr_eq(&self.shared, &handle.shared)
    }

    /// Returns the peer's endpoint, as DNS describes it.
    ///
    /// ```no_run
    /// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// // The number of peers in each zone.
    /// let mut zones = std::collections::BTreeMap::new();
    /// for peer in peers.peers() {
    ///     *zones.entry(peer.endpoint().zone.clone()).or_insert(0) += 1;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a frame to this peer and no other.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::SendError;
    ///
    /// let peer = peers.peer("detect-infer-0").ok_or("no such pod")?;
    /// match peer.send("a frame").await {
    ///     Err(SendError::Gone) => println!("{} has gone", peer.endpoint()),
    ///     outcome => drop(outcome?),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PeerSet::send_to`], and [`SendError::Closed`] if no handle of the PeerSet is left.
    pub async fn send(&self, frame: impl Into<Frame>) -> Result<Sent, SendError> {
        let handle = self.handle.upgrade().ok_or(SendError::Closed)?;
        handle.send(frame.into(), Some(self.id)).await
    }

    /// Completes when the peer is gone for good, with the reason. A broken connection does not
    /// complete it, since the library connects again.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// for peer in peers.peers() {
    ///     tokio::spawn(async move {
    ///         let why = peer.closed().await;
    ///         println!("{} has gone: {why:?}", peer.endpoint());
    ///     });
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn closed(&self) -> PeerClosed {
        let target = &self.endpoint.target;
        let has_gone = |state: &mut SendState| match state {
            state if state.has_ended() => Some(PeerClosed::PeerSet),
            state if state.outbound.knows(self.id) => None,
            // The peer's own entry may still be there.
            state if state.endpoints.iter().any(|(id, other)| *id != self.id && other.target == *target) => {
                Some(PeerClosed::Replaced)
            }
            _ => Some(PeerClosed::Removed),
        };
        self.shared.until(has_gone).await
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.endpoint).finish()
    }
}
