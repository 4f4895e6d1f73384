//! Hands frames over to the library, and reports what becomes of them.

use std::sync::Arc;

use super::shared::{PeerSetState, SendState};
use crate::choose::hash;
use crate::error::{SendError, TrySendError, Unacknowledged};
use crate::frame::{Frame, FrameId};
use crate::outbound::{PeerId, Refused};

/// Largest payload, in bytes, that may wait for others while many are under way: a system call for
/// it alone would cost more than the wait.
const SMALL: usize = 16 << 10;

/// Shared handle of a PeerSet's clones and their [`Sent`]s. Connections end when it is dropped.
pub(crate) struct PeerSetHandle {
    pub(crate) shared: Arc<PeerSetState>,
    pub(crate) session: u128,
    pub(crate) choice: crate::Choice,
}

/// A frame that a peer has been chosen for. It keeps the [`PeerSet`](super::PeerSet) open.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// // All frames are under way before the program waits for the first one.
/// let mut sent = Vec::new();
/// for part in ["first", "second", "third"] {
///     sent.push(peers.send(part).await?);
/// }
/// for frame in sent {
///     frame.acknowledged().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sent {
    handle: Arc<PeerSetHandle>,
    sequence: u64,
}

impl Sent {
    /// Returns the identifier of the frame, which the receiver gets, too.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = peers.send("a frame").await?;
    /// println!("sent as number {}", sent.id().sequence); // as the receiver's log has it
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> FrameId {
        FrameId { session: self.handle.session, sequence: self.sequence }
    }

    /// Completes when the library has released the frame and its memory. At least once, that is
    /// when a receiver's code has acknowledged it. At most once, that is when it has been handed to
    /// the kernel, or by RDMA, when it has arrived in the receiver's memory.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     peers: &multinet_client::PeerSet, input: &std::path::Path,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = peers.send(std::fs::read(input)?).await?;
    /// sent.acknowledged().await?;
    /// // At least once: a receiver has done its work, and the file is not needed any more.
    /// std::fs::remove_file(input)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unacknowledged`], if that can no longer happen: the frame has been given up, or the
    /// PeerSet was closed first.
    pub async fn acknowledged(&self) -> Result<(), Unacknowledged> {
        self.handle.shared.until(|state| self.outcome_in(state)).await
    }

    /// Returns what [`acknowledged`](Self::acknowledged) returns, if that is known.
    pub(crate) fn outcome(&self) -> Option<Result<(), Unacknowledged>> {
        self.outcome_in(&self.handle.shared.state())
    }

    fn outcome_in(&self, state: &SendState) -> Option<Result<(), Unacknowledged>> {
        match &state.outbound {
            outbound if outbound.holds(self.sequence) => {
                state.has_ended().then_some(Err(Unacknowledged::Closed))
            }
            outbound if outbound.has_given_up(self.sequence) => Some(Err(Unacknowledged::GivenUp)),
            _ => Some(Ok(())),
        }
    }
}

impl PeerSetHandle {
    pub(super) async fn send(
        self: &Arc<Self>,
        mut frame: Frame,
        to: Option<PeerId>,
    ) -> Result<Sent, SendError> {
        // Room is made by other tasks. A task that always finds some must yield from time to time,
        // or it would keep its thread from all of them.
        tokio::task::consume_budget().await;
        let mut progress = std::pin::pin!(self.shared.progress.notified());
        let mut is_enabled = false;
        loop {
            frame = match self.try_send(frame, to) {
                Ok(sent) => return Ok(sent),
                Err((_, TrySendError::Never(error))) => return Err(error),
                Err((frame, TrySendError::NoPeer | TrySendError::Full | TrySendError::Undecided { .. })) => {
                    frame
                }
            };
            // Enabled before the next attempt, so that room which is made after it is not missed.
            // The first attempt needs none: usually a peer has room.
            if std::mem::replace(&mut is_enabled, true) {
                progress.as_mut().await;
                progress.set(self.shared.progress.notified());
            }
            progress.as_mut().enable();
        }
    }

    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    pub(super) fn try_send(
        self: &Arc<Self>,
        frame: Frame,
        to: Option<PeerId>,
    ) -> Result<Sent, (Frame, TrySendError)> {
        if let Some((what, length, most)) = frame.oversized_part() {
            return Err((frame, SendError::HeaderTooLong { what, length, most }.into()));
        }
        let (length, key) = (frame.len(), hash(&frame.key));
        let (sequence, link, may_linger) = {
            let mut state = self.shared.state();
            if let Err(error) = state.check_open() {
                return Err((frame, error.into()));
            }
            let submitted = state.outbound.submit(frame, length, key, to);
            let (sequence, link) = submitted.map_err(|(frame, refused)| {
                state.warn_undecided(refused);
                (frame, refused.into_error(length))
            })?;
            let may_linger = length <= SMALL && state.outbound.is_streaming(link);
            (sequence, state.links.get(&link).cloned(), may_linger)
        };
        match link {
            Some(link) if may_linger => link.try_flush_later(),
            Some(link) => link.try_flush(),
            None => {}
        }
        Ok(Sent { handle: Arc::clone(self), sequence })
    }
}

impl Drop for PeerSetHandle {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.abandon();
        drop(state);
        self.shared.shutdown.cancel();
        self.shared.progress.notify_waiters();
    }
}

impl Refused {
    fn into_error(self, length: usize) -> TrySendError {
        match self {
            Self::NoPeer => TrySendError::NoPeer,
            Self::Full => TrySendError::Full,
            Self::TooLarge { most } => SendError::TooLarge { length, most }.into(),
            Self::Undecided { sequence } => TrySendError::Undecided { sequence },
            Self::Gone => SendError::Gone.into(),
        }
    }
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sent").field(&self.sequence).finish()
    }
}
