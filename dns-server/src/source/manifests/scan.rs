//! A look at the file system: which files there are under the given paths, and where changes to them would
//! show. Reads folders and attributes, no contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirEntry, FileType, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::files::FileKey;

/// Entries of folders that one look goes through: somebody who names `/` wants to know it soon.
const MAX_ENTRIES: usize = 200_000;

/// Symbolic links on the way to one file, as in the kernel.
const MAX_LINKS: usize = 40;

/// Ends of the names of the files that are read in folders.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Tells whether a name is one that is read in folders.
pub(super) fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// Tells one state of a file from the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Print {
    /// Where it really is.
    pub(super) real: PathBuf,
    /// Its size in octets.
    pub(super) len: u64,
    /// When it was last written to.
    modified: Option<SystemTime>,
    changed: (i64, i64),
    id: (u64, u64),
}

impl Print {
    /// The print of a file that is at `real`.
    pub(super) fn of(real: PathBuf, metadata: &Metadata) -> Self {
        Self {
            real,
            len: metadata.len(),
            modified: metadata.modified().ok(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            id: (metadata.dev(), metadata.ino()),
        }
    }

    /// How far from now the file was last written to; far, if nobody knows.
    pub(super) fn age(&self) -> Duration {
        let age =
            |modified| SystemTime::now().duration_since(modified).unwrap_or_else(|ahead| ahead.duration());
        self.modified.map_or(Duration::MAX, age)
    }
}

/// A file, or why it cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// A file.
    File(Print),
    /// Something that cannot be read, or nothing where the command line says that something is.
    Unreadable(String),
}

/// What a look has found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All files, and all that should be files or folders and cannot be read.
    pub(super) seen: BTreeMap<FileKey, Seen>,
    /// Folders that could not be read: nobody knows what is in them.
    pub(super) unknown: Vec<FileKey>,
    /// The device that each given path is on, by its position, if it is a folder.
    devices: BTreeMap<usize, u64>,
    /// Where changes would show.
    pub(super) places: Places,
}

/// Where changes would show.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Folders whose every entry matters.
    pub(super) folders: HashSet<PathBuf>,
    /// Files that are read and may be in other folders, by their real paths.
    pub(super) files: HashSet<PathBuf>,
    /// Links on the way to them, and things that are not there: a change may lead elsewhere.
    pub(super) links: BTreeSet<PathBuf>,
}

impl Places {
    /// The folders that have to be watched to see all of it.
    pub(super) fn to_watch(&self) -> BTreeSet<&Path> {
        let parents = self.files.iter().chain(&self.links).filter_map(|path| path.parent());
        self.folders.iter().map(PathBuf::as_path).chain(parents).collect()
    }
}

impl Scan {
    /// Takes an empty folder on another device than before for one that cannot be read: it is what is left where a
    /// volume was unmounted. `devices` is what earlier looks have found.
    pub(super) fn distrust_empty_mount_points(
        &mut self,
        roots: &[PathBuf],
        devices: &mut BTreeMap<usize, u64>,
    ) {
        for (&root, &device) in &self.devices {
            let is_empty = !self.seen.keys().any(|key| key.root == root);
            if is_empty && devices.get(&root).is_some_and(|before| *before != device) {
                let key = FileKey::new(root, &roots[root]);
                let reason = "it is empty, and on another device than before; mount its volume again";
                self.seen.insert(key.clone(), Seen::Unreadable(reason.to_owned()));
                self.unknown.push(key);
            } else if is_empty {
                // Nothing is lost with it.
                devices.remove(&root);
            } else {
                devices.insert(root, device);
            }
        }
    }

    /// The given paths that cannot be read, with the reason.
    pub(super) fn lost<'a>(&'a self, roots: &'a [PathBuf]) -> impl Iterator<Item = (&'a Path, &'a str)> {
        roots.iter().enumerate().filter_map(|(root, path)| match self.seen.get(&FileKey::new(root, path)) {
            Some(Seen::Unreadable(reason)) => Some((path.as_path(), reason.as_str())),
            _ => None,
        })
    }
}

