//! Objects from YAML and JSON files, followed as they change.
//!
//! ```text
//!   scan ──> tracker ──> read ──> documents ──> objects ──> files ──> Index
//!    ↑ what is there,     a file   YAML, JSON    good, bad   which is served
//!    │     which may be read
//!   watch: something has changed
//! ```
//!
//! | module | does | pure |
//! |---|---|---|
//! | `scan` | walks the paths: which files there are, what they look like, where changes would show | |
//! | `watch` | hears of changes at once (inotify) | |
//! | `tracker` | knows which files have changed, and waits until their writers are done | yes |
//! | `read` | reads files whole, with all cores | |
//! | `documents`, `objects` | bytes to documents to objects, good and bad | yes |
//! | `file` | what one file says | yes |
//! | `files` | which objects are served: last good versions, first file first | yes |
//!
//! One thread does it all but the parsing. It looks when it hears of a change, and every two seconds in any case,
//! so that it is only slower where changes cannot be heard of (network file systems, no inotify watch left).

mod documents;
mod file;
mod files;
mod log;
mod objects;
mod read;
mod scan;
mod tracker;
mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use multinet_crds::manifest::Object;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::{Index, Readiness};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::info;

use file::Verdict;
use files::{Changes, Content, FileKey, Files, News, Report, Update};
use objects::{Kind, ObjectId};
use read::Outcome;
use scan::{Places, Print, Scan, Seen};
use tracker::{QUIET, Step, Tracker, Writers};
use watch::{Change, Wake, Watches};

use crate::ops::metrics::ManifestMetrics;

/// How long changes are collected after the first one heard of.
const COLLECT: Duration = Duration::from_millis(20);

/// How often the files are looked at when nothing is heard.
const LOOK: Duration = Duration::from_secs(2);

/// How often at most a look is repeated at once: because there is more to watch than before, or at the start
/// because somebody is writing.
const MAX_REPEATS: usize = 10;

/// Manifests that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestsError {
    /// A path given by name that cannot be read at the start.
    #[error("--manifests {}: {reason}; name a file or folder that is there and may be read", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The thread that follows the files could not be started, or has panicked.
    #[error("manifests are not followed: {0}")]
    Thread(String),
}

/// Files and folders that were read once, and can be followed.
pub struct Manifests {
    roots: Vec<PathBuf>,
    files: Files,
    tracker: Tracker,
    writers: Writers,
    /// Hashes of what was last read, to know a file that only looks new.
    contents: HashMap<FileKey, u64>,
    places: Places,
    /// The devices that the given paths were on.
    devices: BTreeMap<usize, u64>,
    readiness: Readiness,
    metrics: ManifestMetrics,
    /// What there is to publish at first.
    loaded: Option<Vec<Update>>,
}

/// Reads all manifests in files and folders. Bad ones are logged and counted; a path that itself cannot be
/// read is an error. Blocks.
///
/// A path that can no longer be read later on is an outage: what was in it stays, and `readiness` says so.
pub fn load(
    paths: &[PathBuf],
    readiness: &Readiness,
    metrics: ManifestMetrics,
) -> Result<Manifests, ManifestsError> {
    let mut scan = scan::scan(paths);
    for _ in 0..MAX_REPEATS {
        let is_young = |seen: &Seen| matches!(seen, Seen::File(print) if print.age() < QUIET);
        if !scan.seen.values().any(is_young) {
            break;
        }
        std::thread::sleep(QUIET);
        scan = scan::scan(paths);
    }
    check_roots(paths, &scan)?;
    let mut manifests = Manifests {
        roots: paths.to_vec(),
        files: Files::default(),
        tracker: Tracker::default(),
        writers: Writers::default(),
        contents: HashMap::new(),
        places: Places::default(),
        devices: BTreeMap::new(),
        readiness: readiness.clone(),
        metrics,
        loaded: None,
    };
    let (updates, _) = manifests.take_in(scan, true);
    let count = |wanted: Kind| manifests.files.served().filter(|id| id.kind == wanted).count();
    info!(
        files = manifests.files.count(),
        services = count(Kind::Service),
        slices = count(Kind::Slice),
        bad = manifests.files.count_bad(),
        "manifests read"
    );
    manifests.loaded = Some(updates);
    Ok(manifests)
}

