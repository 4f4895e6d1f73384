//! Hears of changes as they happen (inotify). What it misses, the next look finds: nothing depends on it
//! but speed.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::{debug, info, warn};

use super::scan::{Places, is_manifest};

/// What ends the wait for something to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// Something happened at a path.
    Change(Change, PathBuf),
    /// Something happened, and nobody knows what.
    Missed,
    /// It is time to stop.
    Stop,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// A file was written to.
    Written,
    /// A file was closed by somebody who may have written to it.
    Closed,
    /// Something was moved there or away, or removed.
    Moved,
    /// Something came to be, or changed its attributes.
    Other,
}

impl Change {
    /// Whether a change at `path` can matter to what there is at `places`.
    pub(super) fn matters(self, path: &Path, places: &Places) -> bool {
        let is_contents = matches!(self, Self::Written | Self::Closed);
        let is_in_folder = path.parent().is_some_and(|parent| places.folders.contains(parent));
        places.files.contains(path)
            || places.links.contains(path)
            || places.folders.contains(path)
            || (is_in_folder && (!is_contents || is_manifest(path)))
    }
}

/// What to make of an event: nothing of reading, which this program does itself.
fn wakes(event: notify::Result<Event>) -> Vec<Wake> {
    let Ok(event) = event else {
        return vec![Wake::Missed];
    };
    if event.need_rescan() {
        return vec![Wake::Missed];
    }
    let change = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Change::Closed,
        EventKind::Access(_) => return Vec::new(),
        EventKind::Modify(ModifyKind::Data(_)) => Change::Written,
        // Both ends were told of one by one.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => return Vec::new(),
        EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => Change::Moved,
        _ => Change::Other,
    };
    event.paths.into_iter().map(|path| Wake::Change(change, path)).collect()
}

/// Watches folders.
pub(super) struct Watches {
    watcher: Option<RecommendedWatcher>,
    /// The folders that are watched, by device and inode: another folder may take a path.
    folders: HashMap<PathBuf, (u64, u64)>,
    is_complete: bool,
}

impl Watches {
    /// Watches nothing yet.
    pub(super) fn new(sender: Sender<Wake>) -> Self {
        let watcher = notify::recommended_watcher(move |event| {
            for wake in wakes(event) {
                // Nobody may be listening any more, and then nothing is lost.
                let _ = sender.send(wake);
            }
        });
        if let Err(error) = &watcher {
            warn_of_polling(error);
        }
        let is_complete = watcher.is_ok();
        Self { watcher: watcher.ok(), folders: HashMap::new(), is_complete }
    }

    /// Watches exactly what `places` asks for. Tells whether a folder is watched that was not before: it
    /// may have changed between the look and now.
    pub(super) fn update(&mut self, places: &Places) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let wanted = places.to_watch();
        self.folders.retain(|folder, id| {
            let is_wanted = wanted.contains(folder.as_path()) && identity(folder) == Some(*id);
            if !is_wanted {
                // It may be gone, and its watch with it.
                let _ = watcher.unwatch(folder);
            }
            is_wanted
        });
        let before = self.folders.len();
        let mut failure = None;
        for folder in wanted {
            if self.folders.contains_key(folder) {
                continue;
            }
            let Some(id) = identity(folder) else { continue };
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    debug!(folder = %folder.display(), "watched");
                    self.folders.insert(folder.to_owned(), id);
                }
                // Gone meanwhile, whatever the error says of it: kubelet removes a ConfigMap's old folder at once.
                Err(_) if identity(folder) != Some(id) => {}
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if self.is_complete => {
                warn_of_polling(&error);
                self.is_complete = false;
            }
            None if !self.is_complete => {
                info!("changes of manifests are seen at once again");
                self.is_complete = true;
            }
            _ => {}
        }
        self.folders.len() > before
    }
}

fn warn_of_polling(error: &notify::Error) {
    warn!(
        %error,
        "changes of manifests are seen within seconds, not at once: not all folders can be watched; raise the \
         sysctls fs.inotify.max_user_watches and fs.inotify.max_user_instances"
    );
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_matter_wakes() {
        let mut places = Places::default();
        places.folders.insert(PathBuf::from("/m"));
        places.files.insert(PathBuf::from("/elsewhere/objects"));
        places.links.insert(PathBuf::from("/links/current"));
        use Change::{Closed, Moved, Other, Written};
        let cases = [
            (Written, "/m/a.yaml", true),
            (Written, "/m/a.log", false),
            (Closed, "/m/a.log", false),
            (Moved, "/m/a.log", true),
            (Other, "/m/folder", true),
            (Moved, "/m/..data", true),
            (Moved, "/m", true),
            (Written, "/m/folder/a.yaml", false),
            (Written, "/elsewhere/objects", true),
            (Written, "/elsewhere/a.yaml", false),
            (Moved, "/elsewhere/a.yaml", false),
            (Moved, "/links/current", true),
            (Moved, "/links/other", false),
        ];
        for (change, path, expected) in cases {
            assert_eq!(change.matters(Path::new(path), &places), expected, "{change:?} {path}");
        }
    }

    #[test]
    fn reading_does_not_wake() {
        use notify::event::{AccessMode, DataChange, Flag};
        let event = |kind| Ok(Event::new(kind).add_path(PathBuf::from("/m/a.yaml")));
        let woken = |change| vec![Wake::Change(change, PathBuf::from("/m/a.yaml"))];
        let access = |kind| event(EventKind::Access(kind));
        assert_eq!(wakes(access(AccessKind::Open(AccessMode::Any))), []);
        assert_eq!(wakes(access(AccessKind::Close(AccessMode::Read))), []);
        assert_eq!(wakes(access(AccessKind::Close(AccessMode::Write))), woken(Change::Closed));
        assert_eq!(
            wakes(event(EventKind::Modify(ModifyKind::Data(DataChange::Any)))),
            woken(Change::Written)
        );
        assert_eq!(wakes(Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan))), [Wake::Missed]);
        assert_eq!(wakes(Err(notify::Error::generic("x"))), [Wake::Missed]);
    }
}
