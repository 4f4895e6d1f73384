//! The log and the command line of both examples.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use multinet_client::{ConnectorBuilder, Resolver};

/// Writes the log to standard error. If that fails, the program goes on.
pub(crate) fn log() {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
}

/// Parses the options of a side that connects: for its connector, and the folder of its sockets.
pub(crate) fn connector(
    mut connector: ConnectorBuilder,
    mut words: impl Iterator<Item = String>,
) -> Result<(ConnectorBuilder, Option<String>)> {
    let mut sockets = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--wait" => connector = connector.fetch_wait(Duration::from_secs(value(&word, words.next())?)),
            "--server" => {
                let server: SocketAddr = value(&word, words.next())?;
                connector = connector.resolver(Resolver::builder().servers([server]).build()?);
            }
            "--sockets" => sockets = Some(value(&word, words.next())?),
            "--allow-default-network" => connector = connector.allow_default_network(true),
            _ => bail!("{word}: no such option"),
        }
    }
    Ok((connector, sockets))
}

/// Parses the value of an option.
pub(crate) fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    option: &str,
    word: Option<String>,
) -> Result<T> {
    let word = word.with_context(|| format!("{option} needs a value"))?;
    word.parse().with_context(|| format!("{option} {word}"))
}
