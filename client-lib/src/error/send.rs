//! Errors of sending frames.

use thiserror::Error;

use crate::resolve::ResolveError;

/// Error of sending a frame that will never succeed.
///
/// # Examples
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/loopback.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (listener, peers) = loopback().await?;
/// use multinet_client::SendError;
///
/// let picture = vec![0; 9 << 20];
/// match peers.send(picture).await {
///     Err(SendError::TooLarge { most, .. }) => assert_eq!(most, 8 << 20), // send it in parts
///     other => panic!("{other:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The frame's payload is larger than any connected peer accepts.
    #[error(
        "a frame of {length} bytes is too large, the peers take {most}: raise the receivers' frame size, or send less"
    )]
    TooLarge {
        /// Length of the frame's payload, in bytes.
        length: usize,
        /// Largest payload that a connected peer accepts, in bytes.
        most: usize,
    },
    /// The frame's key or metadata is too long.
    #[error("the frame's {what} has {length} bytes, more than the {most} allowed")]
    HeaderTooLong {
        /// Part of the frame that is too long: key or metadata.
        what: &'static str,
        /// Length of that part, in bytes.
        length: usize,
        /// Longest part of this kind that is allowed, in bytes.
        most: usize,
    },
    /// DNS no longer names the peer that the caller chose for the frame.
    #[error("the peer is gone: DNS no longer names it")]
    Gone,
    /// The PeerSet has been closed, and takes no more frames.
    #[error("the PeerSet is closed")]
    Closed,
    /// The name that was given to [`Connector::start`](crate::Connector::start), or the resolver's
    /// configuration, is wrong, so no peer will be found.
    #[error("no peer will be found: {0}")]
    Resolve(#[source] ResolveError),
}

/// Reason why a frame could not be sent at once.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet, picture: Vec<u8>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::TrySendError;
///
/// match peers.try_send(picture) {
///     Ok(_) => {}
///     Err((_, TrySendError::Never(error))) => return Err(error.into()),
///     // No peer has room, or none is connected. The next picture is as good.
///     Err((_picture, _)) => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// No peer is connected, so the frame cannot be sent now.
    #[error("no peer is connected")]
    NoPeer,
    /// Every peer has used all its slots, or the [replay buffer](crate::ConnectorBuilder::replay)
    /// is full.
    #[error("no peer has room for another frame")]
    Full,
    /// At least once: 65,535 frames have been sent since one that no receiver's application has
    /// acknowledged or dropped. Receivers can tell no more frames apart than that. So nothing is
    /// sent to any peer before that frame is decided.
    #[error(
        "frame {sequence} is undecided, and 65,535 have been sent since: its receiver's application has to acknowledge or drop it"
    )]
    Undecided {
        /// Sequence number of the undecided frame.
        sequence: u64,
    },
    /// The frame can never be sent, for a reason that waiting does not cure.
    #[error(transparent)]
    Never(#[from] SendError),
}

/// Reason why a frame has not been acknowledged and will not be.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Unacknowledged;
///
/// let owner = peers.peer("store-3").ok_or("no such pod")?;
/// let sent = owner.send("an update").await?;
/// match sent.acknowledged().await {
///     Ok(()) => {}
///     // The pod is gone, and its state with it.
///     Err(Unacknowledged::GivenUp) => println!("its successor has to start over"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unacknowledged {
    /// The one peer that it was for is gone, or the frame cannot be read from its GPU. At most
    /// once, its connection may also have broken while it was written.
    ///
    /// Only the latest few thousand frames that were given up are remembered. A query about an
    /// older frame may return this even though the frame was acknowledged, but never the reverse.
    #[error(
        "a frame was given up: the one peer that it was for is gone, it cannot be read from its GPU, or its connection broke while it was written; send it again if it is still needed"
    )]
    GivenUp,
    /// The PeerSet was closed before a receiver acknowledged the frame.
    #[error(
        "the PeerSet was closed before the frame was acknowledged: give close() more time, or send it by another PeerSet"
    )]
    Closed,
}
