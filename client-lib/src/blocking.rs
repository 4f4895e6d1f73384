//! Blocking work, on the runtime's threads for it.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Runs `work` on a thread for blocking work, and waits for its result for at most `patience`.
/// Afterwards the work continues, since it cannot be stopped.
///
/// # Errors
///
/// A reason in words, if it took longer or panicked.
pub(crate) async fn run_blocking<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match timeout(patience, spawn_blocking(work)).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the RDMA device did not respond within {patience:?}")),
    }
}

/// Drops a value on a thread for blocking work. Its release may take long, for example of memory
/// that is registered with a device.
pub(crate) async fn drop_blocking<T: Send + 'static>(value: T) {
    // If the runtime shuts down, the value is dropped at once.
    let _ = spawn_blocking(move || drop(value)).await;
}
