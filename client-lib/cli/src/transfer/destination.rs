//! Where transfers go, as `--output` says, and what is refused before anybody is listened to.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;

/// Length of what a partial file's name has behind the file's: `.`, the session, `.part`.
const SUFFIX: usize = 38;

/// Where a transfer is written.
#[derive(Debug)]
pub(super) enum Destination {
    Stdout,
    /// A device, a named pipe or a socket: it is written as it comes.
    Direct(PathBuf),
    Files(Files),
}

/// Files that appear when they are complete: `FILE`, and with `--keep` `FILE.1`, `FILE.2` and so
/// on.
///
/// Until then a transfer is `FILE.SESSION.part`; when all of it is there and on the disk,
/// `FILE.SESSION.done`. That name stays beside the file's own until the sender has heard of it, so
/// that a receiver that is started in the place of one that died knows what there is to say.
#[derive(Debug)]
pub(super) struct Files {
    /// As the command line has it.
    path: PathBuf,
    folder: PathBuf,
    name: OsString,
    /// Files that exist are replaced.
    replaces: bool,
    /// There will be several.
    keeps: bool,
    /// Permissions of new files.
    mode: u32,
    /// The number of the next one; the first has none.
    next: u64,
}

/// Fate of the name that said that a file is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// The file has both.
    Linked,
    /// The file has its own only: this file system has no second names.
    Moved,
}

impl Destination {
    /// # Errors
    ///
    /// If nothing can be written there, or something is there that must not be replaced.
    pub(super) fn new(path: &Path, replaces: bool, keeps: bool) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => bail!("{} is a folder: name a file in it", path.display()),
            Ok(about) if !about.is_file() => return Ok(Self::Direct(path.to_owned())),
            _ => {}
        }
        let files = Files::new(path, replaces, keeps)?;
        files.check()?;
        Ok(Self::Files(files))
    }

    pub(super) fn files(&self) -> Option<&Files> {
        match self {
            Self::Files(files) => Some(files),
            _ => None,
        }
    }
}

impl Files {
    fn new(path: &Path, replaces: bool, keeps: bool) -> anyhow::Result<Self> {
        let name = path.file_name().with_context(|| format!("{} is no name of a file", path.display()))?;
        ensure!(
            name.len() + SUFFIX <= MAX_NAME,
            "the name {} is too long: {} characters are the most that leave room for the name of a partial file",
            name.display(),
            MAX_NAME - SUFFIX
        );
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // It can be read only by being set. No file is made yet.
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

    fn check(&self) -> anyhow::Result<()> {
        let (path, folder) = (self.path.display(), self.folder.display());
        match fs::metadata(&self.folder) {
            Ok(about) => ensure!(about.is_dir(), "cannot write {path}: {folder} is no folder"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("cannot write {path}: there is no folder {folder}")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
        }
        self.make_one()
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
            self.replaces || self.keeps || self.is_unsettled(&about)?,
            "{path} exists: name another file, or have it replaced by --force"
        );
        Ok(())
    }

    /// Permissions alone do not tell: the file system may be full, or have no files of its own.
    fn make_one(&self) -> io::Result<()> {
        let path = self.named(&format!("{:032x}.new", fastrand::u128(..)));
        File::create_new(&path)?;
        fs::remove_file(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn mode(&self) -> u32 {
        self.mode
    }

    /// While parts are missing.
    pub(super) fn part(&self, session: u128) -> PathBuf {
        self.named(&format!("{session:032x}.part"))
    }

    /// When all are there.
    pub(super) fn done(&self, session: u128) -> PathBuf {
        self.named(&format!("{session:032x}.done"))
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

    /// Transfers that earlier receivers had completed, by their sessions, the oldest first.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub(super) fn completed(&self) -> io::Result<Vec<u128>> {
        let mut found = Vec::new();
        for (suffix, about) in self.suffixes()? {
            let digits = suffix.strip_suffix(b".done").filter(|digits| digits.len() == 32);
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            if let Some(session) = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()) {
                found.push(((about.mtime(), about.mtime_nsec()), session));
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, session)| session).collect())
    }

    /// Whether a file is one that has come here, by whichever number.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub(super) fn is_in_place(&self, file: &Metadata) -> io::Result<bool> {
        let is_number = |suffix: &[u8]| !suffix.is_empty() && suffix.iter().all(u8::is_ascii_digit);
        let numbered = self.suffixes()?.into_iter().filter(|(suffix, _)| is_number(suffix));
        let own = fs::symlink_metadata(&self.path).ok();
        Ok(numbered.map(|(_, about)| about).chain(own).any(|about| is_same(&about, file)))
    }

    /// Whether the sender of a file that is in its place may not have heard so.
    fn is_unsettled(&self, file: &Metadata) -> io::Result<bool> {
        let done = self.completed()?.into_iter().map(|session| self.done(session));
        Ok(done.filter_map(|path| fs::symlink_metadata(path).ok()).any(|about| is_same(&about, file)))
    }

    /// Lists the files in the folder whose names begin as the file's, by what comes after the dot.
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