/// Looks at everything under `roots`.
pub(super) fn scan(roots: &[PathBuf]) -> Scan {
    let mut walk = Walk::default();
    for (root, path) in roots.iter().enumerate() {
        walk.root = root;
        walk.entries = 0;
        walk.look_at_root(path);
    }
    walk.scan
}

#[derive(Default)]
struct Walk {
    scan: Scan,
    /// Position of the given path that is being walked.
    root: usize,
    /// How many entries it had up to now.
    entries: usize,
    /// Device and inode of every file that was seen: there may be several ways to it.
    visited: HashSet<(u64, u64)>,
}

impl Walk {
    fn look_at_root(&mut self, path: &Path) {
        let real = std::path::absolute(path).and_then(|path| resolve(&path, &mut self.scan.places.links));
        let looked = real.and_then(|real| fs::metadata(&real).map(|metadata| (real, metadata)));
        match looked {
            Ok((real, metadata)) => {
                // Whether it is a file or a folder, it may be removed and come back.
                self.scan.places.links.insert(real.clone());
                if metadata.is_dir() {
                    self.scan.devices.insert(self.root, metadata.dev());
                }
                self.look(path, real, &metadata);
            }
            Err(error) => self.give_up(path, reason(&error)),
        }
    }

    /// Looks at a file or folder that is at `path` for the user and at `real` really.
    fn look(&mut self, path: &Path, real: PathBuf, metadata: &Metadata) {
        if metadata.is_dir() {
            // A folder that was seen already is one that a link leads to, or a link in a circle.
            if self.scan.places.folders.insert(real.clone())
                && let Err(error) = self.look_into(path, &real)
            {
                self.give_up(path, reason(&error));
            }
        } else if !metadata.is_file() {
            self.see(path, Seen::Unreadable("is neither a file nor a folder".to_owned()));
        } else if self.visited.insert((metadata.dev(), metadata.ino())) {
            self.see(path, Seen::File(Print::of(real, metadata)));
        }
    }

    fn look_into(&mut self, path: &Path, real: &Path) -> io::Result<()> {
        let mut entries: Vec<(OsString, DirEntry)> = Vec::new();
        for entry in fs::read_dir(real)? {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(io::Error::other(format!(
                    "more than {MAX_ENTRIES} entries; name a smaller folder"
                )));
            }
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push((entry.file_name(), entry));
            }
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (name, entry) in entries {
            let is_wanted = is_manifest(Path::new(&name));
            let Ok(kind) = entry.file_type() else { continue };
            if !(is_wanted || kind.is_dir() || kind.is_symlink()) {
                continue;
            }
            let (path, real) = (path.join(&name), real.join(&name));
            match self.follow(real, &entry, kind) {
                Ok((real, metadata)) if is_wanted || metadata.is_dir() => self.look(&path, real, &metadata),
                // Gone since the folder was read.
                Err(error) if !kind.is_symlink() && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if is_wanted => self.see(&path, Seen::Unreadable(reason(&error))),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Where an entry really is, and what it is there.
    fn follow(&mut self, real: PathBuf, entry: &DirEntry, kind: FileType) -> io::Result<(PathBuf, Metadata)> {
        if !kind.is_symlink() {
            return Ok((real, entry.metadata()?));
        }
        let real = resolve(&real, &mut self.scan.places.links)?;
        let metadata = fs::metadata(&real)?;
        if metadata.is_file() {
            self.scan.places.files.insert(real.clone());
        }
        Ok((real, metadata))
    }

    /// A path at which nobody knows what there is.
    fn give_up(&mut self, path: &Path, reason: String) {
        self.see(path, Seen::Unreadable(reason));
        self.scan.unknown.push(self.key(path));
    }

    fn see(&mut self, path: &Path, seen: Seen) {
        self.scan.seen.insert(self.key(path), seen);
    }

    fn key(&self, path: &Path) -> FileKey {
        FileKey::new(self.root, path)
    }
}

/// Follows an absolute path as the kernel would, noting every link on the way, and what was not there.
fn resolve(path: &Path, links: &mut BTreeSet<PathBuf>) -> io::Result<PathBuf> {
    let mut real = PathBuf::new();
    let mut rest: Vec<OsString> = Vec::new();
    push_reversed(&mut rest, path);
    let mut hops = 0;
    while let Some(part) = rest.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                real.pop();
            }
            Some(Component::Normal(name)) => {
                let next = real.join(name);
                let metadata = fs::symlink_metadata(&next).inspect_err(|_| {
                    links.insert(next.clone());
                })?;
                if !metadata.is_symlink() {
                    real = next;
                    continue;
                }
                hops += 1;
                if hops > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                push_reversed(&mut rest, &fs::read_link(&next)?);
                links.insert(next);
            }
            // The root: what an absolute path, or an absolute link, begins with.
            Some(Component::RootDir | Component::Prefix(_)) => real = PathBuf::from("/"),
            Some(Component::CurDir) | None => {}
        }
    }
    Ok(real)
}

