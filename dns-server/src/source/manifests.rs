//! Objects from YAML and JSON files, which are polled for changes.
//!
//! ```text
//!   scan ──> tracker ──> read ──> documents ──> objects ──> files ──> Index
//!   the files │          a file   YAML, JSON    good, bad   the objects that are served
//!             which may be read
//! ```
//!
//! | module | does | pure |
//! |---|---|---|
//! | `scan` | lists the files under the paths, with stamps that change when a file does | |
//! | `tracker` | decides which files have changed and may be read | yes |
//! | `read` | reads files whole, with all cores | |
//! | `documents`, `objects` | bytes to documents to objects, good and bad | yes |
//! | `file` | the objects that one file claims | yes |
//! | `files` | the objects that are served: last good versions, first file first | yes |
//!
//! One thread does everything except parsing. It scans several times a second, so that a changed
//! file is served within a second on any file system, with or without notifications.

mod documents;
mod file;
mod files;
mod log;
mod objects;
mod read;
mod scan;
mod tracker;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use multinet_crds::manifest::Object;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::{Index, Readiness};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::info;

use file::Severity;
use files::{Changes, Content, FileKey, ManifestFiles, Report, Transition, Update};
use objects::{Kind, ObjectId};
use read::ReadOutcome;
use scan::{FileStamp, FileState, Scan};
use tracker::{Step, Tracker};

use crate::limits::manifests::{PAUSE, PAUSE_PER_SCAN};
use crate::ops::metrics::ManifestMetrics;

/// At the start, a file that was written more recently than this may be incomplete.
const YOUNG: Duration = Duration::from_millis(40);

/// How often the start waits for files that may be incomplete.
const MAX_WAITS: usize = 10;

/// An index of both kinds of objects.
pub trait ObjectIndex: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice> {}

impl<I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice>> ObjectIndex for I {}

/// Manifest files that were read, and can be followed.
pub struct Manifests {
    roots: Vec<PathBuf>,
    files: ManifestFiles,
    tracker: Tracker,
    /// Hashes of the contents last read, to recognize a file that was only touched.
    contents: HashMap<FileKey, u64>,
    /// Device that each path of `--manifests`, by position, was on, to recognize unmounted volumes.
    devices: BTreeMap<usize, u64>,
    readiness: Readiness,
    metrics: ManifestMetrics,
}

/// Reads all manifests in files and folders, and applies them to `index`, which is in sync
/// afterwards; blocks. Bad manifests are logged and counted. A given path that cannot be read is an
/// error.
///
/// If a path becomes unreadable later, its objects are still served, and `readiness` shows that.
pub fn load(
    paths: &[PathBuf],
    index: &impl ObjectIndex,
    readiness: &Readiness,
    metrics: ManifestMetrics,
) -> Result<Manifests> {
    let mut scan = scan::scan(paths);
    for _ in 0..MAX_WAITS {
        let is_young = |seen: &FileState| matches!(seen, FileState::File(stamp) if stamp.age() < YOUNG);
        if !scan.seen.values().any(is_young) {
            break;
        }
        std::thread::sleep(YOUNG);
        scan = scan::scan(paths);
    }
    check_roots(paths, &scan)?;
    let mut manifests = Manifests {
        roots: paths.to_vec(),
        files: ManifestFiles::default(),
        tracker: Tracker::default(),
        contents: HashMap::new(),
        devices: BTreeMap::new(),
        readiness: readiness.clone(),
        metrics,
    };
    let updates = manifests.process(scan, true);
    let count = |wanted: Kind| manifests.files.served().filter(|id| id.kind == wanted).count();
    info!(
        files = manifests.files.count(),
        services = count(Kind::Service),
        slices = count(Kind::Slice),
        bad = manifests.files.count_bad(),
        "manifests read"
    );
    manifests.publish(updates, index);
    Ok(manifests)
}

/// Returns an error for the first path of `--manifests` that cannot be read.
fn check_roots(roots: &[PathBuf], scan: &Scan) -> Result<()> {
    for (root, path) in roots.iter().enumerate() {
        let key = FileKey::new(root, path);
        let reason = match scan.seen.get(&key) {
            Some(FileState::Unreadable(reason)) => reason.clone(),
            // Metadata do not show whether the file may be read, so open it.
            Some(FileState::File(_)) => match read::open(path) {
                Ok(_) => continue,
                Err(error) => scan::reason(&error),
            },
            None => continue,
        };
        bail!(
            "--manifests {}: {reason}; name a file or folder that is there and may be read",
            path.display()
        );
    }
    Ok(())
}

/// Returns how many objects of a file with these contents are served. For fuzzing.
#[doc(hidden)]
pub fn count_served(bytes: &[u8]) -> usize {
    let mut files = ManifestFiles::default();
    files.set(&FileKey::new(0, Path::new("file.yaml")), Content::of(bytes));
    files.take_changes();
    files.served().count()
}

impl Manifests {
    /// Applies the first updates to `index`, which is in sync afterwards.
    fn publish(&self, updates: Vec<Update>, index: &impl ObjectIndex) {
        let (mut services, mut slices) = (HashSet::new(), HashSet::new());
        for id in self.files.served() {
            match id.kind {
                Kind::Service => services.insert(id.key.clone()),
                Kind::Slice => slices.insert(id.key.clone()),
            };
        }
        apply(index, updates);
        Index::<MultiNetworkService>::reset(index, &services);
        Index::<MultiNetworkEndpointSlice>::reset(index, &slices);
        commit(index);
    }

