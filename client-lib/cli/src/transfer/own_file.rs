//! Files that this program creates in a folder where other users may write, too. A file or link
//! that another user or program has put there under such a name is refused.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Permissions of a file that is not complete: only its owner can read it.
pub(super) const PRIVATE: u32 = 0o600;

/// Creates a file that only its owner can read.
///
/// # Errors
///
/// If the name exists, or the kernel's error.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let file = options().create_new(true).mode(PRIVATE).open(path)?;
    // The umask does not count.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    Ok(file)
}

/// Opens a file that an earlier receiver has left, if there is one.
///
/// # Errors
///
/// If the file may be another user's or another program's, or the kernel's error.
pub(super) fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let file = match options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) => {
            return Err(refusal(path, &format!("it is no regular file ({error})")));
        }
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    check_owner(path, &about)?;
    Ok(Some((file, about)))
}

/// Returns the error for a file that stands where this program's would, but is not its own.
pub(super) fn refusal(path: &Path, problem: &str) -> io::Error {
    io::Error::other(format!("{} is not ours: {problem}; remove it", path.display()))
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: opening a named pipe of another user must not wait for its reader.
    options.read(true).append(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options
}

fn check_owner(path: &Path, about: &Metadata) -> io::Result<()> {
    let (uid, own) = (about.uid(), geteuid().as_raw());
    if !about.is_file() {
        return Err(refusal(path, "it is no regular file"));
    }
    if uid != own {
        return Err(refusal(path, &format!("it belongs to user {uid}, not to {own}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let about = if geteuid().is_root() {
            std::os::unix::fs::chown(file.path(), Some(4711), None).unwrap();
            file.as_file().metadata().unwrap()
        } else {
            fs::metadata("/etc/passwd").unwrap()
        };
        let error = check_owner(file.path(), &about).unwrap_err().to_string();
        assert!(error.contains(" is not ours: it belongs to user "), "{error}");
    }
}
