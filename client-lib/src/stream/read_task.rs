//! The reading side of a connection as a task of its own.

use std::io;

use tokio_util::task::AbortOnDropHandle;

/// Reads until the connection ends, for a reason `E`. Everything else that a connection waits for is waited for elsewhere: to look
/// at all of it with each message would cost as much as the message.
pub(crate) struct ReadTask<E>(AbortOnDropHandle<E>);

impl<E: From<io::Error> + Send + 'static> ReadTask<E> {
    pub(crate) fn start(reading: impl Future<Output = E> + Send + 'static) -> Self {
        Self(AbortOnDropHandle::new(tokio::spawn(reading)))
    }

    /// Why it has ended. To be asked for until it tells, and not again. Cancelling it loses nothing.
    pub(crate) async fn ended(&mut self) -> E {
        (&mut self.0).await.unwrap_or_else(|error| io::Error::other(error).into())
    }

    /// Ends it, if it has not ended. Nothing that is read is heard of after this.
    pub(crate) async fn stop(mut self) {
        if !self.0.is_finished() {
            self.0.abort();
            let _ = (&mut self.0).await;
        }
    }
}
