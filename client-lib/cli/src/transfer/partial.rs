//! The file of a transfer until it is placed.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::files::Files;
use super::own_file;
use super::receipt::{Receipt, Stamp, remove};

/// A file that has not been placed: `FILE.ID.part` while bytes are missing, `FILE.ID.done` when the
/// file is complete and on the disk, with a receipt beside it.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) is_complete: bool,
}

impl Partial {
    /// Opens the complete file of a transfer that an earlier receiver has left, if there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, another receiver has it open, or it is not this program's.
    pub(super) fn complete(files: &Files, id: u128) -> io::Result<Option<Self>> {
        let path = files.done(id);
        let Some((file, about)) = own_file::open(&path)? else { return Ok(None) };
        lock(&file, &path)?;
        match about.nlink() {
            1 => {}
            // A receiver died in the middle of a rename that this file system has in two steps only
            // (`files::rename_new`). The first one counts.
            2 if files.find(Stamp::of(&about)).is_some() => {
                fs::remove_file(&path)?;
                return Ok(None);
            }
            names => return Err(own_file::refusal(&path, &format!("it has {names} names"))),
        }
        Ok(Some(Self { file, path, is_complete: true }))
    }

    /// Removes the partial file of a transfer that an earlier receiver has left.
    ///
    /// # Errors
    ///
    /// If there is none, another receiver has it open, or it is not this program's.
    pub(super) fn remove_left(files: &Files, id: u128) -> io::Result<()> {
        let path = files.part(id);
        let file = left_behind(&path)?;
        lock(&file, &path)?;
        remove(&files.receipt(id))?;
        fs::remove_file(&path)
    }

    /// Opens the partial file of a transfer: the one that an earlier receiver has left, or a new
    /// one. The caller first reads from [`file`](Self::file) what it holds already.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, another receiver writes it, or it is not this program's.
    pub(super) fn open(files: &Files, id: u128) -> io::Result<Self> {
        let path = files.part(id);
        let file = own_file::create(&path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => left_behind(&path),
            _ => Err(error),
        })?;
        lock(&file, &path)?;
        Ok(Self { file, path, is_complete: false })
    }

    /// Writes the complete file and its receipt to the disk, and gives the file the name that says
    /// so. Then no full disk keeps the file from being placed.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(super) fn sync(&mut self, files: &Files, id: u128, sha256: String) -> io::Result<()> {
        self.file.sync_all()?;
        Receipt::write(files.receipt(id), sha256, Stamp::of(&self.file.metadata()?))?;
        let done = self.path.with_extension("done");
        fs::rename(&self.path, &done)?;
        (self.path, self.is_complete) = (done, true);
        files.sync_names(&self.file)
    }

    /// Places the file: renames it from `FILE.ID.done` to its own name, which is returned. An
    /// earlier version has left it without a receipt, which is then written.
    ///
    /// The rename is the one step that counts, and the kernel does it wholly or not at all. A
    /// receiver that dies before it leaves `FILE.ID.done`: the next one places the file. A receiver
    /// that dies after it leaves the receipt only: the next one knows that the file has been
    /// placed, wherever it is by then, and never places it again. The receipt is on the disk before
    /// the rename, so that no sender hears of a file whose receipt a power failure takes away.
    ///
    /// # Errors
    ///
    /// If the name exists and must not be replaced, or the kernel's. The file is still complete
    /// then.
    pub(super) fn place(
        &self,
        files: &mut Files,
        id: u128,
        sha256: String,
    ) -> io::Result<(Receipt, PathBuf)> {
        self.file.set_permissions(Permissions::from_mode(files.mode))?;
        self.file.sync_all()?;
        let (path, stamp) = (files.receipt(id), Stamp::of(&self.file.metadata()?));
        let receipt = match Receipt::read(path.clone())? {
            Some(receipt) if (&receipt.summary.sha256, receipt.stamp) == (&sha256, stamp) => receipt,
            _ => Receipt::write(path, sha256, stamp)?,
        };
        Ok((receipt, files.place(&self.path)?))
    }

    /// Removes the transfer's file, whether it is complete or not.
    pub(super) fn remove(self) {
        // A name that stays does no harm; but a receipt without the file says that it was placed.
        let _ = remove(&self.path.with_extension("placed")).and_then(|()| fs::remove_file(&self.path));
    }
}

fn left_behind(path: &Path) -> io::Result<File> {
    let (file, about) = own_file::open(path)?.ok_or(io::ErrorKind::NotFound)?;
    match (about.nlink(), about.mode() & 0o7777) {
        (1, own_file::PRIVATE) => Ok(file),
        (1, mode) => {
            let problem = format!("its mode is {mode:o}, not {:o}", own_file::PRIVATE);
            Err(own_file::refusal(path, &problem))
        }
        (names, _) => Err(own_file::refusal(path, &format!("it has {names} names"))),
    }
}

