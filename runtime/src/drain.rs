//! An orderly end: stop being ready, serve on for a while, then stop.
//!
//! ```text
//!  SIGTERM ──> not ready ───── lameduck ─────> token cancelled ───── deadline ─────> exit
//!              (serving on, while load         (no new work; finish() waits for
//!               balancers take notice)          what is under way)
//! ```

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Readiness;

/// Starts to drain on the first SIGINT or SIGTERM; the second one ends the process at once.
///
/// On the first, `readiness` turns false for good; after `lameduck` the token that is returned is
/// cancelled, which is everybody's sign to stop. The second, at any time after the first, exits with
/// status 130 (SIGINT) or 143 (SIGTERM).
///
/// To be called within a tokio runtime, and early: a signal before it ends the process, as is usual.
pub fn on_signal(readiness: Readiness, lameduck: Duration) -> CancellationToken {
    let token = CancellationToken::new();
    match signals() {
        Ok(signals) => {
            let second = drain_on(signals, readiness, lameduck, token.clone());
            tokio::spawn(async {
                if let Some(signal) = second.await {
                    std::process::exit(signal.exit_status());
                }
            });
        }
        Err(error) => tracing::warn!(%error, "cannot handle signals: SIGTERM will end this process at once"),
    }
    token
}

/// Closes `tasks` and waits until all of them have ended, for at most `deadline`.
///
/// # Errors
///
/// [`Unfinished`] if some have not; they go on running until the runtime is shut down.
pub async fn finish(tasks: &TaskTracker, deadline: Duration) -> Result<(), Unfinished> {
    tasks.close();
    match tokio::time::timeout(deadline, tasks.wait()).await {
        Ok(()) => Ok(()),
        Err(_) => Err(Unfinished { tasks: tasks.len(), deadline }),
    }
}

/// Some tasks had not ended by the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tasks} tasks have not ended within {deadline:?}")]
pub struct Unfinished {
    /// How many.
    pub tasks: usize,
    /// How long they were given.
    pub deadline: Duration,
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM, as from a kubelet.
    Terminate,
}

impl Signal {
    /// The exit status by which shells report a process that this signal has ended.
    fn exit_status(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Every SIGINT and SIGTERM from now on.
fn signals() -> io::Result<impl Stream<Item = Signal>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let interrupts = stream::poll_fn(move |cx| interrupt.poll_recv(cx)).map(|()| Signal::Interrupt);
    let terminates = stream::poll_fn(move |cx| terminate.poll_recv(cx)).map(|()| Signal::Terminate);
    Ok(stream::select(interrupts, terminates))
}

/// Drains on the first of `signals` and gives back the second. None if they end before.
async fn drain_on(
    signals: impl Stream<Item = Signal>,
    readiness: Readiness,
    lameduck: Duration,
    token: CancellationToken,
) -> Option<Signal> {
    let mut signals = pin!(signals);
    let first = signals.next().await?;
    tracing::info!(signal = ?first, ?lameduck, "draining; a second signal ends this process at once");
    readiness.start_draining();
    tokio::select! {
        second = signals.next() => return second,
        () = tokio::time::sleep(lameduck) => token.cancel(),
    }
    signals.next().await
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use tokio::task::yield_now;

    use super::*;

    const LAMEDUCK: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn not_ready_at_once_and_cancelled_after_the_lameduck() {
        let (send, signals) = mpsc::unbounded();
        let (readiness, token) = (Readiness::default(), CancellationToken::new());
        let drain = tokio::spawn(drain_on(signals, readiness.clone(), LAMEDUCK, token.clone()));
        yield_now().await;
        assert!(readiness.is_ready());

        send.unbounded_send(Signal::Terminate).unwrap();
        yield_now().await;
        assert!(!readiness.is_ready());

        tokio::time::sleep(LAMEDUCK - Duration::from_millis(10)).await;
        assert!(!token.is_cancelled());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(token.is_cancelled());
        assert!(!drain.is_finished(), "it goes on listening for the second signal");

        send.unbounded_send(Signal::Interrupt).unwrap();
        assert_eq!(drain.await.unwrap(), Some(Signal::Interrupt));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_cuts_the_lameduck_short() {
        let (send, signals) = mpsc::unbounded();
        let token = CancellationToken::new();
        let drain = tokio::spawn(drain_on(signals, Readiness::default(), LAMEDUCK, token.clone()));
        send.unbounded_send(Signal::Terminate).unwrap();
        send.unbounded_send(Signal::Terminate).unwrap();
        assert_eq!(drain.await.unwrap(), Some(Signal::Terminate));
        assert!(!token.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_waited_for_until_the_deadline() {
        let tasks = TaskTracker::new();
        tasks.spawn(tokio::time::sleep(Duration::from_secs(2)));
        assert_eq!(finish(&tasks, Duration::from_secs(3)).await, Ok(()));

        tasks.spawn(std::future::pending::<()>());
        let deadline = Duration::from_secs(3);
        assert_eq!(finish(&tasks, deadline).await, Err(Unfinished { tasks: 1, deadline }));
    }

    #[test]
    fn exit_statuses_are_those_of_shells() {
        assert_eq!(Signal::Interrupt.exit_status(), 130);
        assert_eq!(Signal::Terminate.exit_status(), 143);
    }
}
