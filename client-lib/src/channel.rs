//! Channel that carries one side's messages: the connection of the handshake, or a queue pair
//! beside it.

use std::io;

use crate::rdma::{QueuePair, QueuePairError, Violation};
use crate::stream::{Message, MessageSource, MessageWriter};

/// Channel that messages to a peer are written to. Its failures are errors `E`.
pub(crate) enum DataChannel<E> {
    Tcp(MessageWriter),
    /// Frames go by the queue pair. The connection of the handshake only carries close messages.
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

    /// Writes the queued messages without waiting, and leaves the rest to the task.
    pub(crate) fn try_flush(&self, source: &impl MessageSource) {
        match self {
            Self::Tcp(writer) => writer.try_flush(source),
            Self::Rdma(pair, _) => pair.try_flush(source),
        }
    }

    /// As [`try_flush`](Self::try_flush), but may leave the messages to the task, which writes
    /// several at once where that saves something.
    pub(crate) fn try_flush_later(&self, source: &impl MessageSource) {
        match self {
            Self::Tcp(writer) => writer.try_flush_later(source),
            Self::Rdma(pair, _) => pair.try_flush_later(source),
        }
    }

    /// Runs the task, which writes messages that could not be written at once. Ends when the
    /// channel has failed.
    pub(crate) async fn run(&self, source: &impl MessageSource) -> E {
        match self {
            Self::Tcp(writer) => writer.run(source).await.into(),
            Self::Rdma(pair, _) => pair.run(source).await,
        }
    }

    /// Writes all queued messages in place of the task. By TCP, waits until the kernel has them,
    /// and by RDMA, until the peer has them.
    pub(crate) async fn flush(&self, source: &impl MessageSource) -> io::Result<()> {
        match self {
            Self::Tcp(writer) => writer.flush(source).await,
            Self::Rdma(pair, _) => {
                pair.flush(source).await;
                Ok(())
            }
        }
    }

    /// Writes the queued messages as [`flush`](Self::flush) does, then a close message.
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

    /// Asks the kernel to delay TCP acknowledgements, because the peer waits for something after
    /// each message.
    pub(crate) fn use_delayed_acks(&self) {
        if let Self::Tcp(writer) = self {
            writer.use_delayed_acks();
        }
    }

    /// Ends the channel's connection at once, even if other handles of it remain.
    pub(crate) async fn hang_up(&self) {
        let (Self::Tcp(writer) | Self::Rdma(_, writer)) = self;
        if let Self::Rdma(pair, _) = self {
            pair.hang_up().await;
        }
        writer.hang_up().await;
    }
}