/// Finds the first of the given paths that cannot be read.
fn check_roots(roots: &[PathBuf], scan: &Scan) -> Result<(), ManifestsError> {
    for (root, path) in roots.iter().enumerate() {
        let key = FileKey::new(root, path);
        let reason = match scan.seen.get(&key) {
            Some(Seen::Unreadable(reason)) => reason.clone(),
            // Opening shows what attributes do not: permissions.
            Some(Seen::File(print)) => match read::open(&print.real) {
                Ok(_) => continue,
                Err(error) => scan::reason(&error),
            },
            None => continue,
        };
        return Err(ManifestsError::Unreadable { path: path.clone(), reason });
    }
    Ok(())
}

/// How many objects are served of a file with these contents: a door for fuzzing.
#[doc(hidden)]
pub fn count_served(bytes: &[u8]) -> usize {
    let mut files = Files::default();
    files.set(&FileKey::new(0, Path::new("file.yaml")), Content::of(bytes));
    files.settle();
    files.served().count()
}

impl Manifests {
    /// Hands everything that was read to `index`, which is in sync then. Later calls do nothing.
    pub fn publish<I>(&mut self, index: &I)
    where
        I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice>,
    {
        let Some(updates) = self.loaded.take() else { return };
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

    /// The paths that are followed.
    pub fn origin(&self) -> String {
        let roots: Vec<String> = self.roots.iter().map(|path| path.display().to_string()).collect();
        roots.join(",")
    }

    /// Publishes everything, and then every change, until `shutdown` or until this future is dropped.
    pub async fn follow<I>(mut self, index: Arc<I>, shutdown: CancellationToken) -> Result<(), ManifestsError>
    where
        I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice> + 'static,
    {
        let (wake, wakes) = mpsc::channel();
        let _stop = StopOnDrop(wake.clone());
        let (ended, end) = oneshot::channel::<()>();
        // A thread of its own: where a file system hangs, the process can still end.
        std::thread::Builder::new()
            .name("manifests".to_owned())
            .spawn(move || {
                self.publish(&*index);
                self.run(&*index, wake, &wakes);
                // Nobody waits for it after a shutdown.
                let _ = ended.send(());
            })
            .map_err(|error| ManifestsError::Thread(error.to_string()))?;
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            end = end => end.map_err(|_| ManifestsError::Thread("a panic".to_owned())),
        }
    }

    fn run<I>(&mut self, index: &I, wake: Sender<Wake>, wakes: &Receiver<Wake>)
    where
        I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice>,
    {
        let mut watches = Watches::new(wake);
        watches.update(&self.places);
        let mut until = Instant::now();
        while self.wait(wakes, until) {
            let mut next = None;
            for _ in 0..MAX_REPEATS {
                let scan = scan::scan(&self.roots);
                let has_new = watches.update(&scan.places);
                let (updates, due) = self.take_in(scan, false);
                next = due;
                if !updates.is_empty() {
                    info!(objects = updates.len(), "manifests changed");
                    apply(index, updates);
                    commit(index);
                }
                if !has_new {
                    break;
                }
            }
            let look = Instant::now() + LOOK;
            until = next.map_or(look, |next| next.min(look));
        }
    }

    /// Waits until it is time to look, by the clock or because of a change; or until it is time to stop,
    /// which is false.
    fn wait(&mut self, wakes: &Receiver<Wake>, mut until: Instant) -> bool {
        loop {
            let heard = wakes.recv_timeout(until.saturating_duration_since(Instant::now()));
            let now = Instant::now();
            match heard {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(wake) => {
                    if self.note(wake, now) {
                        until = until.min(now + COLLECT);
                    }
                }
            }
            // However much there is to hear.
            if until <= now {
                return true;
            }
        }
    }

    /// Takes note of what was heard; whether it can matter.
    fn note(&mut self, wake: Wake, now: Instant) -> bool {
        let Wake::Change(change, path) = wake else {
            self.writers.forget(None);
            return true;
        };
        if !change.matters(&path, &self.places) {
            return false;
        }
        match change {
            Change::Written => self.writers.wrote(path, now),
            Change::Closed | Change::Moved => self.writers.closed(path, now),
            Change::Other => {}
        }
        true
    }

