//! `multinet recv`: listens, and hands frames to the thread that writes them.

use std::process::ExitCode;
use std::sync::mpsc as channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use multinet_client::{Listener, Received};
use multinet_stderr::write_line;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::RecvArgs;
use super::destination::Destination;
use super::from::Senders;
use super::incoming::Done;
use super::taker::{Outcome, Taker};
use crate::output::{message, note, print};

/// How long a sender has to hear what has become of its frames before the connection is closed.
const GOODBYE: Duration = Duration::from_secs(5);

/// Numbers of signals, signal(7): who ends by one ends with 128 more than that.
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// How often the writing thread looks whether the senders are still there.
const LOOK: Duration = Duration::from_millis(200);

/// The same, if one is about to go.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(super) async fn run(args: RecvArgs) -> anyhow::Result<ExitCode> {
    // Before it says that it listens: who hears that may tell it to end.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let destination = Destination::new(&args.output, args.force, args.keep)?;
    let is_stdout = matches!(destination, Destination::Stdout);
    let listener = listen(&args).await?;
    let (mut outcomes, inbox) = start(&args, destination, listener.clone())?;
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
            Outcome::Done(done) => {
                let said = tell(&done, is_stdout);
                if !args.keep || said.is_err() {
                    return said.map(|()| ExitCode::SUCCESS);
                }
            }
            Outcome::Failed { error, is_last: false, .. } => note(&message(&error)),
            Outcome::Failed { error, session, is_last: true } => {
                goodbye(&listener, session).await;
                return Err(error);
            }
        }
    }
}

async fn listen(args: &RecvArgs) -> anyhow::Result<Listener> {
    let mut builder = args.listen.listener()?.port(args.port).frame_size(args.frame_size);
    if !args.from.is_empty() {
        let senders = Senders::new(&args.from);
        if senders.names_services() {
            senders.follow(&args.dns.resolver()?);
        }
        builder = builder.admit(move |address| senders.admit(address));
    }
    let listener = builder.bind().await?;
    for address in listener.local_addresses() {
        // Standard output may be the transfer itself.
        write_line(&format!("listening on {address}"));
    }
    match (args.listen.tls.is_on(), args.from.is_empty()) {
        (true, _) => {}
        (false, true) => warn!(
            "without TLS whoever reaches this port may send, in the place of whom you expect, and others on the way may read and change \
             what is sent: give both sides --tls-cert, or say by --from who may send"
        ),
        (false, false) => warn!(
            "without TLS others on the way may read and change what is sent, and come from an address that is not theirs: --tls-cert \
             on both sides prevents it"
        ),
    }
    Ok(listener)
}

/// Says what has been received. Its sender knows already, whoever reads this.
fn tell(Done { summary, came, took, place }: &Done, is_stdout: bool) -> anyhow::Result<()> {
    let mut line = summary.line("received", *came, *took);
    if let Some(place) = place {
        line = format!("{}, as {}\n", line.trim_end(), place.display());
    }
    if is_stdout {
        write_line(line.trim_end());
        return Ok(());
    }
    print(&line)
}

/// Starts the writing thread: disks and pipes may take their time. Senders' credits bound what
/// waits for it.
fn start(
    args: &RecvArgs,
    destination: Destination,
    listener: Listener,
) -> anyhow::Result<(mpsc::UnboundedReceiver<Outcome>, channel::Sender<Received>)> {
    let (inbox, frames) = channel::channel();
    let (say, outcomes) = mpsc::unbounded_channel();
    let keep = args.keep;
    let mut taker = Taker::new(destination, Duration::from_secs(args.wait), keep);
    std::thread::Builder::new().name("sink".to_owned()).spawn(move || {
        taker.adopt();
        let mut looked = Instant::now();
        loop {
            let every = if taker.is_leaving() { LOOK_AGAIN } else { LOOK };
            let wait = every.saturating_sub(looked.elapsed());
            let mut outcome = match frames.recv_timeout(wait) {
                Ok(received) => taker.take(received),
                Err(channel::RecvTimeoutError::Timeout) => None,
                Err(channel::RecvTimeoutError::Disconnected) => return,
            };
            // Frames of others must not keep it from noticing that one is missing.
            if outcome.is_none() && looked.elapsed() >= every {
                outcome = taker.look(|session| listener.is_connected(session));
                // There may be several that are over.
                if outcome.is_none() {
                    looked = Instant::now();
                }
            }
            if let Some(outcome) = outcome {
                let is_last = !keep && matches!(outcome, Outcome::Done(_));
                let is_last = is_last || matches!(outcome, Outcome::Failed { is_last: true, .. });
                if say.send(outcome).is_err() || is_last {
                    return;
                }
            }
        }
    })?;
    Ok((outcomes, inbox))
}

/// Waits until a sender has gone, refusing what is still sent.
async fn goodbye(listener: &Listener, session: u128) {
    let gone = async {
        while listener.is_connected(session) {
            tokio::select! {
                refused = listener.recv() => drop(refused),
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    let _ = timeout(GOODBYE, gone).await;
}
