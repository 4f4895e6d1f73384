//! Lists the files under the given paths, with stamps that change when a file does. Reads folders
//! and metadata, but no contents.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use walkdir::WalkDir;

use super::files::FileKey;
use crate::limits::manifests::MAX_ENTRIES;

/// Extensions of the files in folders that are read as manifests.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Metadata of a file that change when the file's content does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamp {
    /// Size of the file in bytes.
    pub(super) len: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
    id: (u64, u64),
}

impl FileStamp {
    /// Returns the stamp of a file that has this metadata.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            id: identity(metadata),
        }
    }

    /// Returns the time between the last write to the file and now, in either direction.
    pub(super) fn age(&self) -> Duration {
        let age =
            |modified| SystemTime::now().duration_since(modified).unwrap_or_else(|ahead| ahead.duration());
        self.modified.map_or(Duration::MAX, age)
    }
}

/// State of a path that a scan has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileState {
    /// A file that has this stamp.
    File(FileStamp),
    /// The reason why the path cannot be read. Includes given paths that do not exist.
    Unreadable(String),
}

/// Files that a scan has found under the paths of `--manifests`.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All files, and all paths that should be files or folders and cannot be read.
    pub(super) seen: BTreeMap<FileKey, FileState>,
    /// Folders that could not be read, so that files in them may still exist.
    pub(super) unknown: Vec<FileKey>,
    /// Device of each path of `--manifests` that is a folder, by the path's position.
    devices: BTreeMap<usize, u64>,
}

impl Scan {
    /// Treats an empty folder on another device than before as unreadable, since its volume was
    /// probably unmounted. `devices` holds the devices of earlier scans.
    pub(super) fn distrust_empty_mount_points(
        &mut self,
        roots: &[PathBuf],
        devices: &mut BTreeMap<usize, u64>,
    ) {
        for (root, device) in std::mem::take(&mut self.devices) {
            let is_empty = !self.seen.keys().any(|key| key.root == root);
            if is_empty && devices.get(&root).is_some_and(|before| *before != device) {
                let reason = "it is empty, and on another device than before; mount its volume again";
                self.mark_unreadable(FileKey::new(root, &roots[root]), reason.to_owned());
            } else if is_empty {
                // An empty folder has no objects to lose.
                devices.remove(&root);
            } else {
                devices.insert(root, device);
            }
        }
    }

    /// Returns the paths of `--manifests` that cannot be read, with the reasons.
    pub(super) fn lost<'a>(&'a self, roots: &'a [PathBuf]) -> impl Iterator<Item = (&'a Path, &'a str)> {
        roots.iter().enumerate().filter_map(|(root, path)| match self.seen.get(&FileKey::new(root, path)) {
            Some(FileState::Unreadable(reason)) => Some((path.as_path(), reason.as_str())),
            _ => None,
        })
    }

    /// Marks a path as unreadable, and notes that files below it may still exist.
    fn mark_unreadable(&mut self, key: FileKey, reason: String) {
        self.seen.insert(key.clone(), FileState::Unreadable(reason));
        self.unknown.push(key);
    }
}

/// Lists all files under `roots`. A file or folder that can be reached in several ways is listed
/// once.
pub(super) fn scan(roots: &[PathBuf]) -> Scan {
    let mut scan = Scan::default();
    let mut known = HashSet::new();
    for (root, path) in roots.iter().enumerate() {
        walk(root, path, &mut scan, &mut known);
    }
    scan
}

/// Lists the files under one given path. `known` holds the identities of the files and folders that
/// were listed before.
fn walk(root: usize, path: &Path, scan: &mut Scan, known: &mut HashSet<(u64, u64)>) {
    let mut walk = WalkDir::new(path).follow_links(true).sort_by_file_name().into_iter();
    let mut count = 0;
    while let Some(entry) = walk.next() {
        count += 1;
        if count > MAX_ENTRIES {
            let reason = format!("has more than {MAX_ENTRIES} entries; name a smaller folder");
            return scan.mark_unreadable(FileKey::new(root, path), reason);
        }
        let (entry, metadata) = match entry.and_then(|entry| Ok((entry.metadata()?, entry))) {
            Ok((metadata, entry)) => (entry, metadata),
            Err(error) => {
                add_error(root, path, &error, scan);
                continue;
            }
        };
        let is_hidden = entry.depth() > 0 && entry.file_name().as_encoded_bytes().starts_with(b".");
        if metadata.is_dir() {
            if is_hidden || !known.insert(identity(&metadata)) {
                walk.skip_current_dir();
            } else if entry.depth() == 0 {
                scan.devices.insert(root, metadata.dev());
            }
        } else if !is_hidden && (entry.depth() == 0 || is_manifest(entry.path())) {
            let seen = if !metadata.is_file() {
                FileState::Unreadable("is neither a file nor a folder".to_owned())
            } else if known.insert(identity(&metadata)) {
                FileState::File(FileStamp::of(&metadata))
            } else {
                continue;
            };
            scan.seen.insert(FileKey::new(root, entry.path()), seen);
        }
    }
}

