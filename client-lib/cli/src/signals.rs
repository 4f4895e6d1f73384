//! What ends a program that does not ask for signals, asked for where the kernel would not end it: a container's first process gets
//! only those signals that it has asked for.

use std::process::{self, ExitCode};

use tokio::signal::unix::{SignalKind, signal};

/// The command, until it is told to end; the exit status then is that of a shell.
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