fn push_reversed(parts: &mut Vec<OsString>, path: &Path) {
    parts.extend(path.components().rev().map(|part| part.as_os_str().to_owned()));
}

/// What the system says, without its number.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_noted() {
        let folder = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(folder.path()).unwrap();
        let at = |path: &str| top.join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "").unwrap();
        symlink("b/../b/./file", at("a/relative")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("absolute/relative", at("twice")).unwrap();
        symlink("circle", at("circle")).unwrap();
        symlink("a/none", at("dangling")).unwrap();
        let cases = [
            ("a/b/file", Some("a/b/file"), vec![]),
            ("a/../a/b", Some("a/b"), vec![]),
            ("a/relative", Some("a/b/file"), vec!["a/relative"]),
            ("twice", Some("a/b/file"), vec!["a/relative", "absolute", "twice"]),
            ("circle", None, vec!["circle"]),
            // What is not there may come, and is noted too.
            ("dangling", None, vec!["a/none", "dangling"]),
            ("none/file", None, vec!["none"]),
        ];
        for (path, expected, noted) in cases {
            let mut links = BTreeSet::new();
            assert_eq!(resolve(&at(path), &mut links).ok(), expected.map(at), "{path}");
            assert_eq!(links, noted.into_iter().map(at).collect(), "{path}");
        }
    }

    #[test]
    fn a_look_sees_every_file_once_and_in_order() {
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
        let roots = ["named", "d/z.json", "d", "none", "d"].map(at);
        let seen = scan(&roots).seen.into_iter().map(|(key, seen)| {
            let path = key.path().strip_prefix(folder.path()).unwrap().display().to_string();
            let what = match seen {
                Seen::File(_) => "file",
                Seen::Unreadable(_) => "unreadable",
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
                "2 d/w.yaml unreadable",
                "3 none unreadable",
            ]
        );
    }

    #[test]
    fn an_empty_folder_on_another_device_is_a_lost_volume() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, "").unwrap();
        let roots = [folder.path().to_owned()];
        let mut devices = BTreeMap::new();
        let look = |devices: &mut BTreeMap<usize, u64>| {
            let mut scan = scan(&roots);
            scan.distrust_empty_mount_points(&roots, devices);
            (scan.seen.len(), scan.lost(&roots).count(), scan.unknown.len())
        };
        assert_eq!(look(&mut devices), (1, 0, 0));
        let here = devices[&0];
        // With files in it, another device is a volume that has been replaced.
        devices.insert(0, here + 1);
        assert_eq!((look(&mut devices), devices[&0]), ((1, 0, 0), here));
        fs::remove_file(file).unwrap();
        assert_eq!((look(&mut devices), devices.len()), ((0, 0, 0), 0), "emptied by its owner");
        devices.insert(0, here + 1);
        assert_eq!((look(&mut devices), devices[&0]), ((1, 1, 1), here + 1));
    }
}
