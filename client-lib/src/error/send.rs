//! Errors of sending frames.

use thiserror::Error;

use crate::resolve::ResolveError;

/// Why a frame was not sent.
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
    /// The payload is larger than any connected peer's slots.
    #[error(
        "a frame of {length} bytes, where the peers take {most}: raise the receivers' frame size, or send less"
    )]
    TooLarge {
        /// Its length.
        length: usize,
        /// The most that a peer takes.
        most: usize,
    },
    /// The key or the metadata is longer than it may be.
    #[error("a {what} of {length} bytes, where {most} are allowed")]
    HeaderTooLong {
        /// Which.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The most that it may have.
        most: usize,
    },
    /// The peer that was named has gone.
    #[error("the peer has gone: DNS no longer names it")]
    Gone,
    /// The PeerSet has been closed.
    #[error("the PeerSet is closed")]
    Closed,
    /// The name that [`Connector::start`](crate::Connector::start) was given, or the resolver's configuration, is wrong: there will be no peer.
    #[error("there is nobody to send to, and there will not be: {0}")]
    Resolve(#[source] ResolveError),
}

/// Why a frame could not be sent at once.
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
///     // Nobody has room, or is there: the next picture is as good.
///     Err((_picture, _)) => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// No peer is connected.
    #[error("no peer is connected")]
    NoPeer,
    /// Every peer has as many frames as it has room for, or as many frames as may
    /// ([`replay`](crate::ConnectorBuilder::replay)) wait for their acknowledgement.
    #[error("no peer has room for another frame")]
    Full,
    /// At least once: 65,535 frames have been sent since one that no receiver's code has decided on. Receivers tell no more than that from one
    /// another, so that nothing is sent, to nobody, before that one is acknowledged or let go of.
    #[error(
        "frame {sequence} is not decided on, and 65,535 have been sent since: let its receiver's code acknowledge it, or let go of it"
    )]
    Undecided {
        /// Its number.
        sequence: u64,
    },
    /// It can never be sent.
    #[error(transparent)]
    Never(#[from] SendError),
}

/// Why a frame has not been acknowledged, and will not be.
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
///     // The pod has gone with what it had.
///     Err(Unacknowledged::GivenUp) => println!("its successor has to begin anew"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unacknowledged {
    /// The one peer that it was for has gone, or it cannot be read from its GPU; at most once, the connection that it was being written to may have broken, too.
    /// Who asks late, when thousands more have been given up since, may hear this of one that was acknowledged, but never the reverse.
    #[error(
        "a frame was given up: the one peer that it was for has gone, it cannot be read from its GPU, or its connection broke while it was written; send it again if it is still needed"
    )]
    GivenUp,
    /// The PeerSet was closed first.
    #[error(
        "the PeerSet was closed before the frame was acknowledged: give close() more time, or send it by another PeerSet"
    )]
    Closed,
}
