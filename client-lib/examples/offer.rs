//! Puts payloads down, and passes references to them on, like a vertex of a pipeline whose queue
//! carries small messages only. `fetch` is the other end.
//!
//! ```text
//! offer [PORT] [--address IP] [--host NAME] [--size BYTES] [--budget BYTES] [--deadline SECONDS]
//!       [--allow-default-network]
//! ```
//!
//! Standard input is the queue of this program, with one message per line: the id of a payload.
//! Standard output is the next queue, which gets one reference per message. A message is done when
//! its payload has been taken, which standard error says (`taken ID`). One whose payload was not
//! taken (`not taken ID: REASON`) has to come again.
//!
//! The program ends when its input has ended and each payload has been taken or not.

use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use multinet_client::{Offer, OfferId, Offers, OffersBuilder};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most messages that are read ahead.
const AHEAD: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    // If the log cannot be written, the program goes on.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
    match offer().await {
        // The reader is gone, as with `offer | head -1`. That is not an error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

async fn offer() -> Result<()> {
    let (offers, size) = options(env::args().skip(1))?;
    let offers = offers.bind().await?;
    for address in offers.local_addresses() {
        writeln!(io::stderr(), "listening on {address}")?;
    }
    let mut messages = messages();
    let mut waiting = JoinSet::new();
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(id) => {
                    // Waits while the budget is full.
                    let id: OfferId = id.parse()?;
                    let offer = offers.offer(id.clone(), payload(id.as_str(), size)).await?;
                    // Not earlier: a reference must not come before its payload.
                    writeln!(io::stdout(), "{}", offer.reference())?;
                    waiting.spawn(end(id, offer));
                }
                None => break,
            },
            Some(ended) = waiting.join_next() => ended??,
        }
    }
    while let Some(ended) = waiting.join_next().await {
        ended??;
    }
    offers.close().await;
    Ok(())
}

/// Waits for the end of an offer. Here, a vertex would acknowledge its message, or not.
async fn end(id: OfferId, offer: Offer) -> io::Result<()> {
    match offer.taken().await {
        Ok(()) => writeln!(io::stderr(), "taken {id}"),
        Err(reason) => writeln!(io::stderr(), "not taken {id}: {reason}"),
    }
}

/// Reads messages from standard input, in a thread, since a pipe may have nothing for hours.
fn messages() -> mpsc::Receiver<String> {
    let (sender, messages) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    messages
}

/// Returns a payload: its id, a line feed, filling derived from the id, and a checksum of all.
fn payload(id: &str, size: usize) -> Vec<u8> {
    let mut payload = format!("{id}\n").into_bytes();
    let mut filling = fastrand::Rng::with_seed(crc32fast::hash(id.as_bytes()).into());
    payload.extend(std::iter::repeat_with(|| filling.u8(..)).take(size.saturating_sub(payload.len() + 4)));
    let checksum = crc32fast::hash(&payload);
    payload.extend(checksum.to_be_bytes());
    payload
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn options(mut words: impl Iterator<Item = String>) -> Result<(OffersBuilder, usize)> {
    let (mut offers, mut size) = (Offers::builder(), 4096);
    while let Some(word) = words.next() {
        offers = match word.as_str() {
            "--address" => offers.address(value(&word, words.next())?),
            "--host" => offers.host(value::<String>(&word, words.next())?),
            "--budget" => offers.budget(value(&word, words.next())?),
            "--deadline" => offers.deadline(Duration::from_secs(value(&word, words.next())?)),
            "--allow-default-network" => offers.allow_default_network(true),
            "--size" => {
                size = value(&word, words.next())?;
                offers
            }
            _ => match word.parse() {
                Ok(port) => offers.port(port),
                Err(_) => bail!("{word}: neither an option nor a port"),
            },
        };
    }
    Ok((offers, size))
}

fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    option: &str,
    word: Option<String>,
) -> Result<T> {
    let word = word.with_context(|| format!("{option} needs a value"))?;
    word.parse().with_context(|| format!("{option} {word}"))
}
