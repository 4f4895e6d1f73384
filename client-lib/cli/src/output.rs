//! Standard output, whose reader may go away at any moment.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::fmt::MakeWriter;

/// Whoever read our output reads no more: `multinet resolve … | head -1`. Ends the program, quietly and with 0.
#[derive(Debug)]
pub(crate) struct PipeClosed;

impl std::fmt::Display for PipeClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for PipeClosed {}

/// Writes to standard output, at once.
///
/// # Errors
///
/// [`PipeClosed`], or what went wrong.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// What it means that standard output could not be written.
pub(crate) fn stdout_error(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => PipeClosed.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    }
}

/// Completes when nobody reads standard output any more; never, if it is a file.
///
/// Whoever prints only now and then would otherwise find out at its next line, which may never come.
pub(crate) async fn stdout_closed() -> PipeClosed {
    let (tell, told) = tokio::sync::oneshot::channel();
    // Not on the runtime's threads, which it would occupy to the end.
    std::thread::spawn(move || {
        let stdout = io::stdout();
        // Errors and hang-ups are reported without being asked for.
        let mut wanted = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        while matches!(poll(&mut wanted, PollTimeout::NONE), Err(Errno::EINTR)) {}
        let _ = tell.send(());
    });
    match told.await {
        Ok(()) => PipeClosed,
        Err(_) => std::future::pending().await,
    }
}

/// An error with its causes in one line, each told once: many of the library's name their cause themselves.
pub(crate) fn message(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|said, cause| if said.contains(&cause) { said } else { said + ": " + &cause })
        .unwrap_or_default()
}

/// A command line that asks for what cannot be, whatever the network says. Ends the program with 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// How long a note waits for standard error.
const ORDER: Duration = Duration::from_millis(100);

/// Tells people something that is no result, on standard error.
pub(crate) fn note(message: &str) {
    multinet_stderr::write_line(&format!("multinet: {}", with_flag_names(message).replace('\n', " ")));
    // It stands before the results that are printed next, unless standard error is not read.
    multinet_stderr::flush(ORDER);
}

/// Names of settings in the library's messages, each with the flag that sets it.
const FLAGS: [(&str, &str); 8] = [
    ("allow_default_network", "--allow-default-network"),
    ("or allow the default network", "or give --allow-default-network"),
    ("name the address to listen on", "name the address to listen on (--address)"),
    ("raise the receivers' frame size", "raise the receivers' --frame-size (of bench server, --size)"),
    ("frame_size", "--frame-size"),
    ("raise memory", "raise --memory"),
    ("Tls::expect", "--tls-name"),
    ("or name a server to ask", "or name a server to ask (--server)"),
];

/// A message of the library, or of a peer's, in terms of the command line.
fn with_flag_names(message: &str) -> Cow<'_, str> {
    let said = FLAGS.iter().filter(|(setting, _)| message.contains(setting));
    said.fold(Cow::Borrowed(message), |message, (setting, flag)| message.replace(setting, flag).into())
}

/// A writer of log lines, which are the library's, too.
pub(crate) struct WithFlagNames<W>(pub(crate) W);

impl<'w, M: MakeWriter<'w>> MakeWriter<'w> for WithFlagNames<M> {
    type Writer = WithFlagNames<M::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        WithFlagNames(self.0.make_writer())
    }
}

impl<W: Write> Write for WithFlagNames<W> {
    /// Each line comes as a whole.
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
