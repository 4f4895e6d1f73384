//! `multinet recv`: listens, and hands frames to the thread that writes them.

use std::process::ExitCode;
use std::sync::mpsc as channel;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use multinet_client::{Listener, Received};
use multinet_stderr::write_line;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::destination::Destination;
use super::incoming::Done;
use super::transfers::{TransferOutcome, Transfers};
use super::{RecvArgs, from};
use crate::output::print;
use crate::signals::Signals;

/// How long the receiver keeps the connection of a failed transfer, for its last answers.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long the writing thread has to end after a signal: it may wait for a disk or a reader.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// How often the writing thread checks whether the senders are still there.
const CHECK: Duration = Duration::from_millis(200);

/// How often the writing thread checks that while a sender is about to go.
const CHECK_SOON: Duration = Duration::from_millis(5);

/// Runs `multinet recv`.
pub(crate) async fn run(args: RecvArgs) -> anyhow::Result<ExitCode> {
    // Before it says that it listens: a program that reads this may send a signal.
    let mut signals = Signals::new()?;
    let destination = Destination::new(&args.output, args.force, args.keep)?;
    let is_stdout = destination.is_stdout();
    let listener = listen(&args).await?;
    let (mut outcomes, frames) = start(&args, destination, listener.clone())?;
    let status = loop {
        let outcome = tokio::select! {
            // The send fails only if the thread has ended, and then an outcome is there.
            received = listener.recv() => { let _ = frames.send(received?); continue }
            outcome = outcomes.recv() => outcome.context("the writing thread has ended")?,
            status = signals.next() => break status,
        };
        match outcome {
            TransferOutcome::Done(done) => {
                let printed = report(&done, is_stdout);
                if !args.keep || printed.is_err() {
                    return printed.map(|()| ExitCode::SUCCESS);
                }
            }
            TransferOutcome::Failed(error, session) => {
                tokio::select! {
                    () = goodbye(&listener, session) => {}
                    // The transfer has failed all the same.
                    _ = signals.next() => {}
                }
                return Err(error);
            }
        }
    };
    // Without more frames, the thread ends the transfers whose senders know that they are over.
    drop(frames);
    while let Ok(Some(outcome)) = timeout(LAST_WRITES, outcomes.recv()).await {
        if let TransferOutcome::Done(done) = outcome {
            report(&done, is_stdout)?;
            if !args.keep {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    Ok(status)
}

async fn listen(args: &RecvArgs) -> anyhow::Result<Listener> {
    let mut builder = args.listen.listener()?.port(args.port).frame_size(args.frame_size);
    if let Some(admits) = from::admission(&args.from.from, &args.dns, "send")? {
        builder = builder.admit(admits);
    }
    let listener = builder.bind().await?;
    for address in listener.local_addresses() {
        // Standard output may be the transfer itself.
        write_line(&format!("listening on {address}"));
    }
    match (args.listen.tls.is_on(), args.from.from.is_empty()) {
        (true, _) => {}
        (false, true) => warn!(
            "without TLS any client that reaches this port may send, and hosts on the way may read and change data: give both sides \
             --tls-cert, --tls-key and --tls-ca; --from limits only the senders"
        ),
        (false, false) => warn!(
            "without TLS hosts on the way may read and change data, and forge the addresses of --from: give both sides --tls-cert, \
             --tls-key and --tls-ca"
        ),
    }
    Ok(listener)
}

/// Prints what has been received. If that fails, its sender knows all the same.
fn report(Done { summary, came, took, place }: &Done, is_stdout: bool) -> anyhow::Result<()> {
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

/// Starts the writing thread, since disks and pipes may take their time. The senders' credits bound
/// how many frames wait for it.
fn start(
    args: &RecvArgs,
    destination: Destination,
    listener: Listener,
) -> anyhow::Result<(mpsc::UnboundedReceiver<TransferOutcome>, channel::Sender<Received>)> {
    let (frames, inbox) = channel::channel();
    let (outbox, outcomes) = mpsc::unbounded_channel();
    let keep = args.keep;
    let mut transfers = Transfers::new(destination, Duration::from_secs(args.wait), keep);
    std::thread::Builder::new().name("sink".to_owned()).spawn(move || {
        transfers.finish_left_behind();
        let mut checked = Instant::now();
        loop {
            let every = if transfers.has_confirmed() { CHECK_SOON } else { CHECK };
            let wait = every.saturating_sub(checked.elapsed());
            let mut outcome = match inbox.recv_timeout(wait) {
                Ok(received) => transfers.handle_frame(received),
                Err(channel::RecvTimeoutError::Timeout) => None,
                Err(channel::RecvTimeoutError::Disconnected) => {
                    for done in transfers.close() {
                        let _ = outbox.send(TransferOutcome::Done(done));
                    }
                    return;
                }
            };
            // Frames of others must not keep it from noticing that one is missing.
            if outcome.is_none() && checked.elapsed() >= every {
                outcome = transfers.check(|session| listener.is_connected(session));
                // Several transfers may be over.
                if outcome.is_none() {
                    checked = Instant::now();
                }
            }
            if let Some(outcome) = outcome {
                let is_last = !keep || matches!(outcome, TransferOutcome::Failed(..));
                if is_last {
                    transfers.close();
                    let _ = outbox.send(outcome);
                    return;
                }
                if outbox.send(outcome).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok((outcomes, frames))
}

/// Waits until a sender has gone, refusing what it still sends.
async fn goodbye(listener: &Listener, session: Option<u128>) {
    let gone = async {
        while session.is_some_and(|session| listener.is_connected(session)) {
            tokio::select! {
                refused = listener.recv() => drop(refused),
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    let _ = timeout(GOODBYE, gone).await;
}
