//! Files that appear when they are complete, and the names that they have until then.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use nix::sys::stat::{Mode, umask};
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;

use super::receipt::{Receipt, Stamp};

/// Longest name that a file may have, in bytes (NAME_MAX).
const MAX_NAME: usize = 255;

/// Length of the longest suffix of a partial file: `.`, the id, `.placed`.
const SUFFIX: usize = 40;

/// The file that `--output` names, and with `--keep` `FILE.1`, `FILE.2` and so on.
///
/// Until a file is placed, it is `FILE.ID.part`; when it is complete and on the disk,
/// `FILE.ID.done`, beside its receipt, `FILE.ID.placed`. When it has been placed, only the receipt
/// is there, until the sender knows, so that a receiver that is started in the place of one that
/// died can answer the sender.
#[derive(Debug)]
pub(super) struct Files {
    /// Path that `--output` names.
    pub(super) path: PathBuf,
    pub(super) folder: PathBuf,
    name: OsString,
    replaces: bool,
    keeps: bool,
    /// Permissions of files that are placed, as the umask allows them.
    pub(super) mode: u32,
    /// Number in the name of the next file, as in `FILE.1`; 0 for the first, which is just `FILE`.
    next: u64,
}

/// State of a transfer that an earlier receiver has left in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    /// Parts of the transfer are missing, or its sender does not know yet that none is.
    Partial,
    /// The transfer's file is complete, but has not been placed.
    Complete,
    /// The transfer's file has been placed, but its sender may not know.
    Placed,
}

