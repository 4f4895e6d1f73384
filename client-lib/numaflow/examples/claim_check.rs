//! Two vertices of one Pipeline, `decode` and `infer`: references go through Numaflow's buffers,
//! and pictures from pod to pod.
//!
//! ```text
//! claim_check decode [--size BYTES] [--budget BYTES] [--repeat SECONDS] [--host NAME]
//!                    [--address IP] [--sockets DIR] [--allow-default-network]
//! claim_check infer  [--wait SECONDS] [--server ADDRESS:PORT] [--sockets DIR]
//!                    [--allow-default-network]
//! ```
//!
//! `decode` is a map function. It makes a picture of each message, and its message is acknowledged
//! when `infer` has processed the picture. `infer` is a sink. It prints a line for each picture,
//! `processed MESSAGE BYTES`, and acknowledges the picture after that.
//!
//! `MULTINET_TARGETS` and `MULTINET_SOURCES` name the other vertex, as multinet-numaflow sets them.

mod shared;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use multinet_client::{Offers, OffersBuilder, Received, Targets};
use multinet_client_numaflow::{Claim, FetchingSink, OfferingMap, stable_id};
use numaflow::mapstream::MapStreamRequest;
use numaflow::shared::ServerExtras as _;
use numaflow::sink::SinkRequest;
use numaflow::{mapstream, sink};

const USAGE: &str = "usage: claim_check decode|infer [option]...";

#[tokio::main]
async fn main() -> Result<()> {
    shared::log();
    let mut words = env::args().skip(1);
    match words.next().as_deref() {
        Some("decode") => decode(words).await,
        Some("infer") => infer(words).await,
        _ => bail!(USAGE),
    }
}

async fn decode(words: impl Iterator<Item = String>) -> Result<()> {
    let port = Targets::from_env()?.target()?.port();
    let Decode { offers, size, repeat, sockets } = Decode::parse(Offers::builder().port(port), words)?;
    let map = OfferingMap::bind(offers, move |message: MapStreamRequest| async move {
        Some(Claim::new(stable_id(&message), picture(&message.value, size)))
    });
    let map = map.await?.repeat_after(repeat);
    let offers = map.offers().clone();
    let mut server = mapstream::Server::new(map);
    if let Some(folder) = &sockets {
        server = server
            .with_socket_file(Path::new(folder).join("mapstream.sock"))
            .with_server_info_file(Path::new(folder).join("mapper-server-info"));
    }
    server.start().await.map_err(|error| anyhow!(error))?;
    offers.close().await;
    Ok(())
}

async fn infer(words: impl Iterator<Item = String>) -> Result<()> {
    let targets = Targets::from_env()?;
    let (connector, sockets) = shared::connector(targets.connector(), words)?;
    let connector = connector.build()?;
    let sink = FetchingSink::new(connector.clone(), targets.sources(), |picture, message| {
        Box::pin(async move { process(picture, message) })
    })?;
    let mut server = sink::Server::new(sink);
    if let Some(folder) = &sockets {
        server = server
            .with_socket_file(Path::new(folder).join("sink.sock"))
            .with_server_info_file(Path::new(folder).join("sinker-server-info"));
    }
    server.start().await.map_err(|error| anyhow!(error))?;
    // The last acknowledgements are sent before the program ends.
    connector.close().await;
    Ok(())
}

/// Stands for the work on a picture. It is done once the line has been printed.
fn process(picture: &Received, message: &SinkRequest) -> Result<()> {
    let (checked, checksum) = picture.bytes().split_last_chunk().context("the picture is too short")?;
    let reference = String::from_utf8_lossy(&message.value);
    ensure!(crc32fast::hash(checked) == u32::from_be_bytes(*checksum), "{reference}: wrong checksum");
    let name = checked.split(|&byte| byte == b'\n').next().unwrap_or_default();
    writeln!(io::stdout(), "processed {} {}", String::from_utf8_lossy(name), picture.len())?;
    Ok(())
}

/// Stands for the decoder: a picture is its message, a line feed, filling derived from the message,
/// and a checksum of all.
fn picture(message: &[u8], size: usize) -> Vec<u8> {
    let mut picture = [message, b"\n"].concat();
    let mut filling = fastrand::Rng::with_seed(crc32fast::hash(message).into());
    picture.extend(std::iter::repeat_with(|| filling.u8(..)).take(size.saturating_sub(picture.len() + 4)));
    let checksum = crc32fast::hash(&picture);
    picture.extend(checksum.to_be_bytes());
    picture
}

/// Options of `decode`.
struct Decode {
    offers: OffersBuilder,
    size: usize,
    repeat: Duration,
    sockets: Option<String>,
}

impl Decode {
    fn parse(offers: OffersBuilder, mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { offers, size: 1 << 20, repeat: Duration::from_secs(120), sockets: None };
        while let Some(word) = words.next() {
            let offers = options.offers.clone();
            match word.as_str() {
                "--size" => options.size = shared::value(&word, words.next())?,
                "--repeat" => options.repeat = Duration::from_secs(shared::value(&word, words.next())?),
                "--sockets" => options.sockets = Some(shared::value(&word, words.next())?),
                "--budget" => options.offers = offers.budget(shared::value(&word, words.next())?),
                "--host" => options.offers = offers.host(shared::value::<String>(&word, words.next())?),
                "--address" => options.offers = offers.address(shared::value(&word, words.next())?),
                "--allow-default-network" => options.offers = offers.allow_default_network(true),
                _ => bail!("{word}: no such option"),
            }
        }
        Ok(options)
    }
}
