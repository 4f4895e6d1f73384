//! Logs: two formats on stderr, and a filter that can be changed while the process runs.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};

use multinet_stderr::Format;
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// What libraries say of their own accord and nobody needs, unless the filter names the library.
///
/// kube_client: an error per failed request, although the request's caller
/// reports it too (once per outage, see [`watch`](crate::watch())), and the whole text of an answer that
/// cannot be decoded.
///
/// notify: a warning per watch that ended with its folder, as each update of a ConfigMap volume makes it.
///
/// h2, hyper, quinn and what their names begin, rustls: a warning for what a peer does wrong, as often as it does so.
/// The code that serves a connection reports its end itself.
const QUIET: &[(&str, &str)] = &[
    ("h2", "h2=off"),
    ("hyper", "hyper=off"),
    ("quinn", "quinn=off"),
    ("rustls", "rustls=off"),
    ("kube_client", "kube_client::client=error,kube_client::client::builder=off"),
    ("notify", "notify::inotify=error"),
];

/// The command-line flags about logs.
#[derive(clap::Args, Debug, Clone)]
pub struct LogArgs {
    /// Format of the log lines
    #[arg(long, env = "MULTINET_LOG_FORMAT", value_enum, default_value_t = LogFormat::Plain)]
    pub log_format: LogFormat,

    /// What to log: a level (error, warn, info, debug, trace, off), or a list of target=level
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

/// Sends everything that is logged from now on to stderr. To be called once per process.
///
/// # Errors
///
/// [`LogError::Filter`] if the filter of `args` does not parse, [`LogError::Initialized`] if the process already has
/// a logger.
pub fn init(args: &LogArgs) -> Result<LogLevel, LogError> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let (subscriber, level) = subscriber(args, colours, multinet_stderr::stderr())?;
    subscriber.try_init().map_err(|_| LogError::Initialized)?;
    multinet_stderr::log_panics();
    Ok(level)
}

/// Changes what the process logs. Clones change the same.
#[derive(Clone, Debug)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
}

impl LogLevel {
    /// Logs what `filter` says from now on. Right before, and only if it parses, `announce` is called.
    ///
    /// # Errors
    ///
    /// [`LogError::Filter`] if it does not parse; everything stays as it was.
    pub fn set(&self, filter: &str, announce: impl FnOnce()) -> Result<(), LogError> {
        let parsed = parse(filter)?;
        // The lock is held while reloading, so that `current` tells of the filter that came last.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        announce();
        self.handle.reload(parsed).map_err(|_| LogError::Gone)?;
        filter.clone_into(&mut current);
        Ok(())
    }

    /// The filter of the moment, as it was given.
    pub fn current(&self) -> String {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Why logs could not be set up or changed. Each is one line.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("bad log filter {filter:?}: {reason}")]
    Filter {
        /// The filter as it was given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The process already has a logger.
    #[error("logs have been set up already")]
    Initialized,
    /// The logger whose filter should change is no longer there.
    #[error("the logger is gone")]
    Gone,
}

/// The whole logger, apart from being the process' own.
fn subscriber<W>(
    args: &LogArgs,
    colours: bool,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LogLevel), LogError>
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

/// `filter` with the [`QUIET`] libraries silenced that it does not name.
fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let quiet = QUIET.iter().filter(|(library, _)| !filter.contains(library));
    multinet_stderr::filter(filter, quiet.map(|(_, directives)| *directives))
        .map_err(|reason| LogError::Filter { filter: filter.to_owned(), reason })
}

/// Checks the filter where the other flags are checked.
fn valid_filter(filter: &str) -> Result<String, LogError> {
    parse(filter).map(|_| filter.to_owned())
}

/// A level that can be set, for tests of whatever sets it. The logger itself has to be kept, too.
#[cfg(test)]
pub(crate) fn unused_logger() -> (impl Subscriber + Send + Sync, LogLevel) {
    let args = LogArgs { log_format: LogFormat::Plain, log_level: "info".to_owned() };
    subscriber(&args, false, io::sink).unwrap()
}

#[cfg(test)]
mod tests;
