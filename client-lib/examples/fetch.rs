//! Fetches the payloads of references, like the vertex after that of `offer`.
//!
//! ```text
//! fetch infer.vision.svc.multinet [--port NAME] [--wait SECONDS] [--at-once COUNT]
//!       [--server ADDRESS:PORT] [--allow-default-network]
//! ```
//!
//! Standard input is the queue, with one reference per line. Standard output has one line for each
//! payload, `fetched REFERENCE BYTES`, and each is acknowledged once its line has been printed. A
//! reference that was delivered again after its payload had been acknowledged is `repeated
//! REFERENCE`. One whose payload could not be fetched stays in its queue, and standard error says
//! why (`not fetched REFERENCE: REASON`).
//!
//! The program ends when its input has ended; with the exit status 1, if a payload is missing.

use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_client::{Connector, FetchError, Reference, Resolver};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most references that are read ahead.
const AHEAD: usize = 16;

const USAGE: &str = "\
usage: fetch SERVICE [option]...
  --port NAME       port of the service (18516)
  --wait SECONDS    how long to look for a payload (150)
  --at-once COUNT   fetch so many payloads at a time (8)
  --server ADDRESS:PORT  DNS server to ask instead of those in /etc/resolv.conf
  --allow-default-network
                    where there is no second NIC";

struct Options {
    service: String,
    port: String,
    wait: u64,
    at_once: usize,
    server: Option<SocketAddr>,
    allow_default_network: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    // If the log cannot be written, the program goes on.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
    match fetch_all().await {
        // The reader is gone, as with `fetch | head -1`. That is not an error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

async fn fetch_all() -> Result<()> {
    let options = Arc::new(Options::parse(env::args().skip(1))?);
    let mut connector = Connector::builder()
        .fetch_wait(Duration::from_secs(options.wait))
        .allow_default_network(options.allow_default_network);
    if let Some(server) = options.server {
        connector = connector.resolver(Resolver::builder().servers([server]).build()?);
    }
    let connector = connector.build()?;
    let (mut references, mut missing) = (references(), 0);
    let mut fetching = JoinSet::<Result<bool>>::new();
    loop {
        tokio::select! {
            Some(fetched) = fetching.join_next() => missing += usize::from(!fetched??),
            reference = references.recv(), if fetching.len() < options.at_once => match reference {
                Some(text) => drop(fetching.spawn(process(connector.clone(), Arc::clone(&options), text))),
                None if fetching.is_empty() => break,
                None => missing += usize::from(!fetching.join_next().await.context("none is fetched")???),
            },
        }
    }
    // The pods are told of what has been acknowledged last.
    connector.close().await;
    ensure!(missing == 0, "{missing} payloads were not fetched");
    Ok(())
}

/// Fetches one payload, and prints it. Returns whether that succeeded.
async fn process(connector: Connector, options: Arc<Options>, text: String) -> Result<bool> {
    let fetching = async {
        let reference: Reference = text.parse()?;
        let frame = connector.fetch(&options.service, &options.port, &reference).await?;
        check(&reference, frame.bytes())?;
        anyhow::Ok(frame)
    };
    match fetching.await {
        Ok(frame) => {
            writeln!(io::stdout(), "fetched {text} {}", frame.len())?;
            // Not earlier, or the payload would be lost with this process.
            frame.acknowledge();
            Ok(true)
        }
        // An earlier delivery of the reference was processed.
        Err(error) if matches!(error.downcast_ref(), Some(FetchError::Taken { .. })) => {
            writeln!(io::stdout(), "repeated {text}")?;
            Ok(true)
        }
        // The message has to be delivered again; this program would not acknowledge it.
        Err(error) => {
            writeln!(io::stderr(), "not fetched {text}: {error:#}")?;
            Ok(false)
        }
    }
}

/// Checks that a payload is the one of the reference, and whole.
fn check(reference: &Reference, payload: &[u8]) -> Result<()> {
    let (checked, checksum) = payload.split_last_chunk().context("the payload is too short")?;
    ensure!(crc32fast::hash(checked) == u32::from_be_bytes(*checksum), "the payload's checksum is wrong");
    let id = checked.split(|&byte| byte == b'\n').next().unwrap_or_default();
    ensure!(id == reference.id().as_str().as_bytes(), "it is the payload of {}", id.escape_ascii());
    Ok(())
}

/// Reads references from standard input, in a thread, since a pipe may have nothing for hours.
fn references() -> mpsc::Receiver<String> {
    let (sender, references) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    references
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            service: words.next().context(USAGE)?,
            port: "18516".to_owned(),
            wait: 150,
            at_once: 8,
            server: None,
            allow_default_network: false,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--port" => options.port = value(&word, words.next())?,
                "--wait" => options.wait = value(&word, words.next())?,
                "--at-once" => options.at_once = value(&word, words.next())?,
                "--server" => options.server = Some(value(&word, words.next())?),
                "--allow-default-network" => options.allow_default_network = true,
                _ => bail!("{word}: no such option\n{USAGE}"),
            }
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