/// Notes an entry that could not be looked at. An entry that has gone since its folder was read is
/// no fault, nor is a link in a circle.
fn add_error(root: usize, given: &Path, error: &walkdir::Error, scan: &mut Scan) {
    let is_root = error.depth() == 0;
    let path = error.path().unwrap_or(given);
    let reason = match error.io_error() {
        Some(error) => reason(error),
        None if is_root => "is a symbolic link that leads to itself".to_owned(),
        None => return,
    };
    let key = FileKey::new(root, if is_root { given } else { path });
    let Ok(metadata) = fs::symlink_metadata(path) else {
        if is_root {
            scan.mark_unreadable(key, reason);
        }
        return;
    };
    if is_root || metadata.is_dir() {
        scan.mark_unreadable(key, reason);
    } else if is_manifest(path) {
        scan.seen.insert(key, FileState::Unreadable(reason));
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns the system's description of an error in lower case, without the error number.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_scan_lists_every_file_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("d/e.yaml")).unwrap();
        for file in ["d/z.json", "d/e.yaml/b.yml", "d/a.yaml", "d/.hidden.yaml", "d/text.txt", "named"] {
            fs::write(at(file), "").unwrap();
        }
        fs::hard_link(at("d/a.yaml"), at("d/b.yaml")).unwrap();
        symlink("a.yaml", at("d/c.yaml")).unwrap();
        symlink("nowhere", at("d/w.yaml")).unwrap();
        symlink("nowhere", at("d/nowhere")).unwrap();
        symlink("v.yaml", at("d/v.yaml")).unwrap();
        symlink("..", at("d/up")).unwrap();
        symlink("e.yaml", at("d/f")).unwrap();
        let roots = ["named", "d/z.json", "d", "none", "d"].map(at);
        let seen = scan(&roots).seen.into_iter().map(|(key, seen)| {
            let path = key.path().strip_prefix(folder.path()).unwrap().display().to_string();
            let what = match seen {
                FileState::File(_) => "file",
                FileState::Unreadable(_) => "unreadable",
            };
            format!("{} {path} {what}", key.root)
        });
        let seen: Vec<String> = seen.collect();
        assert_eq!(
            seen,
            [
                "0 named file",
                "1 d/z.json file",
                "2 d/a.yaml file",
                "2 d/e.yaml/b.yml file",
                "2 d/v.yaml unreadable",
                "2 d/w.yaml unreadable",
                "3 none unreadable",
            ]
        );
    }

    #[test]
    fn an_empty_folder_on_another_device_is_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, "").unwrap();
        let roots = [folder.path().to_owned()];
        let mut devices = BTreeMap::new();
        let rescan = |devices: &mut BTreeMap<usize, u64>| {
            let mut scan = scan(&roots);
            scan.distrust_empty_mount_points(&roots, devices);
            (scan.seen.len(), scan.lost(&roots).count(), scan.unknown.len())
        };
        assert_eq!(rescan(&mut devices), (1, 0, 0));
        let here = devices[&0];
        // A folder with files on another device is a volume that was replaced.
        devices.insert(0, here + 1);
        assert_eq!((rescan(&mut devices), devices[&0]), ((1, 0, 0), here));
        fs::remove_file(file).unwrap();
        assert_eq!((rescan(&mut devices), devices.len()), ((0, 0, 0), 0), "emptied by its owner");
        devices.insert(0, here + 1);
        assert_eq!((rescan(&mut devices), devices[&0]), ((1, 1, 1), here + 1));
    }
}