/// Locks a file against other receivers. On a file system without locks there is none.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::other(format!(
            "another multinet recv or get has {} open: end one of the two",
            path.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    const ID: u128 = 7;

    fn files(folder: &Path) -> Files {
        Files::new(&folder.join("out"), false, false).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn sha256() -> String {
        "ab".repeat(32)
    }

    /// Returns the complete file of a transfer.
    fn complete(files: &Files) -> Partial {
        let mut partial = Partial::open(files, ID).unwrap();
        partial.file.write_all(b"abc").unwrap();
        partial.sync(files, ID, sha256()).unwrap();
        partial
    }

    #[test]
    fn a_file_is_private_until_it_is_placed_and_then_has_the_usual_mode() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        drop(Partial::open(&files, ID).unwrap());
        assert_eq!(mode(&files.part(ID)), 0o600);
        let partial = complete(&files);
        assert_eq!((names(folder.path()).len(), mode(&files.done(ID))), (2, 0o600));
        let (receipt, path) = partial.place(&mut files, ID, sha256()).unwrap();
        assert_eq!((path.as_path(), mode(&path)), (files.path.as_path(), files.mode));
        assert_eq!(mode(&files.receipt(ID)), 0o600);
        receipt.remove();
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read(path).unwrap(), b"abc");
    }

    /// As if receivers died after each step of [`Partial::place`].
    #[test]
    fn a_file_is_placed_once_however_often_receivers_die() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path());
        // Before the rename. An earlier version had no receipt by then, or that of another file.
        drop(complete(&files));
        let partial = Partial::complete(&files, ID).unwrap().unwrap();
        let stamp = Stamp::of(&partial.file.metadata().unwrap());
        drop(partial);
        remove(&files.receipt(ID)).unwrap();
        Receipt::write(files.receipt(ID), "cd".repeat(32), stamp).unwrap();
        let partial = Partial::complete(&files, ID).unwrap().unwrap();
        // After the rename, with the file in its place, moved away, and removed.
        let (_, path) = partial.place(&mut files, ID, sha256()).unwrap();
        drop(partial);
        for step in 0..3 {
            assert!(Partial::complete(&files, ID).unwrap().is_none(), "step {step}");
            let receipt = Receipt::read(files.receipt(ID)).unwrap().unwrap();
            assert_eq!((&receipt.summary.sha256, receipt.stamp), (&sha256(), stamp));
            assert_eq!(files.find(stamp).is_some(), step == 0);
            match step {
                0 => fs::rename(&path, folder.path().join("consumed")).unwrap(),
                1 => fs::remove_file(folder.path().join("consumed")).unwrap(),
                _ => {}
            }
        }
    }

    /// Where a rename cannot refuse to replace, the file is linked, and then unlinked.
    #[test]
    fn a_file_with_both_names_counts_as_placed() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        drop(complete(&files));
        fs::hard_link(files.done(ID), &files.path).unwrap();
        assert!(Partial::complete(&files, ID).unwrap().is_none());
        assert!(!files.done(ID).exists() && files.path.exists() && files.receipt(ID).exists());
    }

    /// As on a disk that has room for the file, but not for its receipt.
    #[test]
    fn a_file_without_room_for_its_receipt_is_not_complete() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        fs::create_dir(files.receipt(ID)).unwrap();
        let mut partial = Partial::open(&files, ID).unwrap();
        partial.sync(&files, ID, sha256()).unwrap_err();
        assert!(!partial.is_complete && files.part(ID).exists() && !files.done(ID).exists());
        fs::remove_dir(files.receipt(ID)).unwrap();
        partial.sync(&files, ID, sha256()).unwrap();
        assert!(partial.is_complete && files.receipt(ID).exists() && files.done(ID).exists());
        partial.remove();
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_was_left_behind_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        Partial::open(&files, ID).unwrap().file.write_all(b"abc").unwrap();
        let partial = Partial::open(&files, ID).unwrap();
        assert_eq!(partial.file.metadata().unwrap().len(), 3);
    }

    #[test]
    fn a_file_is_written_by_one_receiver() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let _first = Partial::open(&files, ID).unwrap();
        let error = Partial::open(&files, ID).unwrap_err().to_string();
        assert!(error.starts_with("another multinet recv or get has"), "{error}");
        Partial::open(&files, ID + 1).unwrap();
    }

    /// Links and files of others under a file's name are not followed, written or taken for
    /// complete.
    #[test]
    fn a_file_that_is_not_ours_is_refused_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let victim = folder.path().join("victim");
        let paths = [files.part(ID), files.done(ID)];
        let refused = |expected: &str| {
            let outcome = Partial::complete(&files, ID).and_then(|_| Partial::open(&files, ID));
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("remove it"), "{error}");
            assert_eq!(fs::read(&victim).unwrap(), b"victim");
            for path in &paths {
                let _ = fs::remove_file(path);
            }
        };
        fs::write(&victim, "victim").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
        for path in &paths {
            symlink(&victim, path).unwrap();
            refused("no regular file");
            symlink("nowhere", path).unwrap();
            refused("no regular file");
            fs::hard_link(&victim, path).unwrap();
            refused("it has 2 names");
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            refused("no regular file");
        }
        fs::write(files.part(ID), "").unwrap();
        fs::set_permissions(files.part(ID), Permissions::from_mode(0o644)).unwrap();
        refused("its mode is 644, not 600");
    }
}
