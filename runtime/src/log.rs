//! Logs on standard error, in two formats, with a filter that can be changed while the process
//! runs.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use multinet_stderr::Format;
use parking_lot::Mutex;
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Directives that silence libraries, each applied unless the filter names the library.
///
/// - kube_client logs an error per failed request, although the caller reports it too (once per
///   outage, see [`watch`](crate::watch())), and the whole text of an answer that cannot be
///   decoded.
/// - notify logs a warning per watch that ended with its directory, as on each update of a
///   ConfigMap volume.
/// - h2, hyper, quinn (also the crates whose names begin so) and rustls log a warning for each
///   fault of a peer. The code that serves a connection reports its end itself.
const QUIET: &[(&str, &str)] = &[
    ("h2", "h2=off"),
    ("hyper", "hyper=off"),
    ("quinn", "quinn=off"),
    ("rustls", "rustls=off"),
    ("kube_client", "kube_client::client=error,kube_client::client::builder=off"),
    ("notify", "notify::inotify=error"),
];

/// Command-line flags of the log.
#[derive(clap::Args, Debug, Clone)]
pub struct LogArgs {
    /// Format of the log lines
    #[arg(long, env = "MULTINET_LOG_FORMAT", value_enum, default_value_t = LogFormat::Plain)]
    pub log_format: LogFormat,

    /// Log filter: a level (error, warn, info, debug, trace, off), or a list of target=level
    #[arg(long, env = "MULTINET_LOG_LEVEL", value_name = "FILTER", default_value = "info", value_parser = valid_filter)]
    pub log_level: String,
}

/// Format of the log lines.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, with colours if stderr is a terminal and NO_COLOR is not set.
    Plain,
    /// One JSON object per line.
    Json,
}

/// Installs the process' logger, which writes to standard error. Call it once per process.
///
/// # Errors
///
/// One line, if the filter of `args` does not parse or the process already has a logger.
pub fn init(args: &LogArgs) -> Result<LogLevel> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let (subscriber, level) = subscriber(args, colours, multinet_stderr::stderr())?;
    subscriber.try_init()?;
    multinet_stderr::log_panics();
    Ok(level)
}

/// Handle to the log filter of the process. Clones share the filter.
#[derive(Clone, Debug)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
}

impl LogLevel {
    /// Replaces the filter. Calls `announce` right before, if the new filter parses.
    ///
    /// # Errors
    ///
    /// One line, if the new filter does not parse. The old one stays then.
    pub fn set(&self, filter: &str, announce: impl FnOnce()) -> Result<()> {
        let parsed = parse(filter)?;
        // Hold the lock while reloading, so that `current` is the filter in force if two callers
        // race.
        let mut current = self.current.lock();
        announce();
        self.handle.reload(parsed)?;
        filter.clone_into(&mut current);
        Ok(())
    }

    /// Returns the current log filter, as the text that was given.
    pub fn current(&self) -> String {
        self.current.lock().clone()
    }
}

/// Builds the process' logger and the handle to its filter, without installing them.
fn subscriber<W>(
    args: &LogArgs,
    colours: bool,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogLevel)>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(&args.log_level)?);
    let format = match args.log_format {
        LogFormat::Plain => Format::Plain { colours },
        LogFormat::Json => Format::Json,
    };
    let level = LogLevel { handle, current: Arc::new(Mutex::new(args.log_level.clone())) };
    Ok((Registry::default().with(filter).with(multinet_stderr::layer(format, writer)), level))
}

/// Parses `filter`, and adds the directives of [`QUIET`] for libraries that it does not name.
fn parse(filter: &str) -> Result<EnvFilter> {
    let quiet = QUIET.iter().filter(|(library, _)| !filter.contains(library));
    multinet_stderr::filter(filter, quiet.map(|(_, directives)| *directives))
        .map_err(|reason| anyhow!("bad log filter {filter:?}: {reason}"))
}

/// Value parser of the flag `--log-level`: returns the filter if it parses.
fn valid_filter(filter: &str) -> Result<String> {
    parse(filter).map(|_| filter.to_owned())
}

/// Returns a filter handle for tests, with its logger, which has to be kept alive.
#[cfg(test)]
pub(crate) fn unused_logger() -> (impl Subscriber + Send + Sync, LogLevel) {
    let args = LogArgs { log_format: LogFormat::Plain, log_level: "info".to_owned() };
    subscriber(&args, false, io::sink).unwrap()
}

#[cfg(test)]
mod tests;
