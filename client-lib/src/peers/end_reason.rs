//! Reasons why a connection to a peer ends.

use std::io;

use thiserror::Error;

use crate::outbound::InvalidReport;
use crate::rdma::{QueuePairError, Violation};
use crate::wire::WireError;

/// Reason why a connection to a peer has ended.
#[derive(Debug, Error)]
pub(crate) enum EndReason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer closed the connection: {0}")]
    ClosedWith(String),
    #[error("the peer broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the peer broke the protocol: a frame, where only receivers' messages are allowed")]
    UnexpectedFrame,
    #[error("the peer broke the protocol: it asks for a payload, where it receives frames")]
    UnexpectedAsk,
    #[error("the peer broke the protocol: it asks for an id that cannot be one")]
    InvalidId,
    #[error("the peer broke the protocol: it asks for more payloads at a time than is allowed")]
    TooManyAsks,
    #[error("the peer broke the protocol: {0}")]
    InvalidReport(#[from] InvalidReport),
    #[error("the peer broke the protocol: {0}")]
    Rdma(#[from] Violation),
    #[error("the peer broke the protocol: it answers by TCP, where RDMA was agreed")]
    WrongTransport,
    #[error("RDMA has failed: {0}")]
    Failed(#[from] QueuePairError),
    #[error("the connection is no longer needed")]
    NotNeeded,
}
