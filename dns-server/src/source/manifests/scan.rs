//! A look at the file system: which files there are under the given paths, and where changes to them would
//! show. Reads folders and attributes, no contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

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
    /// When it was last written to, in seconds and nanoseconds since 1970.
    pub(super) modified: (i64, i64),
    changed: (i64, i64),
    id: (u64, u64),
}

impl Print {
    /// The print of a file that is at `real`.
    pub(super) fn of(real: PathBuf, metadata: &Metadata) -> Self {
        Self {
            real,
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            id: (metadata.dev(), metadata.ino()),
        }
    }
}

/// A file, or why it cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// A file.
    File(Print),
    /// Something that cannot be read.
    Unreadable(String),
    /// Nothing, where the command line says that something is.
    Missing(String),
}

/// What a look has found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All files, and all that should be files or folders and cannot be read.
    pub(super) seen: BTreeMap<FileKey, Seen>,
    /// Folders that could not be read: nobody knows what is in them.
    pub(super) unknown: Vec<FileKey>,
    /// Where changes would show.
    pub(super) places: Places,
}

/// Where changes would show.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Folders whose every entry matters.
    pub(super) folders: HashSet<PathBuf>,
    /// Files that are read, by their real paths.
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

/// Looks at everything under `roots`.
pub(super) fn scan(roots: &[PathBuf]) -> Scan {
    let mut walk = Walk { scan: Scan::default(), entries: 0, root: 0 };
    for (root, path) in roots.iter().enumerate() {
        walk.root = root;
        walk.entries = 0;
        walk.look_at_root(path);
    }
    walk.scan
}

struct Walk {
    scan: Scan,
    entries: usize,
    root: usize,
}

impl Walk {
    fn look_at_root(&mut self, path: &Path) {
        let real = std::path::absolute(path).and_then(|path| resolve(&path, &mut self.scan.places.links));
        let looked = real.and_then(|real| fs::metadata(&real).map(|metadata| (real, metadata)));
        match looked {
            Ok((real, metadata)) => {
                self.scan.places.links.insert(real.clone());
                self.look(path, real, &metadata);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.see(path, Seen::Missing(reason(&error)));
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
        } else if self.scan.places.files.insert(real.clone()) {
            self.see(path, Seen::File(Print::of(real, metadata)));
        }
    }

    fn look_into(&mut self, path: &Path, real: &Path) -> io::Result<()> {
        let mut entries: Vec<(OsString, fs::FileType)> = Vec::new();
        for entry in fs::read_dir(real)? {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(io::Error::other(format!(
                    "more than {MAX_ENTRIES} entries; name a smaller folder"
                )));
            }
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push((entry.file_name(), entry.file_type()?));
            }
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (name, kind) in entries {
            let is_wanted = is_manifest(Path::new(&name));
            if !(is_wanted || kind.is_dir() || kind.is_symlink()) {
                continue;
            }
            let real = real.join(&name);
            let target =
                if kind.is_symlink() { resolve(&real, &mut self.scan.places.links) } else { Ok(real) };
            let looked = target.and_then(|real| fs::metadata(&real).map(|metadata| (real, metadata)));
            match looked {
                Ok((real, metadata)) if is_wanted || metadata.is_dir() => {
                    self.look(&path.join(&name), real, &metadata);
                }
                Ok(_) => {}
                // Gone since the folder was read.
                Err(error) if !kind.is_symlink() && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if is_wanted => self.see(&path.join(&name), Seen::Unreadable(reason(&error))),
                Err(_) => {}
            }
        }
        Ok(())
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
        FileKey { root: self.root, path: Arc::from(path) }
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
