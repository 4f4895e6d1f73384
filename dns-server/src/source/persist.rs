//! Persists the state in the snapshot file: loads the file at the start, and rewrites it after
//! changes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::snapshot;
use crate::limits::snapshot::{INTERVAL, LONGEST_PAUSE, SHARE};
use crate::ops::metrics::SourceMetrics;
use crate::store::answers::Freshness;
use crate::store::state::{Objects, State};

/// Checks that the snapshot file can be written where it is configured.
///
/// # Errors
///
/// If it cannot. The message states the problem and the remedy in one line.
pub(crate) fn check(file: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    let folder = snapshot::folder_of(file);
    let shown_folder = folder.display();
    match fs::metadata(folder) {
        Ok(found) => anyhow::ensure!(found.is_dir(), "--snapshot {shown}: {shown_folder} is no folder"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::bail!("--snapshot {shown}: there is no folder {shown_folder}; make it first")
        }
        Err(error) => anyhow::bail!("--snapshot {shown}: the folder {shown_folder} cannot be used: {error}"),
    }
    snapshot::exists(file).map_err(|error| anyhow::anyhow!("--snapshot {shown}: {error}"))?;
    Ok(())
}

/// Loads the snapshot of an earlier run. Logs the reason if the file is missing or cannot be used.
pub(crate) fn load(file: &Path, max_age: Duration) -> Option<Objects> {
    match snapshot::read(file, Timestamp::now(), max_age) {
        Ok(Some(objects)) => {
            let (services, slices) = (objects.services.len(), objects.slices.len());
            info!(file = %file.display(), services, slices, "answering from the snapshot until all is synced");
            Some(objects)
        }
        Ok(None) => {
            info!(file = %file.display(), "the snapshot file does not exist yet");
            None
        }
        Err(error) => {
            warn!(file = %file.display(), %error, "cannot use the snapshot; starting without it");
            None
        }
    }
}

/// Rewrites the file after changes until `shutdown`, but only while everything is synced. Without
/// changes it still rewrites the file now and then, so that a true snapshot does not exceed its
/// maximum age.
pub(crate) async fn run(
    file: PathBuf,
    max_age: Duration,
    state: Arc<State>,
    metrics: SourceMetrics,
    shutdown: CancellationToken,
) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut written: Option<(u32, Instant)> = None;
    let mut failures = 0;
    let mut rested = Instant::now();
    loop {
        let last = tokio::select! {
            _ = ticks.tick() => false,
            () = shutdown.cancelled() => true,
        };
        let serial = state.answers().serial();
        let is_old = |(known, at): (u32, Instant)| known != serial || at.elapsed() > max_age / 4;
        let is_due = written.is_none_or(is_old) && (last || Instant::now() >= rested);
        if state.answers().freshness() == Freshness::Current && is_due {
            let begun = Instant::now();
            match write(file.clone(), Arc::clone(&state)).await {
                Ok(None) => {}
                Ok(Some(serial)) => {
                    metrics.snapshots.inc();
                    written = Some((serial, Instant::now()));
                    failures = 0;
                }
                Err(error) => {
                    metrics.snapshot_failures.inc();
                    if failures == 0 {
                        warn!(file = %file.display(), "cannot write the snapshot, retrying: {error:#}");
                    }
                    failures += 1;
                }
            }
            rested = Instant::now() + pause(begun.elapsed(), failures);
        }
        if last {
            return;
        }
    }
}

/// Returns the pause after a write that took `took`. It doubles with each failure.
fn pause(took: Duration, failures: u32) -> Duration {
    let usual = took * SHARE;
    usual.saturating_mul(1 << failures.min(20)).min(LONGEST_PAUSE.max(usual))
}

/// Writes the current objects and returns their serial; `None` if they are incomplete. File I/O may
/// block, so it runs on a thread for blocking work.
async fn write(file: PathBuf, state: Arc<State>) -> anyhow::Result<Option<u32>> {
    tokio::task::spawn_blocking(move || {
        let Some(objects) = state.objects() else { return Ok(None) };
        snapshot::write(&file, Timestamp::now(), &objects)?;
        Ok(Some(objects.serial))
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_is_retried_ever_less_often() {
        let took = Duration::from_secs(1);
        let pauses = [0, 1, 2, 5, 6, 1000].map(|failures| pause(took, failures).as_secs());
        assert_eq!(pauses, [20, 40, 80, 600, 600, 600]);
        // A write that fails is never retried sooner than one that succeeds would be repeated.
        assert_eq!(pause(60 * took, 1000), 60 * SHARE * took);
        assert_eq!(pause(Duration::MAX / SHARE, 1000), Duration::MAX / SHARE * SHARE);
    }
}
