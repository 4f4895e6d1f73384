//! Graceful shutdown: stop being ready, go on serving for a while, then stop.
//!
//! ```text
//!  SIGTERM ──> not ready ───── lameduck ─────> token cancelled ───── deadline ─────> exit
//!              (still serving, until load      (no new work; finish() waits for
//!               balancers notice)               tasks under way)
//! ```
//!
//! A thread of its own waits for signals and enforces the deadline, so that the process ends in
//! time even if the async runtime hangs, for example on a dead file system.

use std::io;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Readiness;
use crate::limits::shutdown::{LAST_LINES, MARGIN};

/// Starts to drain on the first SIGINT or SIGTERM; the second one ends the process at once.
///
/// On the first signal, `readiness` turns false for good. After `lameduck` the returned token is
/// cancelled, which tells every task to stop. If the process still runs `deadline` and a second
/// later, because a task hangs, it is ended with status 0. A second signal, at any time after the
/// first, ends the process with status 130 (SIGINT) or 143 (SIGTERM). SIGHUP no longer ends the
/// process; [`Hangups`](crate::Hangups) receives it.
///
/// Call it early. Before the call, a signal ends the process at once, or is lost if the process is
/// the first one (PID 1) of a container.
pub fn on_signal(readiness: Readiness, lameduck: Duration, deadline: Duration) -> CancellationToken {
    let token = CancellationToken::new();
    if let Err(error) = handle_signals(readiness, lameduck, deadline, token.clone()) {
        tracing::warn!(%error, "cannot handle signals: SIGTERM will end this process at once");
    }
    token
}

fn handle_signals(
    readiness: Readiness,
    lameduck: Duration,
    deadline: Duration,
    token: CancellationToken,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (signals, hangups) = {
        let _within = runtime.enter();
        (signals()?, signal(SignalKind::hangup())?)
    };
    let drain = move || {
        let end = runtime.block_on(drain_on(signals, readiness, lameduck, deadline + MARGIN, token));
        drop(hangups);
        let status = match end {
            Some(End::Signal(signal)) => signal.exit_status(),
            Some(End::Late) => {
                tracing::warn!("ending this process by force: its tasks have not ended within the deadline");
                multinet_stderr::flush(LAST_LINES);
                0
            }
            None => return,
        };
        std::process::exit(status);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(drain)?;
    Ok(())
}

/// Closes `tasks` and waits until all of them have ended, for at most `deadline`.
///
/// # Errors
///
/// [`Unfinished`] if some have not ended. They go on running until the runtime is shut down.
pub async fn finish(tasks: &TaskTracker, deadline: Duration) -> Result<(), Unfinished> {
    tasks.close();
    match tokio::time::timeout(deadline, tasks.wait()).await {
        Ok(()) => Ok(()),
        Err(_) => Err(Unfinished { tasks: tasks.len(), deadline }),
    }
}

/// Error of [`finish`]: some tasks had not ended by the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tasks} tasks have not ended within {deadline:?}")]
pub struct Unfinished {
    /// Number of tasks that still ran at the deadline.
    pub tasks: usize,
    /// Time that the tasks were given to end.
    pub deadline: Duration,
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// SIGINT, which Ctrl-C sends.
    Interrupt,
    /// SIGTERM, which the kubelet sends.
    Terminate,
}

impl Signal {
    /// Returns the exit status by which shells report that this signal ended a process.
    fn exit_status(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Returns a stream of every SIGINT and SIGTERM from now on.
fn signals() -> io::Result<impl Stream<Item = Signal>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let interrupts = stream::poll_fn(move |cx| interrupt.poll_recv(cx)).map(|()| Signal::Interrupt);
    let terminates = stream::poll_fn(move |cx| terminate.poll_recv(cx)).map(|()| Signal::Terminate);
    Ok(stream::select(interrupts, terminates))
}

/// Reason to end the process by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A second SIGINT or SIGTERM arrived.
    Signal(Signal),
    /// The deadline passed while tasks still ran.
    Late,
}

/// Drains on the first of `signals`. Returns when the second arrives, or when `deadline` has passed
/// since the token was cancelled. `None` if the stream of signals ends first.
async fn drain_on(
    signals: impl Stream<Item = Signal>,
    readiness: Readiness,
    lameduck: Duration,
    deadline: Duration,
    token: CancellationToken,
) -> Option<End> {
    let mut signals = pin!(signals);
    let first = signals.next().await?;
    tracing::info!(signal = ?first, ?lameduck, "draining; a second signal ends this process at once");
    readiness.start_draining();
    let late = async {
        sleep(lameduck).await;
        token.cancel();
        sleep(deadline).await;
    };
    tokio::select! {
        second = signals.next() => second.map(End::Signal),
        () = late => Some(End::Late),
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use tokio::task::yield_now;

    use super::*;

    const LAMEDUCK: Duration = Duration::from_secs(5);

    const DEADLINE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_readiness_at_once_and_cancels_the_token_after_the_lameduck() {
        let (send, signals) = mpsc::unbounded();
        let (readiness, token) = (Readiness::default(), CancellationToken::new());
        let drain = tokio::spawn(drain_on(signals, readiness.clone(), LAMEDUCK, DEADLINE, token.clone()));
        yield_now().await;
        assert!(readiness.is_ready());

        send.unbounded_send(Signal::Terminate).unwrap();
        yield_now().await;
        assert!(!readiness.is_ready());

        sleep(LAMEDUCK - Duration::from_millis(10)).await;
        assert!(!token.is_cancelled());
        sleep(Duration::from_millis(20)).await;
        assert!(token.is_cancelled());
        assert!(!drain.is_finished(), "it goes on listening for the second signal");

        send.unbounded_send(Signal::Interrupt).unwrap();
        assert_eq!(drain.await.unwrap(), Some(End::Signal(Signal::Interrupt)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_process_during_the_lameduck() {
        let (send, signals) = mpsc::unbounded();
        let token = CancellationToken::new();
        let drain = tokio::spawn(drain_on(signals, Readiness::default(), LAMEDUCK, DEADLINE, token.clone()));
        send.unbounded_send(Signal::Terminate).unwrap();
        send.unbounded_send(Signal::Terminate).unwrap();
        assert_eq!(drain.await.unwrap(), Some(End::Signal(Signal::Terminate)));
        assert!(!token.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_end_by_itself_is_late() {
        let begun = tokio::time::Instant::now();
        let (send, signals) = mpsc::unbounded();
        send.unbounded_send(Signal::Terminate).unwrap();
        let token = CancellationToken::new();
        let end = drain_on(signals, Readiness::default(), LAMEDUCK, DEADLINE, token.clone()).await;
        assert_eq!(end, Some(End::Late));
        assert!(token.is_cancelled() && begun.elapsed() == LAMEDUCK + DEADLINE, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn finish_waits_for_tasks_until_the_deadline() {
        let tasks = TaskTracker::new();
        tasks.spawn(sleep(Duration::from_secs(2)));
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
