//! `multinet recv`: listens, and hands frames to the thread that writes them.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc as channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use multinet_client::{Listener, Received};
use multinet_stderr::say;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::RecvArgs;
use super::taker::{Outcome, Taker};
use crate::output::{PipeClosed, message, note, print};

/// How long senders have to hear what has become of their frames before the connections are closed.
const GOODBYE: Duration = Duration::from_secs(5);

/// Numbers of signals, signal(7): who ends by one ends with 128 more than that.
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// How often the writing thread looks whether the sender is still there.
const LOOK: Duration = Duration::from_millis(200);

pub(super) async fn run(args: RecvArgs) -> anyhow::Result<ExitCode> {
    // Before it says that it listens: who hears that may tell it to end.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let listener = args.listen.listener()?.port(args.port).frame_size(args.frame_size).bind().await?;
    for address in listener.local_addresses() {
        // Standard output may be the transfer itself.
        say(&format!("listening on {address}"));
    }
    let is_stdout = args.output == Path::new("-");
    let (mut outcomes, inbox) = start(&args, listener.clone())?;
    loop {
        let outcome = tokio::select! {
            // The thread has ended only if it has said so.
            received = listener.recv() => { let _ = inbox.send(received?); continue }
            outcome = outcomes.recv() => outcome.context("the writing thread has ended")?,
            // As the first process of a container it would not hear them otherwise.
            _ = interrupt.recv() => return Ok(ExitCode::from(128 + SIGINT)),
            _ = terminate.recv() => return Ok(ExitCode::from(128 + SIGTERM)),
        };
        match outcome {
            Outcome::Done { summary, came, took } => {
                let line = summary.line("received", came, took);
                let said = if is_stdout {
                    say(line.trim_end());
                    Ok(())
                } else {
                    print(&line)
                };
                // The sender is to hear that everything is here, whoever reads what we say.
                if !args.keep || said.is_err() {
                    goodbye(&listener).await;
                    return said.map(|()| ExitCode::SUCCESS);
                }
            }
            // Standard output does not come back.
            Outcome::Failed(error) if args.keep && !error.is::<PipeClosed>() => note(&message(&error)),
            Outcome::Failed(error) => {
                goodbye(&listener).await;
                return Err(error);
            }
        }
    }
}

/// Starts the writing thread: disks and pipes may take their time. Senders' credits bound what waits for it.
fn start(
    args: &RecvArgs,
    listener: Listener,
) -> anyhow::Result<(mpsc::UnboundedReceiver<Outcome>, channel::Sender<Received>)> {
    let (inbox, frames) = channel::channel();
    let (say, outcomes) = mpsc::unbounded_channel();
    let mut taker = Taker::new(args.output.clone(), Duration::from_secs(args.wait));
    let keep = args.keep;
    std::thread::Builder::new().name("sink".to_owned()).spawn(move || {
        let mut looked = Instant::now();
        loop {
            let mut outcome = match frames.recv_timeout(LOOK) {
                Ok(received) => taker.take(received),
                Err(channel::RecvTimeoutError::Timeout) => None,
                Err(channel::RecvTimeoutError::Disconnected) => return,
            };
            // Frames of others must not keep it from noticing that one is missing.
            if outcome.is_none() && looked.elapsed() >= LOOK {
                outcome = taker.look(|session| listener.is_connected(session));
                looked = Instant::now();
            }
            if let Some(outcome) = outcome
                && (say.send(outcome).is_err() || !keep)
            {
                return;
            }
        }
    })?;
    Ok((outcomes, inbox))
}

/// Waits until the senders have gone, refusing what they still send.
async fn goodbye(listener: &Listener) {
    let gone = async {
        while listener.statistics().connections > 0 {
            tokio::select! {
                refused = listener.recv() => drop(refused),
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    let _ = timeout(GOODBYE, gone).await;
}
