//! Task that reads a connection.

use std::io;

use tokio_util::task::AbortOnDropHandle;

/// Task that reads until the connection ends, for a reason `E`.
///
/// It waits for nothing but the socket. To poll everything else that a connection waits for with
/// each message would cost as much as the message.
pub(crate) struct ReadTask<E>(AbortOnDropHandle<E>);

impl<E: From<io::Error> + Send + 'static> ReadTask<E> {
    pub(crate) fn start(reading: impl Future<Output = E> + Send + 'static) -> Self {
        Self(AbortOnDropHandle::new(tokio::spawn(reading)))
    }

    /// Waits for the task's end and returns the reason. Must not be called again after it has
    /// returned. Cancelling this loses nothing.
    pub(crate) async fn ended(&mut self) -> E {
        (&mut self.0).await.unwrap_or_else(|error| io::Error::other(error).into())
    }

    /// Stops the task. When this returns, the task handles no further message of the peer.
    pub(crate) async fn stop(mut self) {
        if !self.0.is_finished() {
            self.0.abort();
            let _ = (&mut self.0).await;
        }
    }
}