impl Files {
    /// # Errors
    ///
    /// If the path is not the name of a file, or the name is too long.
    pub(super) fn new(path: &Path, replaces: bool, keeps: bool) -> anyhow::Result<Self> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let name = name.with_context(|| format!("{} is no name of a file", path.display()))?;
        ensure!(
            name.len() + SUFFIX <= MAX_NAME,
            "the name {} is too long: {} characters are the most that leave room for the name of a partial file",
            name.display(),
            MAX_NAME - SUFFIX
        );
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // It can be read only by being set. No file is created yet.
        let mask = umask(Mode::from_bits_truncate(0o077));
        umask(mask);
        Ok(Self {
            path: path.to_owned(),
            folder: folder.unwrap_or_else(|| Path::new(".")).to_owned(),
            name: name.to_owned(),
            replaces,
            keeps,
            mode: 0o666 & !mask.bits(),
            next: 0,
        })
    }

    /// Checks that files can be created and placed.
    ///
    /// # Errors
    ///
    /// If they cannot, or the file exists and must not be replaced.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let (path, folder) = (self.path.display(), self.folder.display());
        match fs::metadata(&self.folder) {
            Ok(about) => ensure!(about.is_dir(), "cannot write {path}: {folder} is no folder"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("cannot write {path}: there is no folder {folder}")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
        }
        self.try_file()
            .with_context(|| format!("cannot write {path}: no file can be made in the folder {folder}"))?;
        let about = match fs::symlink_metadata(&self.path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
        };
        ensure!(
            about.is_file(),
            "cannot write {path}: it is a symbolic link; name the file that it leads to"
        );
        ensure!(
            self.replaces || self.keeps || self.has_receipt(&about),
            "{path} exists: name another file, or have it replaced by --force"
        );
        Ok(())
    }

    /// Creates, renames and removes a file. Permissions alone do not tell: the file system may be
    /// full, or have no files of its own, or be unable to rename without replacing.
    fn try_file(&self) -> io::Result<()> {
        let random = fastrand::u128(..);
        let [first, second] = ["new", "try"].map(|suffix| self.named(&format!("{random:032x}.{suffix}")));
        File::create_new(&first)?;
        let renamed = if self.replaces { fs::rename(&first, &second) } else { rename_new(&first, &second) };
        fs::remove_file(if renamed.is_ok() { second } else { first })?;
        renamed
    }

    pub(super) fn part(&self, id: u128) -> PathBuf {
        self.named(&format!("{id:032x}.part"))
    }

    pub(super) fn done(&self, id: u128) -> PathBuf {
        self.named(&format!("{id:032x}.done"))
    }

    pub(super) fn receipt(&self, id: u128) -> PathBuf {
        self.named(&format!("{id:032x}.placed"))
    }

    fn named(&self, suffix: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(".");
        name.push(suffix);
        self.folder.join(name)
    }

    fn numbered(&self, number: u64) -> PathBuf {
        if number == 0 { self.path.clone() } else { self.named(&number.to_string()) }
    }

    /// Lists the transfers that earlier receivers have left, the oldest first.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub(super) fn left_behind(&self) -> io::Result<Vec<(u128, Left)>> {
        let mut found = BTreeMap::new();
        for (suffix, about) in self.suffixes()? {
            let Some((id, kind)) = parse_suffix(&suffix) else { continue };
            let left = match kind {
                "part" => Left::Partial,
                "done" => Left::Complete,
                "placed" => Left::Placed,
                _ => continue,
            };
            let time = (about.mtime(), about.mtime_nsec());
            // A receipt beside the file is there in advance.
            let state = found.entry(id).or_insert((left, time));
            *state = (*state).min((left, time));
        }
        let mut found: Vec<_> = found.into_iter().map(|(id, (left, time))| (time, id, left)).collect();
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, id, left)| (id, left)).collect())
    }

    /// Finds the file with a stamp where this receiver or an earlier one has placed it. In a folder
    /// that cannot be read, only the first file is found.
    pub(super) fn find(&self, stamp: Stamp) -> Option<PathBuf> {
        let is_number = |suffix: &[u8]| !suffix.is_empty() && suffix.iter().all(u8::is_ascii_digit);
        let is_it = |about: &Metadata| about.is_file() && Stamp::of(about) == stamp;
        if fs::symlink_metadata(&self.path).is_ok_and(|about| is_it(&about)) {
            return Some(self.path.clone());
        }
        let mut numbered = self.suffixes().unwrap_or_default().into_iter();
        let (suffix, _) = numbered.find(|(suffix, about)| is_number(suffix) && is_it(about))?;
        Some(self.named(str::from_utf8(&suffix).ok()?))
    }

    /// Returns whether an earlier receiver has placed this file, and its sender may not know.
    fn has_receipt(&self, file: &Metadata) -> bool {
        let left = self.left_behind().unwrap_or_default().into_iter();
        let placed = left.filter(|&(_, left)| left == Left::Placed);
        placed
            .filter_map(|(id, _)| Receipt::read(self.receipt(id)).ok().flatten())
            .any(|receipt| receipt.stamp == Stamp::of(file))
    }

    /// Lists the files in the folder whose names begin as the file's, by the rest behind the dot.
    fn suffixes(&self) -> io::Result<Vec<(Vec<u8>, Metadata)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let rest = name.as_bytes().strip_prefix(self.name.as_bytes());
            if let Some(suffix) = rest.and_then(|rest| rest.strip_prefix(b"."))
                && let Ok(about) = entry.metadata()
            {
                found.push((suffix.to_owned(), about));
            }
        }
        Ok(found)
    }

    /// Renames a complete file to its own name, which is returned: that of the command line, or the
    /// next number that is free.
    ///
    /// # Errors
    ///
    /// If something is there that must not be replaced, or the kernel's.
    pub(super) fn place(&mut self, done: &Path) -> io::Result<PathBuf> {
        loop {
            let path = self.numbered(self.next);
            let placed = if self.replaces { replace(done, &path) } else { rename_new(done, &path) };
            match placed {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.keeps => self.next += 1,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.next += 1;
                    return Ok(path);
                }
            }
        }
    }

    /// Writes the names in the folder to the disk. `file` is one of the files in it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(super) fn sync_names(&self, file: &File) -> io::Result<()> {
        match File::open(&self.folder).map(|folder| folder.sync_all()) {
            // Some file systems have no such thing.
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            Ok(outcome) => outcome,
            // A folder that can be written to, but not read, is synced with its whole file system.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(syncfs(file)?),
            Err(error) => Err(error),
        }
    }
}

/// Parses the suffix of a name, such as `ID.part`, into the transfer's id and the kind of the file.
fn parse_suffix(suffix: &[u8]) -> Option<(u128, &str)> {
    let (digits, kind) = str::from_utf8(suffix).ok()?.split_once('.')?;
    let id = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some((id, kind))
}

/// Renames a file, unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS and some others cannot do it. There, a second name replaces nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => error,
                _ => io::Error::other(format!(
                    "this file system cannot rename without replacing ({error}): allow that by --force"
                )),
            })?;
            fs::remove_file(from)
        }
        outcome => Ok(outcome?),
    }
}

