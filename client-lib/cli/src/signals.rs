//! Signals that end the program. The kernel delivers to the first process of a container only those
//! signals that the process handles, so that Ctrl-C would not end it otherwise.

use std::process::{self, ExitCode};

use tokio::signal::unix::{SignalKind, signal};

/// Runs a command until it ends, or until SIGINT or SIGTERM, with the exit status that a shell
/// reports.
pub(crate) async fn until_signal(
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    if process::id() != 1 {
        return command.await;
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        outcome = command => outcome,
        _ = interrupt.recv() => Ok(ExitCode::from(128 + 2)),
        _ = terminate.recv() => Ok(ExitCode::from(128 + 15)),
    }
}