    /// Returns the paths of `--manifests`, separated by commas, for the log.
    pub fn origin(&self) -> String {
        let roots: Vec<String> = self.roots.iter().map(|path| path.display().to_string()).collect();
        roots.join(",")
    }

    /// Publishes every change, until `shutdown` or until the future is dropped.
    pub async fn follow(
        mut self,
        index: Arc<impl ObjectIndex + 'static>,
        shutdown: CancellationToken,
    ) -> Result<()> {
        // Dropping the sender ends the thread.
        let (_following, followed) = mpsc::channel();
        let (ended, end) = oneshot::channel::<()>();
        // A thread of its own, so that the process can end even if a file system hangs.
        std::thread::Builder::new()
            .name("manifests".to_owned())
            .spawn(move || {
                self.run(&*index, &followed);
                // The receiver may be gone after a shutdown.
                let _ = ended.send(());
            })
            .map_err(|error| anyhow!("the thread that reads changed manifests failed: {error}"))?;
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            end = end => end.map_err(|_| anyhow!("the thread that reads changed manifests failed: it panicked")),
        }
    }

    fn run(&mut self, index: &impl ObjectIndex, followed: &Receiver<()>) {
        let mut pause = PAUSE;
        while followed.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let begun = Instant::now();
            let scan = scan::scan(&self.roots);
            pause = PAUSE.max(begun.elapsed() * PAUSE_PER_SCAN);
            let updates = self.process(scan, false);
            if !updates.is_empty() {
                info!(objects = updates.len(), "manifests changed");
                apply(index, updates);
                commit(index);
            }
        }
    }

    /// Reads the files that are due after a scan. Returns the updates of objects.
    fn process(&mut self, mut scan: Scan, is_first: bool) -> Vec<Update> {
        let now = Instant::now();
        scan.distrust_empty_mount_points(&self.roots, &mut self.devices);
        self.note_lost(&scan);
        let steps = self.tracker.due(scan.seen, &scan.unknown, now, is_first);
        let mut wanted = Vec::new();
        for step in steps {
            match step {
                Step::Read(key, stamp) => wanted.push((key, stamp)),
                Step::Unreadable(key, reason) => self.set(&key, Content::Unreadable(reason), None),
                Step::Remove(key) => {
                    self.contents.remove(&key);
                    self.files.remove(&key);
                }
            }
        }
        self.read(&wanted, now);
        self.collect_updates(now)
    }

    /// Shows the paths of `--manifests` that cannot be read in the metrics and in `/readyz`.
    fn note_lost(&self, scan: &Scan) {
        let lost: Vec<String> =
            scan.lost(&self.roots).map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
        self.metrics.lost.set(i64::try_from(lost.len()).unwrap_or(i64::MAX));
        let note = format!("the last answers stay, because these cannot be read: {}", lost.join(", "));
        self.readiness.note("manifests", (!lost.is_empty()).then_some(note));
    }

    /// Reads files. A file that changes meanwhile is left to the next scan.
    fn read(&mut self, wanted: &[(FileKey, FileStamp)], now: Instant) {
        for ((key, stamp), outcome) in wanted.iter().zip(read::read_all(wanted, &self.contents)) {
            match outcome {
                ReadOutcome::New(content, hash) => self.set(key, content, hash),
                ReadOutcome::Same => {}
                ReadOutcome::Torn => {
                    self.tracker.forget(key, now);
                    continue;
                }
            }
            self.tracker.was_read(key, stamp.age(), now);
        }
    }

    /// Stores the new content of a file. `hash` is `None` if the file cannot be read.
    fn set(&mut self, key: &FileKey, content: Content, hash: Option<u64>) {
        match hash {
            Some(hash) => self.contents.insert(key.clone(), hash),
            None => self.contents.remove(key),
        };
        self.files.set(key, content);
    }

    /// Returns the changes of objects to publish, and logs and counts bad manifests.
    fn collect_updates(&mut self, now: Instant) -> Vec<Update> {
        let Changes { updates, reports, reread } = self.files.take_changes();
        for key in reread {
            self.contents.remove(&key);
            self.tracker.forget(&key, now);
        }
        let is_found = |report: &&Report| matches!(&report.transition, Transition::Found(problem, _) if problem.severity == Severity::Bad);
        self.metrics.found_bad.inc_by(reports.iter().filter(is_found).count() as u64);
        self.metrics.bad.set(i64::try_from(self.files.count_bad()).unwrap_or(i64::MAX));
        log::log_reports(&reports);
        updates
    }
}

fn apply(index: &impl ObjectIndex, updates: Vec<Update>) {
    for update in updates {
        match update {
            Update::Apply(Object::Service(service)) => index.apply(*service),
            Update::Apply(Object::Slice(slice)) => index.apply(*slice),
            Update::Delete(ObjectId { kind: Kind::Service, key }) => {
                Index::<MultiNetworkService>::delete(index, &key);
            }
            Update::Delete(ObjectId { kind: Kind::Slice, key }) => {
                Index::<MultiNetworkEndpointSlice>::delete(index, &key);
            }
        }
    }
}

fn commit(index: &impl ObjectIndex) {
    Index::<MultiNetworkService>::commit(index);
    Index::<MultiNetworkEndpointSlice>::commit(index);
}

#[cfg(test)]
mod tests;
