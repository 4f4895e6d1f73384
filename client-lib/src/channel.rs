//! The way by which a side says what it has to say: the connection of the handshake, or a queue pair beside it.

use std::io;

use crate::rdma::{QueuePair, QueuePairError, Violation};
use crate::stream::{Message, MessageSource, MessageWriter};

/// Where messages are written to. It fails for a reason `E`.
pub(crate) enum DataChannel<E> {
    Tcp(MessageWriter),
    /// Goodbyes go by the connection of the handshake.
    Rdma(Box<QueuePair<E>>, MessageWriter),
}

impl<E: From<io::Error> + From<QueuePairError> + From<Violation>> DataChannel<E> {
    pub(crate) fn new(pair: Option<QueuePair<E>>, writer: MessageWriter) -> Self {
        match pair {
            Some(pair) => Self::Rdma(Box::new(pair), writer),
            None => Self::Tcp(writer),
        }
    }

    pub(crate) fn is_rdma(&self) -> bool {
        matches!(self, Self::Rdma(..))
    }

    /// Writes what there is, without waiting; the task goes on with the rest.
    pub(crate) fn try_flush(&self, source: &impl MessageSource) {
        match self {
            Self::Tcp(writer) => writer.try_flush(source),
            Self::Rdma(pair, _) => pair.try_flush(source),
        }
    }

    /// As [`try_flush`](Self::try_flush), or leaves it to the task, which writes more at once, where that saves something.
    pub(crate) fn try_flush_later(&self, source: &impl MessageSource) {
        match self {
            Self::Tcp(writer) => writer.try_flush_later(source),
            Self::Rdma(pair, _) => pair.try_flush_later(source),
        }
    }

    /// The task's part: writes what could not be written at once. Ends when nothing can be written any more.
    pub(crate) async fn run(&self, source: &impl MessageSource) -> E {
        match self {
            Self::Tcp(writer) => writer.run(source).await.into(),
            Self::Rdma(pair, _) => pair.run(source).await,
        }
    }

    /// Writes all that there is, in place of the task, and waits until it has arrived or is on its way.
    pub(crate) async fn flush(&self, source: &impl MessageSource) -> io::Result<()> {
        match self {
            Self::Tcp(writer) => writer.flush(source).await,
            Self::Rdma(pair, _) => {
                pair.flush(source).await;
                Ok(())
            }
        }
    }

    /// Writes what there is, and waits until it has arrived or is on its way before the other side; then says goodbye.
    pub(crate) async fn finish(&self, rest: &impl MessageSource, goodbye: Message) -> io::Result<()> {
        match self {
            Self::Tcp(writer) => {
                let rest = std::iter::from_fn(|| rest.next());
                writer.finish(rest.chain([goodbye])).await
            }
            Self::Rdma(pair, writer) => {
                pair.flush(rest).await;
                writer.finish([goodbye]).await
            }
        }
    }

    /// The other side sends one message after the other, waiting for something each time.
    pub(crate) fn use_delayed_acks(&self) {
        if let Self::Tcp(writer) = self {
            writer.use_delayed_acks();
        }
    }

    /// Ends the connection, though there may be handles of it for a while.
    pub(crate) async fn hang_up(&self) {
        let (Self::Tcp(writer) | Self::Rdma(_, writer)) = self;
        if let Self::Rdma(pair, _) = self {
            pair.hang_up().await;
        }
        writer.hang_up().await;
    }
}
