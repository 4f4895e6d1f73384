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

mod shared;

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use multinet_client::{Choice, Listener, ListenerBuilder, Targets};
use multinet_client_numaflow::{FrameSink, FrameSource};
use numaflow::shared::ServerExtras as _;
use numaflow::{sink, source};

/// Time for frames that are not acknowledged yet when the program ends.
const PATIENCE: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: boundary send|receive [option]...";

#[tokio::main]
async fn main() -> Result<()> {
    shared::log();
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
    let (connector, sockets) = shared::connector(connector, words)?;
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

fn options_of_receive(
    mut listener: ListenerBuilder,
    mut words: impl Iterator<Item = String>,
) -> Result<(ListenerBuilder, Option<String>)> {
    let mut sockets = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--slots" => listener = listener.slots(shared::value(&word, words.next())?),
            "--address" => listener = listener.address(shared::value(&word, words.next())?),
            "--sockets" => sockets = Some(shared::value(&word, words.next())?),
            "--allow-default-network" => listener = listener.allow_default_network(true),
            _ => bail!("{word}: no such option"),
        }
    }
    Ok((listener, sockets))
}
