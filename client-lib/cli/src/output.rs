//! Standard output, whose reader may go away at any moment, and messages on standard error.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::Duration;

use clap::ValueEnum;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror::Error;
use tracing_subscriber::fmt::MakeWriter;

/// Error for a reader of standard output that has gone, as in `multinet resolve … | head -1`. It
/// ends the program quietly, with the exit status 0.
#[derive(Debug, Error)]
#[error("the reader of standard output has gone")]
pub(crate) struct PipeClosed;

/// Writes to standard output, and flushes it.
///
/// # Errors
///
/// [`PipeClosed`], or the kernel's error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// Returns the error for a failed write to standard output: [`PipeClosed`] if its reader has gone.
pub(crate) fn stdout_error(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => PipeClosed.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    }
}

/// Completes when the reader of standard output has gone; never, if it is a file.
///
/// A command that prints only now and then would otherwise notice at its next line, which may never
/// come.
pub(crate) async fn stdout_closed() -> PipeClosed {
    let (tell, told) = tokio::sync::oneshot::channel();
    // It blocks to the end, so it has a thread of its own.
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // poll(2) reports errors and hang-ups without being asked for them.
        let mut wanted = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        while matches!(poll(&mut wanted, PollTimeout::NONE), Err(Errno::EINTR)) {}
        let _ = tell.send(());
    });
    match told.await {
        Ok(()) => PipeClosed,
        Err(_) => std::future::pending().await,
    }
}

/// Returns an error with its causes in one line. Each cause is told once, since many errors of the
/// library contain their cause.
pub(crate) fn message(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|said, cause| if said.contains(&cause) { said } else { said + ": " + &cause })
        .unwrap_or_default()
}

/// Error for a command line that cannot succeed, whatever the network says. It ends the program
/// with the exit status 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Lines, for people
    Text,
    /// JSON, for programs
    Json,
}

/// How long [`say`] waits until its line has been written to standard error.
const ORDER: Duration = Duration::from_millis(100);

/// Prints a line that is no result of the command to standard error.
pub(crate) fn note(message: &str) {
    say(&format!("multinet: {}", with_flag_names(message).replace('\n', " ")));
}

/// Prints a line to standard error as it is.
pub(crate) fn say(line: &str) {
    multinet_stderr::write_line(line);
    // So that it stands before the results that are printed next. If the reader of standard error
    // is stuck, the results do not wait for it.
    multinet_stderr::flush(ORDER);
}

/// Words for settings in the library's messages, each with the flag that is named in their place.
const FLAGS: [(&str, &str); 11] = [
    ("allow_default_network", "--allow-default-network"),
    ("or allow the default network", "or give --allow-default-network"),
    ("name the address to listen on", "name the address to listen on (--address)"),
    ("raise the receivers' frame size", "raise the receivers' --frame-size (of bench server, --size)"),
    ("ConnectorBuilder::fetch_frame_size", "--frame-size"),
    ("OffersBuilder::budget", "--memory"),
    ("set OffersBuilder::host", "name this host (--host)"),
    ("frame_size", "--frame-size"),
    ("raise memory", "raise --memory"),
    ("Tls::expect", "--tls-name"),
    ("or name a server to ask", "or name a server to ask (--server)"),
];

/// Returns a message of the library, here or at a peer, in terms of the command line.
pub(crate) fn with_flag_names(message: &str) -> Cow<'_, str> {
    let said = FLAGS.iter().filter(|(setting, _)| message.contains(setting));
    said.fold(Cow::Borrowed(message), |message, (setting, flag)| message.replace(setting, flag).into())
}

/// Writer of log lines that names flags in the place of the library's settings.
pub(crate) struct WithFlagNames<W>(pub(crate) W);

impl<'w, M: MakeWriter<'w>> MakeWriter<'w> for WithFlagNames<M> {
    type Writer = WithFlagNames<M::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        WithFlagNames(self.0.make_writer())
    }
}

impl<W: Write> Write for WithFlagNames<W> {
    /// Writes a line, with flags in place of the library's settings. The log's formatter passes
    /// each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match str::from_utf8(line) {
            Ok(text) => self.0.write_all(with_flag_names(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests;
