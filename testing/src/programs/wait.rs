//! Bounded waiting for conditions. A timeout names what did not happen.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep, timeout_at};

/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(25);

/// Runs `attempt` until it succeeds, and returns its result. After `bound` it fails, with `what`
/// the test waited for and the error of the last attempt.
pub async fn eventually<T>(
    what: &str,
    bound: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + bound;
    let mut last = anyhow::anyhow!("no attempt has finished");
    loop {
        match timeout_at(deadline, attempt()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
        if Instant::now() + PAUSE >= deadline {
            return Err(last).with_context(|| format!("waited {bound:?} for {what}"));
        }
        sleep(PAUSE).await;
    }
}

/// Does the same as [`eventually`], for synchronous tests.
pub fn eventually_blocking<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    const BOUND: Duration = Duration::from_secs(20);
    let deadline = Instant::now() + BOUND;
    loop {
        match attempt() {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("waited {BOUND:?} for {what}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs a future to its end, for synchronous tests.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn a_timeout_names_the_awaited_condition() {
        let error = eventually::<()>("spring", Duration::from_millis(100), async || bail!("it snows"))
            .await
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 100ms for spring: it snows");
        let stuck =
            eventually::<()>("spring", Duration::from_millis(100), std::future::pending).await.unwrap_err();
        assert!(format!("{stuck:#}").contains("no attempt has finished"));
    }

    #[tokio::test]
    async fn eventually_returns_the_first_success() {
        let mut attempts = 0;
        let found = eventually("three", Duration::from_secs(10), async || {
            attempts += 1;
            if attempts < 3 {
                bail!("only {attempts}");
            }
            Ok(attempts)
        });
        assert_eq!(found.await.unwrap(), 3);
    }
}
