//! The way by which a side says what it has to say: the connection of the handshake, or a queue pair beside it.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;

use crate::rdma::{QueuePair, Unusable, Violation};
use crate::stream::{Message, Outlet, Source};

/// Why there is no RDMA where TLS is: who sets it expects that nobody reads along.
pub(crate) const NOT_WITH_TLS: &str = "TLS is set, and what goes by RDMA is not encrypted: ask for Transport::Rdma on both sides to have it all the same";

/// Why a queue pair cannot be used any more.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

/// Lets go of what may take long: memory of the device's.
pub(crate) async fn discard<T: Send + 'static>(it: T) {
    // If the runtime ends, it is let go of at once.
    let _ = tokio::task::spawn_blocking(move || drop(it)).await;
}

/// Why there is no RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRdma {
    /// In words, with what to do.
    pub(crate) reason: String,
    /// Whether it will be so the next time, too, as far as can be told.
    pub(crate) is_lasting: bool,
}

impl From<String> for NoRdma {
    fn from(reason: String) -> Self {
        Self { reason, is_lasting: false }
    }
}

/// Has the kernel do what may take long, but not longer than this.
pub(crate) async fn blocking<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, NoRdma> {
    match timeout(patience, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(outcome)) => {
            outcome.map_err(|error| NoRdma { reason: error.reason(), is_lasting: error.is_lasting() })
        }
        Ok(Err(error)) => Err(error.to_string().into()),
        Err(_) => Err(format!("the device takes more than {patience:?}").into()),
    }
}

/// Where messages are written to. It fails for a reason `E`.
pub(crate) enum Way<E> {
    Tcp(Outlet),
    /// Goodbyes go by the connection of the handshake.
    Rdma(Box<QueuePair<E>>, Outlet),
}

impl<E: From<io::Error> + From<Failure> + From<Violation>> Way<E> {
    pub(crate) fn new(pair: Option<QueuePair<E>>, outlet: Outlet) -> Self {
        match pair {
            Some(pair) => Self::Rdma(Box::new(pair), outlet),
            None => Self::Tcp(outlet),
        }
    }

    pub(crate) fn is_rdma(&self) -> bool {
        matches!(self, Self::Rdma(..))
    }

    /// Writes what there is, without waiting; the task goes on with the rest.
    pub(crate) fn kick(&self, source: &impl Source) {
        match self {
            Self::Tcp(outlet) => outlet.kick(source),
            Self::Rdma(pair, _) => pair.try_flush(source),
        }
    }

    /// As [`kick`](Self::kick), or leaves it to the task, which writes more at once, where that saves something.
    pub(crate) fn kick_or_linger(&self, source: &impl Source) {
        match self {
            Self::Tcp(outlet) => outlet.kick_or_linger(source),
            Self::Rdma(pair, _) => pair.try_flush_later(source),
        }
    }

    /// The task's part: writes what could not be written at once. Ends when nothing can be written any more.
    pub(crate) async fn run(&self, source: &impl Source) -> E {
        match self {
            Self::Tcp(outlet) => outlet.run(source).await.into(),
            Self::Rdma(pair, _) => pair.run(source).await,
        }
    }

    /// Writes all that there is, in place of the task, and waits until it has arrived or is on its way.
    pub(crate) async fn flush(&self, source: &impl Source) -> io::Result<()> {
        match self {
            Self::Tcp(outlet) => outlet.flush(source).await,
            Self::Rdma(pair, _) => {
                pair.flush(source).await;
                Ok(())
            }
        }
    }

    /// Writes what there is, and waits until it has arrived or is on its way before the other side; then says goodbye.
    pub(crate) async fn finish(&self, rest: &impl Source, goodbye: Message) -> io::Result<()> {
        match self {
            Self::Tcp(outlet) => {
                let rest = std::iter::from_fn(|| rest.next());
                outlet.finish(rest.chain([goodbye])).await
            }
            Self::Rdma(pair, outlet) => {
                pair.flush(rest).await;
                outlet.finish([goodbye]).await
            }
        }
    }

    /// The other side sends one message after the other, waiting for something each time.
    pub(crate) fn expect_answers(&self) {
        if let Self::Tcp(outlet) = self {
            outlet.expect_answers();
        }
    }

    /// Ends the connection, though there may be handles of it for a while.
    pub(crate) async fn hang_up(&self) {
        let (Self::Tcp(outlet) | Self::Rdma(_, outlet)) = self;
        if let Self::Rdma(pair, _) = self {
            pair.hang_up().await;
        }
        outlet.hang_up().await;
    }
}

/// Nothing to say.
pub(crate) struct Silence;

impl Source for Silence {
    fn next(&self) -> Option<Message> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }
}
