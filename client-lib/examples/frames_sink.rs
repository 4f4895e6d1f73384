//! Receives the frames of `frames_source`, and prints one line for each:
//!
//! ```text
//! frame NUMBER first|repeat KEY SENDER
//! ```
//!
//! The number is `corrupt` if the checksum is wrong. The key is `-` if there is none. Each frame is
//! acknowledged once its line has been printed. The program ends on SIGTERM or Ctrl-C.
//!
//! ```text
//! frames_sink [PORT] [--address IP] [--slots N] [--silence SECONDS] [--allow-default-network]
//! ```

use std::env;
use std::io::{self, Write as _};
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use multinet_client::{Listener, ListenerBuilder, Received};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

// With one thread, every frame taken from the listener has been printed, except the current one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // If the log cannot be written, the program goes on.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).log_internal_errors(false).init();
    match receive().await {
        // The reader is gone, as with `frames_sink | head -1`. That is not an error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

async fn receive() -> Result<()> {
    let listener = options(env::args().skip(1))?.bind().await?;
    for address in listener.local_addresses() {
        writeln!(io::stdout(), "listening on {address}")?;
    }
    let mut end = pin!(stop_requested());
    let (mut frames, mut bytes) = (0_u64, 0);
    loop {
        let frame = tokio::select! {
            received = listener.recv() => received?,
            ended = &mut end => {
                ended?;
                break;
            }
        };
        frames += 1;
        bytes += frame.bytes().len();
        print(&frame)?;
        frame.acknowledge();
    }
    listener.close().await;
    writeln!(io::stdout(), "done frames={frames} bytes={bytes}")?;
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print(frame: &Received) -> io::Result<()> {
    let number = number(frame.bytes()).map_or_else(|| "corrupt".to_owned(), |number| number.to_string());
    let which = if frame.is_repeat() { "repeat" } else { "first" };
    let key = if frame.key().is_empty() { "-".to_owned() } else { frame.key().escape_ascii().to_string() };
    writeln!(io::stdout(), "frame {number} {which} {key} {}", frame.sender().name().escape_debug())
}

/// Returns the number in a payload, if its checksum is correct.
fn number(payload: &[u8]) -> Option<u64> {
    let (checked, checksum) = payload.split_last_chunk()?;
    let (number, _) = checked.split_first_chunk()?;
    (crc32fast::hash(checked) == u32::from_be_bytes(*checksum)).then(|| u64::from_be_bytes(*number))
}

async fn stop_requested() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        pressed = ctrl_c() => Ok(pressed?),
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<ListenerBuilder> {
    let mut listener = Listener::builder();
    while let Some(word) = words.next() {
        listener = match word.as_str() {
            "--address" => listener.address(value(&word, words.next())?),
            "--slots" => listener.slots(value(&word, words.next())?),
            "--silence" => listener.silence(Duration::from_secs(value(&word, words.next())?)),
            "--allow-default-network" => listener.allow_default_network(true),
            _ => match word.parse() {
                Ok(port) => listener.port(port),
                Err(_) => bail!("{word}: neither an option nor a port"),
            },
        };
    }
    Ok(listener)
}

fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    option: &str,
    word: Option<String>,
) -> Result<T> {
    let word = word.with_context(|| format!("{option} needs a value"))?;
    word.parse().with_context(|| format!("{option} {word}"))
}
