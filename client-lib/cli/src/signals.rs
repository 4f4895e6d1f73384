//! Signals that end the program. The kernel delivers to the first process of a container only those
//! signals that the process handles, so that Ctrl-C would not end it otherwise.

use std::io;
use std::process::{self, ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM from now on.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one of them. Returns the exit status that a shell reports for it.
    pub(crate) async fn next(&mut self) -> ExitCode {
        let number = tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        };
        ExitCode::from(128 + number)
    }
}

/// Runs a command until it ends, or until a signal.
pub(crate) async fn until_signal<T: From<ExitCode>>(
    command: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    if process::id() != 1 {
        return command.await;
    }
    let mut signals = Signals::new()?;
    tokio::select! {
        outcome = command => outcome,
        status = signals.next() => Ok(status.into()),
    }
}