    /// Gives a complete file its own name: that of the command line, or the next number that is
    /// free.
    ///
    /// # Errors
    ///
    /// If something is there that must not be replaced, or what the kernel says.
    pub(super) fn place(&mut self, done: &Path) -> io::Result<(PathBuf, Placed)> {
        loop {
            let path = self.numbered(self.next);
            match self.place_at(done, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.counts_on() => {
                    self.next += 1;
                }
                Err(error) => return Err(error),
                Ok(placed) => {
                    self.next += 1;
                    return Ok((path, placed));
                }
            }
        }
    }

    fn counts_on(&self) -> bool {
        self.keeps && !self.replaces
    }

    fn place_at(&self, done: &Path, path: &Path) -> io::Result<Placed> {
        let linked = match self.replaces {
            false => fs::hard_link(done, path),
            true => replace_by_link(done, path),
        };
        match linked {
            Err(error) if has_no_links(&error) => {
                if !self.replaces && fs::symlink_metadata(path).is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                fs::rename(done, path).map(|()| Placed::Moved)
            }
            linked => linked.map(|()| Placed::Linked),
        }
    }
}

/// At no moment there is no file.
fn replace_by_link(done: &Path, path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(io::Error::other("something that is no regular file has taken its place"));
    }
    let beside = done.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(done, &beside)?;
    fs::rename(&beside, path)
}

fn has_no_links(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn open(path: &Path, replaces: bool, keeps: bool) -> Result<Destination, String> {
        Destination::new(path, replaces, keeps).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_cannot_be_written_is_refused_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, dangling, new] =
            ["file", "link", "dangling", "new"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        symlink("nowhere", &dangling).unwrap();
        let cases: [(&Path, &str); 7] = [
            (&file, "file exists: name another file, or have it replaced by --force"),
            (&link, "link: it is a symbolic link; name the file that it leads to"),
            (&dangling, "dangling: it is a symbolic link; name the file that it leads to"),
            (folder.path(), "is a folder: name a file in it"),
            (Path::new("/nonexistent/out"), "cannot write /nonexistent/out: there is no folder /nonexistent"),
            (&file.join("out"), "file is no folder"),
            (&folder.path().join("x".repeat(218)), "217 characters are the most"),
        ];
        for (path, expected) in cases {
            let error = open(path, false, false).unwrap_err();
            assert!(error.contains(expected), "{}: {error}", path.display());
        }
        assert!(open(&new, false, false).is_ok());
        assert!(open(&file, true, false).is_ok() && open(&file, false, true).is_ok());
        assert!(open(&link, true, true).is_err());
    }

    /// Where not even root may write.
    #[test]
    fn a_folder_that_cannot_be_written_to_is_refused_beforehand() {
        let error = open(Path::new("/proc/out"), false, false).unwrap_err();
        assert!(
            error.starts_with("cannot write /proc/out: no file can be made in the folder /proc"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_regular_file_is_written_as_it_is() {
        assert!(matches!(open(Path::new("/dev/null"), false, false), Ok(Destination::Direct(_))));
        assert!(matches!(open(Path::new("-"), false, false), Ok(Destination::Stdout)));
    }

    #[test]
    fn files_are_numbered_and_none_is_replaced_unless_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(folder.path().join("out.1"), "old").unwrap();
        let names = |replaces| -> Vec<String> {
            let mut files = Files::new(&path, replaces, true).unwrap();
            let place = |session| {
                let done = files.done(session);
                fs::write(&done, format!("{session}")).unwrap();
                let (path, placed) = files.place(&done).unwrap();
                assert_eq!(placed, Placed::Linked);
                fs::remove_file(done).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), format!("{session}"));
                path.file_name().unwrap().to_str().unwrap().to_owned()
            };
            (1..=3).map(place).collect()
        };
        assert_eq!(names(false), ["out", "out.2", "out.3"]);
        assert_eq!(names(true), ["out", "out.1", "out.2"]);
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
        // Nor is a link, whatever may be replaced.
        fs::remove_file(&path).unwrap();
        symlink("elsewhere", &path).unwrap();
        files.replaces = true;
        assert!(files.place(&done).is_err());
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
        assert_eq!(fs::read(&done).unwrap(), b"new");
    }

    #[test]
    fn what_earlier_receivers_have_completed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let files = Files::new(&path, false, false).unwrap();
        for name in ["out.1.done", "other.00000000000000000000000000000001.done", "out", "out.7"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::write(files.part(1), "").unwrap();
        assert_eq!(files.completed().unwrap(), []);
        fs::write(files.done(9), "").unwrap();
        assert_eq!(files.completed().unwrap(), [9]);
        assert!(files.check().is_err());
        // The file is there by both names: its sender may not know yet.
        fs::remove_file(&path).unwrap();
        fs::hard_link(files.done(9), &path).unwrap();
        files.check().unwrap();
        assert!(files.is_in_place(&fs::metadata(files.done(9)).unwrap()).unwrap());
        assert!(files.is_in_place(&fs::metadata(folder.path().join("out.7")).unwrap()).unwrap());
        assert!(!files.is_in_place(&fs::metadata(files.part(1)).unwrap()).unwrap());
    }
}