    /// Reads what is due; what is to be done to objects, and when to look again.
    fn take_in(&mut self, mut scan: Scan, is_first: bool) -> (Vec<Update>, Option<Instant>) {
        let now = Instant::now();
        self.writers.forget(Some(now));
        scan.distrust_empty_mount_points(&self.roots, &mut self.devices);
        self.note_lost(&scan);
        let Scan { seen, unknown, places, .. } = scan;
        self.places = places;
        let (steps, mut next) = self.tracker.look(seen, &unknown, &self.writers, now, is_first);
        let mut wanted = Vec::new();
        for step in steps {
            match step {
                Step::Read(key, print) => wanted.push((key, print)),
                Step::Unreadable(key, reason) => self.set(&key, Content::Unreadable(reason), None),
                Step::Remove(key) => {
                    self.contents.remove(&key);
                    self.files.remove(&key);
                }
            }
        }
        if !self.read(&wanted) {
            next = Some(now + QUIET);
        }
        (self.settle(), next)
    }

    /// Tells the metrics and `/readyz` which of the given paths cannot be read.
    fn note_lost(&self, scan: &Scan) {
        let lost: Vec<String> =
            scan.lost(&self.roots).map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
        self.metrics.lost.set(i64::try_from(lost.len()).unwrap_or(i64::MAX));
        let note = format!("the last answers stay, because these cannot be read: {}", lost.join(", "));
        self.readiness.note("manifests", (!lost.is_empty()).then_some(note));
    }

    /// Reads files, those that still look as they did; whether these are all of them.
    fn read(&mut self, wanted: &[(FileKey, Print)]) -> bool {
        let mut are_all = true;
        let now = Instant::now();
        for ((key, print), outcome) in wanted.iter().zip(read::read_all(wanted, &self.contents)) {
            match outcome {
                Outcome::New(content, hash) => self.set(key, content, hash),
                Outcome::Same => {}
                Outcome::Torn => {
                    self.tracker.was_torn(key);
                    are_all = false;
                    continue;
                }
            }
            self.tracker.was_read(key, print.age(), now);
        }
        are_all
    }

    /// Notes what is in a file now, and the hash of that.
    fn set(&mut self, key: &FileKey, content: Content, hash: Option<u64>) {
        match hash {
            Some(hash) => self.contents.insert(key.clone(), hash),
            None => self.contents.remove(key),
        };
        self.files.set(key, content);
    }

    /// What is to be done to objects; tells of what is bad.
    fn settle(&mut self) -> Vec<Update> {
        let Changes { mut updates, mut reports, reread } = self.files.settle();
        if !reread.is_empty() {
            reread.iter().for_each(|key| {
                self.contents.remove(key);
            });
            let wanted: Vec<(FileKey, Print)> = reread
                .into_iter()
                .filter_map(|key| self.tracker.print(&key).map(|print| (key, print)))
                .collect();
            self.read(&wanted);
            // What is wanted still, because a file could not be read just now, is asked for at the next look.
            let more = self.files.settle();
            updates.extend(more.updates);
            reports.extend(more.reports);
        }
        let is_found = |report: &&Report| matches!(&report.news, News::Found(problem, _) if problem.verdict == Verdict::Bad);
        self.metrics.found_bad.inc_by(reports.iter().filter(is_found).count() as u64);
        self.metrics.bad.set(i64::try_from(self.files.count_bad()).unwrap_or(i64::MAX));
        log::tell(&reports);
        updates
    }
}

/// Ends the thread when nobody follows any more.
struct StopOnDrop(Sender<Wake>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The thread may have ended before.
        let _ = self.0.send(Wake::Stop);
    }
}

fn apply<I>(index: &I, updates: Vec<Update>)
where
    I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice>,
{
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

fn commit<I>(index: &I)
where
    I: Index<MultiNetworkService> + Index<MultiNetworkEndpointSlice>,
{
    Index::<MultiNetworkService>::commit(index);
    Index::<MultiNetworkEndpointSlice>::commit(index);
}

#[cfg(test)]
mod tests;
