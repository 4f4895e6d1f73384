//! A file that is not complete yet. Others may write in its folder: what they put there is not
//! taken for ours.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::destination::{Files, Placed};
use super::ending::Stage;

/// Permissions of a file that is not complete.
const PRIVATE: u32 = 0o600;

/// A transfer's file, until the sender knows that it is in its place.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    stage: Stage,
    /// It has its own name only.
    is_moved: bool,
}

impl Partial {
    /// The file of a transfer: what an earlier receiver has left of it, or a new one. What is there
    /// already is to be read from [`file`](Self::file) first.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, another receiver writes it, or it is not one that this program has
    /// made.
    pub(super) fn open(files: &Files, session: u128) -> io::Result<Self> {
        let done = files.done(session);
        Ok(match existing(&done)? {
            Some(file) => {
                lock(&file, &done)?;
                // A receiver that died in between may have left a third name.
                let _ = fs::remove_file(done.with_extension("new"));
                let about = file.metadata()?;
                let stage = if files.is_in_place(&about)? { Stage::InPlace } else { Stage::Safe };
                trust(&done, &about, if stage == Stage::InPlace { 2 } else { 1 })?;
                Self { file, path: done, stage, is_moved: false }
            }
            None => {
                let part = files.part(session);
                let file = made(&part).or_else(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => left(&part),
                    _ => Err(error),
                })?;
                lock(&file, &part)?;
                Self { file, path: part, stage: Stage::Open, is_moved: false }
            }
        })
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// All of it has been written: has it on the disk, by a name that says so.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(super) fn sync(&mut self, files: &Files) -> io::Result<()> {
        self.file.sync_all()?;
        let done = self.path.with_extension("done");
        fs::rename(&self.path, &done)?;
        (self.path, self.stage) = (done, Stage::Safe);
        sync_folder(files.folder())
    }

    /// Gives it its own name.
    ///
    /// # Errors
    ///
    /// If something is there that must not be replaced, or what the kernel says.
    pub(super) fn place(&mut self, files: &mut Files) -> io::Result<PathBuf> {
        self.file.set_permissions(Permissions::from_mode(files.mode()))?;
        self.file.sync_all()?;
        let (path, placed) = files.place(&self.path)?;
        (self.stage, self.is_moved) = (Stage::InPlace, placed == Placed::Moved);
        sync_folder(files.folder())?;
        Ok(path)
    }

    /// The sender knows: nothing is left but the file.
    pub(super) fn leave(self) {
        if self.stage == Stage::InPlace && !self.is_moved {
            // A name more does no harm; the next receiver removes it.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Removes it, unless it is complete.
    pub(super) fn discard(self) {
        if self.stage == Stage::Open {
            self.reject();
        }
    }

    /// Removes it, unless it has its own name already.
    pub(super) fn reject(self) {
        if self.stage != Stage::InPlace {
            // What is left of it does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe that another user has put there is not waited for.
    options.read(true).append(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options
}

fn made(path: &Path) -> io::Result<File> {
    let file = options().create_new(true).mode(PRIVATE).open(path)?;
    // Whatever the umask is.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    Ok(file)
}

fn existing(path: &Path) -> io::Result<Option<File>> {
    match options().open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) => {
            Err(not_ours(path, &format!("it is no regular file ({error})")))
        }
        Err(error) => Err(error),
    }
}

/// Where there are no locks, there are none.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::other(format!(
            "another multinet recv has {} open: end one of the two",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// One that an earlier receiver has left.
fn left(path: &Path) -> io::Result<File> {
    let file = existing(path)?.ok_or(io::ErrorKind::NotFound)?;
    let about = file.metadata()?;
    trust(path, &about, 1)?;
    match about.mode() & 0o7777 {
        PRIVATE => Ok(file),
        mode => Err(not_ours(path, &format!("its mode is {mode:o}, not {PRIVATE:o}"))),
    }
}

/// Refuses what another user, or another program, may have put there.
fn trust(path: &Path, about: &Metadata, links: u64) -> io::Result<()> {
    let (uid, own) = (about.uid(), geteuid().as_raw());
    let problem = if !about.is_file() {
        "it is no regular file".to_owned()
    } else if uid != own {
        format!("it belongs to user {uid}, not to {own}")
    } else if about.nlink() != links {
        format!("it has {} names", about.nlink())
    } else {
        return Ok(());
    };
    Err(not_ours(path, &problem))
}

fn not_ours(path: &Path, problem: &str) -> io::Error {
    io::Error::other(format!("{} is not ours: {problem}; remove it", path.display()))
}

/// Names are on the disk when their folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems have no such thing.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::super::destination::Destination;
    use super::*;

    fn files(folder: &Path, keeps: bool) -> Files {
        match Destination::new(&folder.join("out"), false, keeps).unwrap() {
            Destination::Files(files) => files,
            other => panic!("{other:?}"),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_private_until_it_is_complete_and_then_as_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), false);
        let mut partial = Partial::open(&files, 7).unwrap();
        partial.file().write_all(b"abc").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&files.part(7)), 0o600);
        partial.sync(&files).unwrap();
        assert_eq!((names(folder.path()).len(), mode(&files.done(7))), (1, 0o600));
        let path = partial.place(&mut files).unwrap();
        assert_eq!((path.as_path(), mode(&path)), (files.path(), files.mode()));
        assert_eq!(names(folder.path()).len(), 2, "until the sender knows");
        partial.leave();
        assert_eq!(
            (names(folder.path()), fs::read(path).unwrap()),
            (vec!["out".to_owned()], b"abc".to_vec())
        );
    }

    #[test]
    fn one_that_was_left_is_gone_on_with_at_every_stage() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), false);
        let mut partial = Partial::open(&files, 7).unwrap();
        partial.file().write_all(b"abc").unwrap();
        drop(partial);
        let mut partial = Partial::open(&files, 7).unwrap();
        assert_eq!(partial.stage(), Stage::Open);
        partial.sync(&files).unwrap();
        drop(partial);
        let mut partial = Partial::open(&files, 7).unwrap();
        assert_eq!(partial.stage(), Stage::Safe);
        partial.place(&mut files).unwrap();
        drop(partial);
        let partial = Partial::open(&files, 7).unwrap();
        assert_eq!(partial.stage(), Stage::InPlace);
        partial.leave();
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn one_is_written_by_one_receiver() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), false);
        let _first = Partial::open(&files, 7).unwrap();
        let error = Partial::open(&files, 7).unwrap_err().to_string();
        assert!(error.starts_with("another multinet recv has"), "{error}");
        Partial::open(&files, 8).unwrap();
    }

    /// Links and files of others under its name are not followed, written or taken for complete.
    #[test]
    fn what_is_not_ours_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), false);
        let victim = folder.path().join("victim");
        let refused = |expected: &str| {
            let error = Partial::open(&files, 7).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("remove it"), "{error}");
            assert_eq!(fs::read(&victim).unwrap(), b"victim");
            for path in [files.part(7), files.done(7)] {
                let _ = fs::remove_file(path);
            }
        };
        fs::write(&victim, "victim").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        for path in [files.part(7), files.done(7)] {
            symlink(&victim, &path).unwrap();
            refused("no regular file");
            symlink("nowhere", &path).unwrap();
            refused("no regular file");
            fs::hard_link(&victim, &path).unwrap();
            refused("it has 2 names");
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            refused("no regular file");
        }
        fs::write(files.part(7), "").unwrap();
        fs::set_permissions(files.part(7), Permissions::from_mode(0o644)).unwrap();
        refused("its mode is 644, not 600");
    }

    #[test]
    fn one_of_another_user_is_not_taken() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let about = if geteuid().is_root() {
            std::os::unix::fs::chown(file.path(), Some(4711), None).unwrap();
            file.as_file().metadata().unwrap()
        } else {
            fs::metadata("/etc/passwd").unwrap()
        };
        let error = trust(file.path(), &about, 1).unwrap_err().to_string();
        assert!(error.contains(" is not ours: it belongs to user "), "{error}");
    }
}
