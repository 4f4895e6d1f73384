//! Sends numbered frames to the pods of a service, like one vertex of a pipeline to the next.
//!
//! ```text
//! frames_source infer.vision.svc.multinet --port rdma --at-least-once --rate 1000
//! ```
//!
//! Prints its counters every second and at the end. Ends on SIGTERM, Ctrl-C or after `--count`
//! frames.

use std::env;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use multinet_client::{Choice, Connector, Delivery, Frame, Resolver, Statistics};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};

/// Time that frames in flight get at the end.
const LAST: Duration = Duration::from_secs(30);

const USAGE: &str = "\
usage: frames_source SERVICE [option]...
  --port NAME       port of the service (rdma)
  --at-least-once   keep each frame until a receiver has acknowledged it
  --keys N          send frames of N keys in turn, each key to one peer
  --count N         end after this many frames
  --rate N          frames per second (as fast as it goes)
  --size BYTES      of a frame's payload (4096)
  --silence SECONDS after which a silent peer counts as gone (10)
  --server ADDRESS:PORT  DNS server to ask instead of those in /etc/resolv.conf
  --allow-default-network
                    where there is no second NIC";

struct Options {
    service: String,
    port: String,
    delivery: Delivery,
    keys: Option<u64>,
    count: u64,
    rate: Option<f64>,
    size: usize,
    silence: u64,
    server: Option<SocketAddr>,
    allow_default_network: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    // If the log cannot be written, the program goes on.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
    match send().await {
        // The reader is gone, as with `frames_source | head -1`. That is not an error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

async fn send() -> Result<()> {
    let options = Options::parse(env::args().skip(1))?;
    let mut connector = Connector::builder()
        .delivery(options.delivery)
        .choice(options.keys.map_or(Choice::RoundRobin, |_| Choice::ByKey))
        .silence(Duration::from_secs(options.silence))
        .allow_default_network(options.allow_default_network);
    if let Some(server) = options.server {
        connector = connector.resolver(Resolver::builder().servers([server]).build()?);
    }
    let peers = connector.build()?.connect(&options.service, &options.port).await?;

    let mut reporter = tokio::spawn({
        let peers = peers.clone();
        async move {
            let mut seconds = interval(Duration::from_secs(1));
            loop {
                seconds.tick().await;
                if print("status", &peers.statistics()).is_err() {
                    return;
                }
            }
        }
    });
    let mut end = pin!(stop_requested());
    let start = Instant::now();
    for number in 1..=options.count {
        let sending = async {
            if let Some(rate) = options.rate {
                sleep_until(start + Duration::from_secs_f64((number - 1) as f64 / rate)).await;
            }
            let mut frame = Frame::new(payload(number, options.size));
            if let Some(keys) = options.keys {
                frame = frame.key(format!("camera-{}", number % keys));
            }
            // Waits while no peer has room. Cancelling it sends nothing.
            peers.send(frame).await
        };
        tokio::select! {
            sent = sending => drop(sent?),
            // If the status cannot be printed, neither can the result.
            _ = &mut reporter => break,
            ended = &mut end => {
                ended?;
                break;
            }
        }
    }
    reporter.abort();
    let closed = peers.clone().close(LAST).await;
    print("done", &peers.statistics())?;
    if closed.unfinished > 0 {
        bail!("{} frames were not delivered within {} s", closed.unfinished, LAST.as_secs());
    }
    Ok(())
}

/// Returns a payload: the number, filling derived from it, and a checksum of both.
fn payload(number: u64, size: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(size);
    payload.extend(number.to_be_bytes());
    let mut filling = fastrand::Rng::with_seed(number);
    payload.extend(std::iter::repeat_with(|| filling.u8(..)).take(size.saturating_sub(12)));
    let checksum = crc32fast::hash(&payload);
    payload.extend(checksum.to_be_bytes());
    payload
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print(what: &str, statistics: &Statistics) -> io::Result<()> {
    let Statistics { frames, acknowledged, repeats, lost, disconnects, connected, .. } = statistics;
    writeln!(
        io::stdout(),
        "{what} sent={frames} acknowledged={acknowledged} repeats={repeats} lost={lost} \
         disconnects={disconnects} connected={connected}"
    )
}

async fn stop_requested() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        pressed = ctrl_c() => Ok(pressed?),
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            service: words.next().context(USAGE)?,
            port: "rdma".to_owned(),
            delivery: Delivery::AtMostOnce,
            keys: None,
            count: u64::MAX,
            rate: None,
            size: 4096,
            silence: 10,
            server: None,
            allow_default_network: false,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--at-least-once" => options.delivery = Delivery::AtLeastOnce,
                "--port" => options.port = value(&word, words.next())?,
                "--keys" => options.keys = Some(value(&word, words.next())?),
                "--count" => options.count = value(&word, words.next())?,
                "--rate" => options.rate = Some(value(&word, words.next())?),
                "--size" => options.size = value(&word, words.next())?,
                "--silence" => options.silence = value(&word, words.next())?,
                "--allow-default-network" => options.allow_default_network = true,
                "--server" => options.server = Some(value(&word, words.next())?),
                _ => bail!("{word}: no such option\n{USAGE}"),
            }
        }
        if options.keys == Some(0) || options.rate.is_some_and(|rate| rate <= 0.0) {
            bail!("--keys and --rate must be more than 0");
        }
        Ok(options)
    }
}

fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    option: &str,
    word: Option<String>,
) -> Result<T> {
    let word = word.with_context(|| format!("{option} needs a value\n{USAGE}"))?;
    word.parse().with_context(|| format!("{option} {word}"))
}
