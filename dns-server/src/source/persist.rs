//! Keeps the snapshot file: reads it at the start, and writes it whenever there is something new to say.

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
use crate::ops::metrics::SourceMetrics;
use crate::store::answers::Freshness;
use crate::store::state::{Objects, State};

/// How often it is looked whether anything has changed: a burst of changes is one write.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writing may take one part in this many of the time, however large the cluster and fast its changes.
const SHARE: u32 = 20;

/// Pause after failures, however often and after however little time: a disk that is full may have room again.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Finds a place where no file can ever be written.
///
/// # Errors
///
/// What is wrong with it, in a line.
pub fn check(file: &Path) -> anyhow::Result<()> {
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

/// What an earlier run knew, if the file is there and good; else a line in the log says why not.
pub fn load(file: &Path, max_age: Duration) -> Option<Objects> {
    match snapshot::read(file, Timestamp::now(), max_age) {
        Ok(Some(objects)) => {
            let (services, slices) = (objects.services.len(), objects.slices.len());
            info!(file = %file.display(), services, slices, "answering from the snapshot until all is synced");
            Some(objects)
        }
        Ok(None) => {
            info!(file = %file.display(), "no snapshot yet");
            None
        }
        Err(error) => {
            warn!(file = %file.display(), %error, "snapshot ignored");
            None
        }
    }
}

/// Writes the file after changes, and now and then without any, so that it does not grow too old while it is
/// still true. Nothing is written before everything has synced.
pub async fn run(
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
                        warn!(file = %file.display(), "snapshot not written, trying on: {error:#}");
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

/// How long to rest after a write that took so long: twice as long after each failure.
fn pause(took: Duration, failures: u32) -> Duration {
    let usual = took * SHARE;
    usual.saturating_mul(1 << failures.min(20)).min(LONGEST_PAUSE.max(usual))
}

/// Writes what is known now, and gives its serial; none if that is not whole. File I/O may block, so it has a thread of its own.
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
    fn a_file_that_cannot_be_written_is_tried_ever_less_often() {
        let took = Duration::from_secs(1);
        let pauses = [0, 1, 2, 5, 6, 1000].map(|failures| pause(took, failures).as_secs());
        assert_eq!(pauses, [20, 40, 80, 600, 600, 600]);
        // Never more often than one that can.
        assert_eq!(pause(60 * took, 1000), 60 * SHARE * took);
        assert_eq!(pause(Duration::MAX / SHARE, 1000), Duration::MAX / SHARE * SHARE);
    }
}