/// Renames a file, in place of another regular file if there is one.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(to).is_ok_and(|about| !about.is_file()) {
        let reason = "something that is no regular file has taken its place";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
    }
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    fn check(path: &Path, replaces: bool, keeps: bool) -> Result<(), String> {
        let files = Files::new(path, replaces, keeps);
        files.and_then(|files| files.check()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, dangling, new] =
            ["file", "link", "dangling", "new"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        symlink("nowhere", &dangling).unwrap();
        let cases: [(&Path, &str); 8] = [
            (&file, "file exists: name another file, or have it replaced by --force"),
            (&link, "link: it is a symbolic link; name the file that it leads to"),
            (&dangling, "dangling: it is a symbolic link; name the file that it leads to"),
            (Path::new("/nonexistent/out"), "cannot write /nonexistent/out: there is no folder /nonexistent"),
            (&file.join("out"), "file is no folder"),
            (&new.join(""), "new/ is no name of a file"),
            (&folder.path().join("x".repeat(216)), "215 characters are the most"),
            // Where not even root may write.
            (Path::new("/proc/out"), "cannot write /proc/out: no file can be made in the folder /proc"),
        ];
        for (path, expected) in cases {
            let error = check(path, false, false).unwrap_err();
            assert!(error.contains(expected), "{}: {error}", path.display());
        }
        check(&new, false, false).unwrap();
        check(&file, true, false).unwrap();
        check(&file, false, true).unwrap();
        assert!(check(&link, true, true).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left of the attempt");
    }

    #[test]
    fn files_are_numbered_and_replaced_only_if_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(folder.path().join("out.1"), "old").unwrap();
        let names = |replaces| -> Vec<String> {
            let mut files = Files::new(&path, replaces, true).unwrap();
            let place = |id| {
                let done = files.done(id);
                fs::write(&done, format!("{id}")).unwrap();
                let path = files.place(&done).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), format!("{id}"));
                path.file_name().unwrap().to_str().unwrap().to_owned()
            };
            (1..=3).map(place).collect()
        };
        assert_eq!(names(false), ["out", "out.2", "out.3"]);
        assert_eq!(names(true), ["out", "out.1", "out.2"]);
        // A folder is never replaced: its number is passed over.
        fs::remove_file(folder.path().join("out.1")).unwrap();
        fs::create_dir(folder.path().join("out.1")).unwrap();
        assert_eq!(names(true), ["out", "out.2", "out.3"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_file_that_comes_in_between_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut files = Files::new(&path, false, false).unwrap();
        let done = files.done(1);
        fs::write(&done, "new").unwrap();
        fs::write(&path, "old").unwrap();
        assert_eq!(files.place(&done).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // Nor is a link, even if files may be replaced.
        fs::remove_file(&path).unwrap();
        symlink("elsewhere", &path).unwrap();
        files.replaces = true;
        assert!(files.place(&done).is_err());
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
        assert_eq!(fs::read(&done).unwrap(), b"new");
    }

    #[test]
    fn transfers_that_earlier_receivers_have_left_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let files = Files::new(&path, false, false).unwrap();
        for name in ["out.1.done", "other.00000000000000000000000000000001.done", "out", "out.7"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::write(files.part(1), "").unwrap();
        let stamp_of = |path: &Path| Stamp::of(&fs::metadata(path).unwrap());
        let receipt = |id, stamp| drop(Receipt::write(files.receipt(id), String::new(), stamp).unwrap());
        fs::write(files.done(9), "").unwrap();
        receipt(9, stamp_of(&files.done(9)));
        receipt(1, stamp_of(&files.part(1)));
        assert_eq!(files.left_behind().unwrap(), [(1, Left::Partial), (9, Left::Complete)]);
        receipt(8, stamp_of(&files.part(1)));
        assert!(files.left_behind().unwrap().contains(&(8, Left::Placed)));
        assert!(files.check().is_err(), "the file is not the one of the receipt");
        receipt(8, stamp_of(&path));
        files.check().unwrap();
        assert_eq!(files.find(stamp_of(&path)).as_ref(), Some(&path));
        let seventh = folder.path().join("out.7");
        assert_eq!(files.find(stamp_of(&seventh)), Some(seventh));
        assert_eq!(files.find(stamp_of(&files.part(1))), None);
        // A later file may get the inode number, and have the same size.
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(files.check().is_err());
    }
}
