//! SIGHUP, the signal to read files again.

use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of every SIGHUP since its creation.
#[derive(Debug)]
pub struct Hangups(Option<Signal>);

impl Hangups {
    /// Starts to receive SIGHUP. Must be called within a tokio runtime.
    pub fn subscribe() -> Self {
        let hangups = signal(SignalKind::hangup());
        let warn = |error: &_| tracing::warn!(%error, "cannot handle SIGHUP: it will end this process");
        Self(hangups.inspect_err(warn).ok())
    }

    /// Waits for the next SIGHUP; for ever if the signal cannot be handled.
    pub async fn next(&mut self) {
        if let Some(hangups) = &mut self.0
            && hangups.recv().await.is_some()
        {
            return;
        }
        pending::<()>().await;
    }
}
