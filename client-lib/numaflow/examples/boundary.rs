//! The end of one Pipeline and the beginning of another: the sink `send` sends frames to the source
//! `receive`.
//!
//! ```text
//! boundary send    [--server ADDRESS:PORT] [--sockets DIR] [--allow-default-network]
//! boundary receive [--slots COUNT] [--address IP] [--sockets DIR] [--allow-default-network]
//! ```
//!
//! `send` answers when the Numaflow of the other Pipeline has acknowledged the frame, so that no
//! message is lost when a pod of either side dies. `receive` gives its Numaflow each frame's
//! payload as a message.
//!
//! `MULTINET_TARGETS` and `MULTINET_SOURCES` name the other vertex, as multinet-numaflow sets them.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use multinet_client::{Choice, ConnectorBuilder, Listener, ListenerBuilder, Resolver, Targets};
use multinet_client_numaflow::{FrameSink, FrameSource};
use numaflow::shared::ServerExtras as _;
use numaflow::{sink, source};

/// Time for frames that are not acknowledged yet when the program ends.
const PATIENCE: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: boundary send|receive [option]...";

#[tokio::main]
async fn main() -> Result<()> {
    // If the log cannot be written, the program goes on.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
    let mut words = env::args().skip(1);
    match words.next().as_deref() {
        Some("send") => send(words).await,
        Some("receive") => receive(words).await,
        _ => bail!(USAGE),
    }
}

async fn send(words: impl Iterator<Item = String>) -> Result<()> {
    let targets = Targets::from_env()?;
    let connector = targets.connector().choice(Choice::LeastOutstanding);
    let (connector, sockets) = options_of_send(connector, words)?;
    let sink = FrameSink::start(connector, targets.target()?)?;
    let peers = sink.peers().clone();
    let mut server = sink::Server::new(sink);
    if let Some(folder) = &sockets {
        server = server
            .with_socket_file(Path::new(folder).join("sink.sock"))
            .with_server_info_file(Path::new(folder).join("sinker-server-info"));
    }
    server.start().await.map_err(|error| anyhow!(error))?;
    peers.close(PATIENCE).await;
    Ok(())
}

async fn receive(words: impl Iterator<Item = String>) -> Result<()> {
    let port = Targets::from_env()?.source()?.port();
    let (listener, sockets) = options_of_receive(Listener::builder().port(port), words)?;
    // Before the server starts: the pod is ready once that answers.
    let listener = listener.bind().await?;
    let mut server = source::Server::new(FrameSource::new(listener.clone()));
    if let Some(folder) = &sockets {
        server = server
            .with_socket_file(Path::new(folder).join("source.sock"))
            .with_server_info_file(Path::new(folder).join("sourcer-server-info"));
    }
    server.start().await.map_err(|error| anyhow!(error))?;
    // The last acknowledgements are sent before the program ends.
    listener.close().await;
    Ok(())
}

fn options_of_send(
    mut connector: ConnectorBuilder,
    mut words: impl Iterator<Item = String>,
) -> Result<(ConnectorBuilder, Option<String>)> {
    let mut sockets = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--server" => {
                let server: SocketAddr = value(&word, words.next())?;
                connector = connector.resolver(Resolver::builder().servers([server]).build()?);
            }
            "--sockets" => sockets = Some(value(&word, words.next())?),
            "--allow-default-network" => connector = connector.allow_default_network(true),
            _ => bail!("{word}: no such option of send\n{USAGE}"),
        }
    }
    Ok((connector, sockets))
}

fn options_of_receive(
    mut listener: ListenerBuilder,
    mut words: impl Iterator<Item = String>,
) -> Result<(ListenerBuilder, Option<String>)> {
    let mut sockets = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--slots" => listener = listener.slots(value(&word, words.next())?),
            "--address" => listener = listener.address(value(&word, words.next())?),
            "--sockets" => sockets = Some(value(&word, words.next())?),
            "--allow-default-network" => listener = listener.allow_default_network(true),
            _ => bail!("{word}: no such option of receive\n{USAGE}"),
        }
    }
    Ok((listener, sockets))
}

fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    option: &str,
    word: Option<String>,
) -> Result<T> {
    let word = word.with_context(|| format!("{option} needs a value"))?;
    word.parse().with_context(|| format!("{option} {word}"))
}
