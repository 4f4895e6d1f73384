//! Reasons for which connections end.

use std::io;

use thiserror::Error;

use crate::rdma::{QueuePairError, Violation};
use crate::wire::WireError;

/// Reason for which a connection ended, as the log and the sender are told.
#[derive(Debug, Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the sender closed the connection")]
    Closed,
    #[error("the sender closed the connection: {0}")]
    Said(String),
    #[error("the sender broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the sender broke the protocol: a receiver's message, where only frames are allowed")]
    Control,
    #[error("the sender broke the protocol: a frame of {length} bytes, where {most} are allowed")]
    TooLarge { length: u32, most: u32 },
    #[error("the sender broke the protocol: more frames than it has credit for")]
    Credit,
    #[error("the sender broke the protocol: a frame by TCP, where RDMA was agreed")]
    Beside,
    #[error("the sender broke the protocol: {0}")]
    Rdma(#[from] Violation),
    #[error("RDMA has failed: {0}")]
    Failed(#[from] QueuePairError),
    #[error("the sender broke the protocol: it keeps to a limit that it was not told")]
    Unlimited,
    #[error("the sender broke the protocol: it answers a question that it was not asked")]
    Unasked,
    #[error("nothing more is fetched")]
    NotNeeded,
    #[error("another connection of the same sender has taken its place")]
    Superseded,
    /// Another sender needs the slots or the place. The text says how many senders share how many
    /// slots.
    #[error(
        "this sender, of which nothing was unacknowledged, has made room for another, and may come back: {0}"
    )]
    MadeRoom(String),
    #[error("the listener closes")]
    Shutdown,
}

impl Ended {
    /// Returns whether the sender has closed the connection itself, which is no error.
    pub(super) fn is_goodbye(&self) -> bool {
        matches!(self, Self::Closed | Self::Said(_))
    }

    /// Returns whether the connection ended because the sender has broken the protocol.
    pub(super) fn is_violation(&self) -> bool {
        match self {
            Self::Wire(_) | Self::Control | Self::TooLarge { .. } | Self::Credit => true,
            Self::Beside | Self::Rdma(_) | Self::Unlimited | Self::Unasked => true,
            Self::Io(_) | Self::Failed(_) | Self::Closed | Self::Said(_) => false,
            Self::Superseded | Self::MadeRoom(_) | Self::Shutdown | Self::NotNeeded => false,
        }
    }
}
